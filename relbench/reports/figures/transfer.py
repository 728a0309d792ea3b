"""Units found in one language, loss in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from relbench.languages import LANGUAGES
from relbench.reports.figures import style
from relbench.reports.figures.heat import CELL, heat_map
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`transfer`, a panel for each method and size; mode and positions where there are several."""
    rows = [row for row in table.rows if row["testable"] and row["own_loss"] is not None]
    for parts, title, members in style.split(rows, ("mode", "positions")):
        yield Named(file_name("transfer", parts), _figure(title, members))


def _figure(title: str, rows: Sequence[Row]) -> Any:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    sizes = sorted({(row["k"], style.size_name(row)) for row in rows})
    found_in = _ordered(row["masked_language"] for row in rows)
    tested_in = _ordered([*found_in, *(row["language"] for row in rows)])
    panels = [(method, k, size) for method in methods for k, size in sizes]
    # Methods without a mask of a size leave a gap in their row of panels.
    figure, axes = style.panels(
        len(methods),
        len(sizes),
        width=max(1.25 * CELL * len(tested_in), 2.6),
        height=CELL * len(found_in) + 0.6,
        share=True,
        extra=1.6,
    )
    figure.set_size_inches(figure.get_figwidth() + 1.8, figure.get_figheight())
    flat = [one for row in axes for one in row]
    image: Any = None
    for one, (method, k, size) in zip(flat, panels, strict=True):
        own = [row for row in rows if (row["method"], row["k"]) == (method, k)]
        if not own:
            one.set_visible(False)
            continue
        values = [[_loss(own, a, b) for b in tested_in] for a in found_in]
        image = heat_map(
            one,
            values,
            [style.language_name(code) for code in found_in],
            [style.language_name(code) for code in tested_in],
            cmap=style.SEQUENTIAL,
            limits=(0, 1),
            kind="share",
        )
        relations = len({row["masked"] for row in own})
        one.set_title(f"{method}\n{size}; {relations} relation{'s' if relations > 1 else ''}")
    style.title(figure, f"Loss of the masked relation, mean over relations testable in both languages{title}")
    figure.supxlabel("tested in", fontsize=9)
    figure.supylabel("units found in", fontsize=9)
    figure.colorbar(image, ax=flat, label="loss", shrink=0.9, aspect=30)
    return figure


def _ordered(codes: Any) -> list[str]:
    there = set(codes)
    known = [code for code in LANGUAGES if code in there]
    return [*known, *sorted(there - set(known))]


def _loss(rows: Sequence[Row], found: str, tested: str) -> float | None:
    """Mean loss over relations; in the mask's own language each relation counts once."""
    if found == tested:
        own = {row["masked"]: row["own_loss"] for row in rows if row["masked_language"] == found}
        losses = list(own.values())
    else:
        losses = [row["loss"] for row in rows if (row["masked_language"], row["language"]) == (found, tested)]
    return mean(losses) if losses else None
