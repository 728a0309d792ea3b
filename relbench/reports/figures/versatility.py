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
    """`versatility-<method>`, a panel for each size; language where there are several."""
    # What a mask does to its units does not change which they are.
    rows = {(r["method"], r["masked_language"], r["k"], r["masked"], r["other"]): r for r in table.rows}
    kept = [row for row in rows.values() if row["jaccard"] is not None]
    for parts, title, members in style.split(kept, ("method", "masked_language")):
        yield Named(file_name("versatility", parts), _figure(title, members))


def _figure(title: str, rows: Sequence[Row]) -> Any:
    names = list(dict.fromkeys(name for row in rows for name in (row["masked"], row["other"])))
    sizes = sorted({(row["k"], style.size_name(row)) for row in rows})
    n_rows, n_columns = style.grid_of(len(sizes), 3 if len(names) <= 12 else 1)
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
    for one, (k, size) in zip(flat, sizes, strict=False):
        found: dict[tuple[str, str], Row] = {}
        for row in rows:
            if row["k"] == k:
                found[row["masked"], row["other"]] = found[row["other"], row["masked"]] = row
        values = [[_value(found.get((a, b)), "jaccard") for b in names] for a in names]
        image = heat_map(one, values, labels, labels, cmap=style.SEQUENTIAL, limits=(0, most), kind="share")
        chance = [row["expected"] for row in rows if row["k"] == k and row["expected"] is not None]
        one.set_title(f"{size}\nrandom sets share {show(max(chance), 'number')}" if chance else size)
    for one in flat[len(sizes) :]:
        one.set_visible(False)
    style.title(
        figure, f"Units that two relations share, as a share of both relations' units (Jaccard index){title}"
    )
    figure.colorbar(image, ax=flat, label="Jaccard index", shrink=0.9, aspect=30)
    return figure


def _value(row: Row | None, key: str) -> float | None:
    return None if row is None else row[key]
