"""Units that the masks of two relations share, as a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relbench.reports.figures import style
from relbench.reports.figures.heat import CELL, heat_map
from relbench.reports.figures.named import Named, file_name
from relbench.reports.formats import show
from relbench.tables import Table

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`versatility-<method>`, a panel for each language and size."""
    # What a mask does to its units does not change which they are.
    rows = {(r["method"], r["masked_language"], r["k"], r["masked"], r["other"]): r for r in table.rows}
    kept = [row for row in rows.values() if row["jaccard"] is not None]
    for parts, title, members in style.split(kept, ("method",)):
        yield Named(file_name("versatility", parts), _figure(title, members))


def _figure(title: str, rows: Sequence[Row]) -> Any:
    names = list(dict.fromkeys(name for row in rows for name in (row["masked"], row["other"])))
    sizes = sorted({(row["k"], style.size_name(row)) for row in rows})
    languages = list(dict.fromkeys(row["masked_language"] for row in rows))
    panels = [(language, k, size) for language in languages for k, size in sizes]
    most_beside = 3 if len(names) <= 12 else 1
    n_rows, n_columns = style.grid_of(len(panels), most_beside if len(languages) == 1 else len(sizes))
    figure, axes = style.panels(
        n_rows,
        n_columns,
        width=max(CELL * len(names), 1.6) + 0.2,
        height=CELL * 0.72 * len(names) + 0.5,
        share=True,
        extra=2.2,
    )
    figure.set_size_inches(figure.get_figwidth() + 2.4, figure.get_figheight())
    flat = [one for row in axes for one in row]
    labels = [style.words(name) for name in names]
    most = max(row["jaccard"] for row in rows) or 1.0
    image: Any = None
    for one, (language, k, size) in zip(flat, panels, strict=False):
        found: dict[tuple[str, str], Row] = {}
        own = [row for row in rows if (row["masked_language"], row["k"]) == (language, k)]
        for row in own:
            found[row["masked"], row["other"]] = found[row["other"], row["masked"]] = row
        values = [[_value(found.get((a, b)), "jaccard") for b in names] for a in names]
        image = heat_map(one, values, labels, labels, cmap=style.SEQUENTIAL, limits=(0, most), kind="share")
        chance = [row["expected"] for row in own if row["expected"] is not None]
        where = f"{style.language_name(language)}, " if len(languages) > 1 else ""
        one.set_title(
            f"{where}{size}\nrandom sets share {show(max(chance), 'number')} units"
            if chance
            else f"{where}{size}"
        )
    for one in flat[len(panels) :]:
        one.set_visible(False)
    style.title(
        figure, f"Units that two relations share, as a share of both relations' units (Jaccard index){title}"
    )
    figure.colorbar(image, ax=flat, label="Jaccard index", shrink=0.9, aspect=30)
    return figure


def _value(row: Row | None, key: str) -> float | None:
    return None if row is None else row[key]
