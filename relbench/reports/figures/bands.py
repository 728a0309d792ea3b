"""Rank bands alone against the whole: which facts take all units to be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relbench.reports.figures import style
from relbench.reports.figures.dots import ROW, Dots, dot_plot, handles
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`bands-<method>`, a panel for each set of bands; language, mode and positions where there are several."""
    rows = [row for row in table.rows if row["testable"]]
    for parts, title, members in style.split(rows, ("method", "masked_language", "mode", "positions")):
        yield Named(file_name("bands", parts), _figure(title, members))


def _figure(title: str, rows: Sequence[Row]) -> Any:
    relations = list(dict.fromkeys(row["masked"] for row in rows))
    panels = sorted({(row["k"], row["n_bands"], row["bands"]) for row in rows})
    n_rows, n_columns = style.grid_of(len(panels), 3)
    figure, axes = style.panels(
        n_rows, n_columns, width=2.4, height=ROW * len(relations) + 0.7, share=True, extra=1.2
    )
    figure.set_size_inches(figure.get_figwidth() + 1.6, figure.get_figheight())
    flat = [one for row in axes for one in row]
    labels = [style.words(relation) for relation in relations]
    shown: Sequence[Dots] = ()
    for number, (one, (k, n_bands, bands)) in enumerate(zip(flat, panels, strict=False)):
        by_relation = {row["masked"]: row for row in rows if (row["k"], row["bands"]) == (k, bands)}
        own = [by_relation.get(relation) for relation in relations]
        shown = (
            _dots("one band alone, or any of several", "#E69F00", "s", True, own, "band_loss"),
            _dots("all units up to the last rank", "#0072B2", "o", False, own, "whole_loss"),
        )
        dot_plot(one, labels, shown)
        what = f"ranks {bands}" if n_bands == 1 else f"any of {n_bands} bands"
        one.set_title(f"{what}\nagainst all {k:,}")
        if number + n_columns >= len(panels):
            one.set_xlabel("loss")
            one.tick_params(labelbottom=True)
    for one in flat[len(panels) :]:
        one.set_visible(False)
    flat[0].set_xlim(-0.03, 1.03)
    style.title(figure, f"Loss by rank bands alone, and by the whole{title}")
    style.figure_legend(figure, handles(shown))
    return figure


def _dots(label: str, color: str, marker: str, hollow: bool, rows: Sequence[Row | None], key: str) -> Dots:
    return Dots(
        label,
        color,
        marker,
        hollow,
        [None if row is None else row[key] for row in rows],
        [None if row is None else row[f"{key}_interval"] for row in rows],
    )
