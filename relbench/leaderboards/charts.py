"""Geometry of the site's small charts; its templates draw them as inline SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf

from relbench.leaderboards.boards import MethodEntry
from relbench.tables import Interval

# Distinct colours of the stylesheet; further methods take them again, with dashes.
COLOURS = 8
# Ends that an axis of losses may have.
_ENDS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Series:
    """How a method is drawn wherever it appears in a section.

    Attributes:
        css: Class of its colour.
        dash: Dash pattern of its lines, or "".
    """

    css: str
    dash: str


def series(names: Iterable[str], control: str) -> dict[str, Series]:
    """A look for every method; the random control's is grey."""
    found = {control: Series("s0", "2 3")}
    for number, name in enumerate(sorted(set(names) - {control})):
        dash = ("", "6 3", "3 3", "8 3 2 3")[number // COLOURS % 4]
        found[name] = Series(f"s{number % COLOURS + 1}", dash)
    return found


@dataclass(frozen=True)
class Line:
    """One method's curve: its look, the line's corners and its mask sizes, in the chart's coordinates."""

    name: str
    look: Series
    corners: str
    dots: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class LossChart:
    """Target loss (right) against off-target loss (up) of several methods.

    Attributes:
        width, height: Of the drawing.
        left, top, right, bottom: Edges of the plot in it.
        half: Place of 50 % target loss.
        x_ticks, y_ticks: Place and label of each tick.
        equal: Corners of the line on which target and off-target loss are equal.
        lines: Methods.
    """

    width: int
    height: int
    left: int
    top: int
    right: int
    bottom: int
    half: str
    x_ticks: tuple[tuple[str, str], ...]
    y_ticks: tuple[tuple[str, str], ...]
    equal: str
    lines: tuple[Line, ...]


def loss_chart(entries: Sequence[MethodEntry], looks: Mapping[str, Series]) -> LossChart | None:
    """The curves of one section in one language; None without any."""
    drawn = [entry for entry in entries if entry.points]
    if not drawn:
        return None
    left, top, right, bottom = 46, 12, 346, 232
    end = axis_end(point.off_target for entry in drawn for point in entry.points)

    def x(loss: float) -> str:
        return _place(left + (right - left) * min(max(loss, 0.0), 1.0))

    def y(loss: float) -> str:
        return _place(bottom - (bottom - top) * min(max(loss / end, 0.0), 1.0))

    def corners(pairs: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{x(target)},{y(off)}" for target, off in pairs)

    return LossChart(
        width=360,
        height=276,
        left=left,
        top=top,
        right=right,
        bottom=bottom,
        half=x(0.5),
        x_ticks=tuple((x(share), _share(share)) for share in (0, 0.25, 0.5, 0.75, 1)),
        y_ticks=tuple((y(end * part), _share(end * part)) for part in (0, 0.5, 1)),
        equal=corners([(0, 0), (end, end)]),
        lines=tuple(
            Line(
                name=entry.name,
                look=looks[entry.name],
                corners=corners([(0, 0), *((point.target, point.off_target) for point in entry.points)]),
                dots=tuple(
                    (
                        x(point.target),
                        y(point.off_target),
                        f"{entry.name}, {point.k:,} units: target loss {_share(point.target)}, "
                        f"off-target loss {_share(point.off_target)}",
                    )
                    for point in entry.points
                ),
            )
            for entry in drawn
        ),
    )


@dataclass(frozen=True)
class Bar:
    """A value with its interval on an axis from 0 to 1 of 100 pixels; `mark` is a second value to read it by.

    `beyond` says that the interval goes on past the axis.
    """

    at: str | None
    low: str | None
    high: str | None
    mark: str | None = None
    beyond: bool = False


def bar(
    value: float | None, interval: Interval | None, *, end: float = 1.0, mark: float | None = None
) -> Bar | None:
    """A bar on an axis that ends at `end`; None when there is nothing to draw."""

    def x(share: float) -> str:
        return _place(100 * min(max(share / end, 0.0), 1.0))

    if value is None and (interval is None or isinf(interval.low)):
        return None
    return Bar(
        at=None if value is None else x(value),
        low=None if interval is None else x(interval.low),
        high=None if interval is None else x(interval.high),
        mark=None if mark is None else x(mark),
        beyond=interval is not None and interval.high > end,
    )


def axis_end(losses: Iterable[float]) -> float:
    """Where an axis ends that holds these losses: at a tenth, a quarter, a half or one."""
    most = max(losses, default=1.0)
    return next((end for end in _ENDS if most <= end), 1.0)


def shade(share: float) -> str:
    """Class of a cell's background: a step from 0 to 10."""
    return f"h{round(10 * min(max(share, 0.0), 1.0))}"


def _place(number: float) -> str:
    return f"{number:.1f}"


def _share(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".").replace("0.", ".", 1) or "0"
