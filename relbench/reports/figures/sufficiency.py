"""Recall that is left when only a mask's units are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relbench.reports.figures import style
from relbench.reports.figures.dots import ROW, Dots, dot_plot, handles
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`sufficiency`, a panel for each method and size; language, mode and positions where there are several."""
    rows = [row for row in table.rows if row["testable"]]
    for parts, title, members in style.split(rows, ("masked_language", "mode", "positions")):
        yield Named(file_name("sufficiency", parts), _figure(title, members))


def _figure(title: str, rows: Sequence[Row]) -> Any:
    relations = list(dict.fromkeys(row["masked"] for row in rows))
    panels = list(dict.fromkeys((row["method"], row["k"], style.size_name(row)) for row in rows))
    n_rows, n_columns = style.grid_of(len(panels), 3)
    figure, axes = style.panels(
        n_rows, n_columns, width=2.6, height=ROW * len(relations) + 0.7, share=True, extra=1.2
    )
    figure.set_size_inches(figure.get_figwidth() + 1.6, figure.get_figheight())
    flat = [one for row in axes for one in row]
    shown: Sequence[Dots] = ()
    for number, (one, (method, k, size)) in enumerate(zip(flat, panels, strict=False)):
        by_relation = {row["masked"]: row for row in rows if (row["method"], row["k"]) == (method, k)}
        own = [by_relation.get(relation) for relation in relations]
        shown = (
            _dots("these units on, all others off", "#0072B2", "o", False, own, "kept"),
            _dots("as many random units on (mean)", style.GREY, "s", True, own, "random_kept"),
        )
        dot_plot(one, [style.words(relation) for relation in relations], shown)
        one.set_title(f"{method}\n{size} on")
        if number + n_columns >= len(panels):
            one.set_xlabel("share of right facts that stay right")
            one.tick_params(labelbottom=True)
    for one in flat[len(panels) :]:
        one.set_visible(False)
    flat[0].set_xlim(-0.03, 1.03)
    style.title(figure, f"Sufficiency: recall that is kept with all units off but the chosen ones{title}")
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
