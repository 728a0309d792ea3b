"""Change of recall: masked relation × evaluated relation, one figure a method, a panel for each size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from relbench.reports.figures import style
from relbench.reports.figures.heat import CELL, heat_map
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table
from relbench.treatments import RANDOM, TOP_K

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`deltas-<method>`, with the language, mode and positions where there are several."""
    rows = [row for row in table.rows if row["facts"] == "headline" and row["selection"] == TOP_K]
    masks = [row for row in rows if row["masked"] is not None]
    keys = ("method", "mode", "positions", "masked_language")
    figures = dict.fromkeys(tuple(row[key] for key in keys) for row in masks)
    several = [len({key[i] for key in figures}) > 1 for i in range(len(keys))]
    for key in figures:
        method, mode, positions, language = key
        own = [row for row in masks if tuple(row[k] for k in keys) == key and row["language"] == language]
        control = [
            row
            for row in rows
            if (row["method"], row["mode"], row["positions"], row["language"])
            == (RANDOM, mode, positions, language)
        ]
        if not own:
            continue
        parts = [method, *(part for part, told in zip(key[1:], several[1:], strict=True) if told)]
        title = f"Change of recall\n{method}: {style.variant_name(mode, positions)}"
        title += f"; {style.language_name(language)}" if several[3] else ""
        yield Named(file_name("deltas", parts), _figure(title, own, control))


def _figure(title: str, rows: Sequence[Row], control: Sequence[Row]) -> Any:
    masked = list(dict.fromkeys(row["masked"] for row in rows))
    evaluated = sorted(
        dict.fromkeys(row["relation"] for row in rows),
        # Relations in the order of the masks, so that the diagonal is the target; those without a mask last.
        key=lambda name: masked.index(name) if name in masked else len(masked),
    )
    sizes = sorted({(row["k"], style.size_name(row)) for row in rows})
    random = bool(control)
    n_rows, n_columns = style.grid_of(len(sizes), 3 if len(evaluated) <= 12 else 1)
    figure, axes = style.panels(
        n_rows,
        n_columns,
        width=CELL * len(evaluated) + (2.0 if n_columns == 1 else 0.9),
        height=CELL * 0.72 * (len(masked) + random) + 0.5,
        share=True,
        extra=2.2,
    )
    figure.set_size_inches(figure.get_figwidth() + 1.8, figure.get_figheight())
    flat = [one for row in axes for one in row]
    image: Any = None
    for one, (k, size) in zip(flat, sizes, strict=False):
        values = [[_mean(rows, k, masked=name, relation=other) for other in evaluated] for name in masked] + (
            [[_mean(control, k, relation=other) for other in evaluated]] if random else []
        )
        labels = [style.words(name) for name in masked] + (["random masks (mean)"] if random else [])
        image = heat_map(
            one,
            values,
            labels,
            [style.words(name) for name in evaluated],
            cmap=style.DIVERGING,
            limits=(-1, 1),
            kind="delta",
        )
        if random:
            one.axhline(len(masked) - 0.5, color="black", linewidth=1)
        one.set_title(f"{size} off")
    for one in flat[len(sizes) :]:
        one.set_visible(False)
    style.title(figure, title)
    figure.supxlabel("evaluated relation (hatched: not testable)", fontsize=9)
    figure.supylabel("masked relation", fontsize=9)
    figure.colorbar(image, ax=flat, label="change of recall", shrink=0.9, aspect=30)
    return figure


def _mean(rows: Sequence[Row], k: int, **wanted: str) -> float | None:
    """The change, of several random masks their mean; None where the relation is not testable."""
    found = [
        row["delta"]
        for row in rows
        if row["k"] == k and row["delta"] is not None and all(row[key] == v for key, v in wanted.items())
    ]
    return mean(found) if found else None
