"""Recall of each masked relation as more units are off, a panel a relation, a line a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relbench.reports.figures import style
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table
from relbench.treatments import RANDOM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`cumulativity`, with the language, mode and positions where there are several."""
    look = style.looks(table.column("method"))
    for parts, title, rows in style.split(table.rows, ("masked_language", "mode", "positions")):
        yield Named(file_name("cumulativity", parts), _figure(title, rows, look))


def _figure(title: str, rows: Sequence[Row], look: Mapping[str, style.Look]) -> Any:
    relations = list(dict.fromkeys(row["masked"] for row in rows))
    n_rows, n_columns = style.grid_of(len(relations), 4)
    width = 4.5 if len(relations) == 1 else 2.7
    figure, axes = style.panels(n_rows, n_columns, width=width, height=2.2, share=True, extra=1.2)
    flat = [one for row in axes for one in row]
    handles: dict[str, Any] = {}
    for number, (one, relation) in enumerate(zip(flat, relations, strict=False)):
        members = [row for row in rows if row["masked"] == relation]
        note = "" if members[0]["testable"] else " (not testable)"
        one.set_title(f"{style.words(relation)}{note}")
        _panel(one, members, look, handles)
        if number % n_columns == 0:
            one.set_ylabel("recall")
        if number + n_columns >= len(relations):
            one.set_xlabel("units off")
            one.tick_params(labelbottom=True)
    for one in flat[len(relations) :]:
        one.set_visible(False)
    sizes = sorted({row["k"] for row in rows})
    flat[0].set_xscale("log")
    flat[0].set_xticks(sizes, [f"{k:,}" for k in sizes])
    flat[0].set_xticks([], minor=True)
    flat[0].set_xlim(sizes[0] / 1.4, sizes[-1] * 1.4)
    flat[0].set_ylim(-0.03, 1.03)
    style.title(figure, f"Recall of the masked relation as more units are off{title}")
    style.figure_legend(figure, handles)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], look: Mapping[str, style.Look], handles: dict[str, Any]) -> None:
    before = axes.axhline(rows[0]["recall_before"], color="black", linewidth=0.8, linestyle=":")
    handles.setdefault("before", before)
    random = {row["k"]: row["random_recall"] for row in rows if row["random_recall"] is not None}
    if random:
        sizes = sorted(random)
        color, marker, line = look[RANDOM]
        axes.plot(
            sizes,
            [random[k] for k in sizes],
            color=color,
            marker=marker,
            linestyle=line,
            linewidth=3,
            alpha=0.7,
        )
        handles.setdefault("random masks (mean)", style.method_handle(look[RANDOM], RANDOM))
    methods = [method for method in look if any(row["method"] == method for row in rows)]
    for number, method in enumerate(methods):
        members = sorted((row for row in rows if row["method"] == method), key=lambda row: row["k"])
        color, marker, line = look[method]
        # Side by side on the logarithmic axis, so that intervals do not cover each other.
        shift = 1.05 ** (number - (len(methods) - 1) / 2)
        for row in members:
            if row["recall_after_interval"] is not None:
                axes.plot(
                    [row["k"] * shift] * 2,
                    row["recall_after_interval"],
                    color=color,
                    linewidth=0.7,
                    alpha=0.6,
                )
        axes.plot(
            [row["k"] * shift for row in members],
            [row["recall_after"] for row in members],
            color=color,
            marker=marker,
            linestyle=line,
            linewidth=1.2,
            markersize=4.5,
        )
        handles.setdefault(style.method_name(method), style.method_handle(look[method], method))
