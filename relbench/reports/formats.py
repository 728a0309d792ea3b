"""How values are shown to readers: the same in Markdown, LaTeX, the terminal and the page.

Shares and their changes have two decimals and no zero before the point (.57, +.12); a value that is not 0 never
reads as 0, one below .005 has two significant digits; below 1e-9 it is a rounding error of a sum, and 0. Minus
signs are real ones (−, U+2212).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isinf
from typing import Any

from relbench.tables import Column, Kind, Table

# What is smaller than this is what the sums of floating-point numbers left.
ROUNDING = 1e-9
NOTHING, INFINITE, NOT_REACHED = "–", "∞", "not reached"
_LEFT = frozenset({"text", "flag"})


def is_right_aligned(kind: Kind) -> bool:
    """Whether a column of this kind is read as numbers."""
    return kind not in _LEFT


def bounded_kind(table: Table, column: Column) -> Kind:
    """The kind of the values that an interval column bounds; of any other column its own."""
    if column.kind != "interval":
        return column.kind
    return next((other.kind for other in table.columns if other.key == column.of), "number")


def show(value: Any, kind: Kind, of: Kind = "number") -> str:
    """A value in words.

    Args:
        value: Of a table's cell; None is shown as a dash.
        kind: What its column holds.
        of: For an interval, what it bounds (`bounded_kind`).
    """
    if value is None:
        return NOTHING
    if kind == "interval":
        low, high = value
        return NOT_REACHED if low == inf else f"[{_bound(low, of)}, {_bound(high, of)}]"
    if isinstance(value, float) and isinf(value):
        return NOT_REACHED if value > 0 else f"−{INFINITE}"
    return _SHOWN[kind](value).replace("-", "−") if is_right_aligned(kind) else _SHOWN[kind](value)


def show_rows(table: Table) -> list[list[str]]:
    """Every cell of a table in words, row by row, in the order of its columns."""
    kinds = [(column.key, column.kind, bounded_kind(table, column)) for column in table.columns]
    return [[show(row[key], kind, of) for key, kind, of in kinds] for row in table.rows]


def _bound(bound: float, of: Kind) -> str:
    if isinf(bound):
        return INFINITE if bound > 0 else f"−{INFINITE}"
    # Two decimals in any case: bounds are rough, and read beside an estimate.
    return show(round(bound, 2) + 0.0 if of in ("share", "delta", "logprob") else bound, of)


def _two_decimals(value: float) -> str:
    size = abs(value)
    if size < ROUNDING:
        return ".00"
    if size < 0.005:
        # Two significant digits, or one where the second is 0.
        exponent = int(f"{size:.1e}".partition("e")[2])
        return _bare(f"{value:.{1 - exponent}f}".rstrip("0"))
    return _bare(f"{value:.2f}")


def _bare(number: str) -> str:
    """Without the zero before the point."""
    return number.replace("0.", ".", 1) if number.lstrip("+-").startswith("0.") else number


def _signed(value: float) -> str:
    return f"+{_two_decimals(value)}" if value >= ROUNDING else _two_decimals(value)


def _number(value: float) -> str:
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def _p(value: float) -> str:
    if value < 0.001:
        return "<.001"
    return "1" if value == 1 else _bare(f"{value:.3f}")


def _seconds(value: float) -> str:
    if value < 10:
        return f"{value:.1f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _bytes(value: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.0f} {unit}" if value >= 9.95 * size else f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


_SHOWN: dict[Kind, Callable[[Any], str]] = {
    "text": str,
    "count": lambda value: f"{value:,}",
    "share": _two_decimals,
    "delta": _signed,
    "logprob": _signed,
    "number": _number,
    "p": _p,
    "seconds": _seconds,
    "bytes": _bytes,
    "flag": lambda value: "yes" if value else "no",
}
