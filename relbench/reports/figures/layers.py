"""Where the units of masks are: shares by layer, a row a relation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relbench.reports.figures import style
from relbench.reports.figures.heat import heat_map
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`layers-<method>`, a panel for each language, kind and size."""
    rows = {
        (r["method"], r["masked_language"], r["k"], r["masked"], r["layer"], r["kind"]): r for r in table.rows
    }
    for parts, title, members in style.split(rows.values(), ("method",)):
        yield Named(file_name("layers", parts), _figure(title, members))


def _figure(title: str, rows: Sequence[Row]) -> Any:
    relations = list(dict.fromkeys(row["masked"] for row in rows))
    languages = list(dict.fromkeys(row["masked_language"] for row in rows))
    layers = sorted({row["layer"] for row in rows})
    sizes = sorted({(row["k"], style.size_name(row)) for row in rows})
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    n_columns = min(len(sizes), 3)
    panels = [(lang, kind, k, size) for lang in languages for kind in kinds for k, size in sizes]
    n_rows = -(-len(panels) // n_columns)
    figure, axes = style.panels(
        n_rows,
        n_columns,
        width=max(0.13 * len(layers), 2.4) + 0.3,
        height=0.19 * len(relations) + 0.6,
        share=True,
        extra=1.0,
    )
    figure.set_size_inches(figure.get_figwidth() + 2.4, figure.get_figheight())
    flat = [one for row in axes for one in row]
    labels = [style.words(name) for name in relations]
    most = max((row["share_of_mask"] or 0.0) for row in rows) or 1.0
    image: Any = None
    for number, (one, (language, kind, k, size)) in enumerate(zip(flat, panels, strict=False)):
        found = {
            (row["masked"], row["layer"]): row["share_of_mask"]
            for row in rows
            if (row["masked_language"], row["kind"], row["k"]) == (language, kind, k)
        }
        values = [[found.get((name, layer)) for layer in layers] for name in relations]
        image = heat_map(
            one,
            values,
            labels,
            [str(layer) for layer in layers],
            cmap=style.SEQUENTIAL,
            limits=(0, most),
            kind=None,
        )
        step = max(1, len(layers) // 10)
        one.set_xticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]], rotation=0)
        told = [style.language_name(language)] if len(languages) > 1 else []
        told += [f"kind {kind}"] if len(kinds) > 1 else []
        one.set_title(", ".join([*told, size]))
        if number + n_columns >= len(panels):
            one.set_xlabel("layer")
            one.tick_params(labelbottom=True)
    for one in flat[len(panels) :]:
        one.set_visible(False)
    style.title(figure, f"Where the units of each relation's mask are{title}")
    figure.colorbar(image, ax=flat, label="share of the mask", shrink=0.9, aspect=30)
    return figure
