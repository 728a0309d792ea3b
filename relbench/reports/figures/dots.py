"""Dot plots: a row a relation, estimates with intervals beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from relbench.tables import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches of a row.
ROW = 0.27


class Dots(NamedTuple):
    """One kind of estimate in every row.

    Attributes:
        label: Its name.
        color, marker: How it is drawn.
        hollow: Whether markers are empty.
        values: A value a row; None for none.
        intervals: Their intervals; None for none.
    """

    label: str
    color: str
    marker: str
    hollow: bool
    values: Sequence[float | None]
    intervals: Sequence[Interval | None]


def dot_plot(axes: Axes, labels: Sequence[str], found: Sequence[Dots]) -> None:
    """Draw estimates, the first row on top.

    Args:
        axes: Where.
        labels: Of the rows.
        found: What to draw in each.
    """
    rows = range(len(labels))
    axes.set_yticks(rows, labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    for row in rows:
        axes.axhline(row, color="#e8e8e8", linewidth=0.6, zorder=0)
    for number, one in enumerate(found):
        shift = 0.22 * (number - (len(found) - 1) / 2)
        for row in rows:
            value, interval = one.values[row], one.intervals[row]
            if value is None:
                continue
            if interval is not None:
                axes.plot(interval, [row + shift] * 2, color=one.color, linewidth=0.9, alpha=0.8, zorder=2)
            axes.plot(
                value,
                row + shift,
                color=one.color,
                marker=one.marker,
                markersize=5,
                markerfacecolor="white" if one.hollow else one.color,
                linestyle="none",
                zorder=3,
            )


def handles(found: Sequence[Dots]) -> dict[str, object]:
    """What stands for estimates in a legend."""
    from matplotlib.lines import Line2D

    return {
        one.label: Line2D(
            [],
            [],
            color=one.color,
            marker=one.marker,
            markerfacecolor="white" if one.hollow else one.color,
            linestyle="none",
        )
        for one in found
    }
