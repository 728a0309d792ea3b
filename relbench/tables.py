"""Tables: what the statistics hand to everything that renders them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal, NamedTuple

# What a column holds, and so how its values are shown: text, count (an integer), share (0 … 1), delta (a
# signed change of a share), logprob (a signed change of a natural log probability), number (any other), p (a
# p-value), interval (an `Interval`), seconds, bytes, flag (true or false).
Kind = Literal[
    "text",
    "count",
    "share",
    "delta",
    "logprob",
    "number",
    "p",
    "interval",
    "seconds",
    "bytes",
    "flag",
]


class Interval(NamedTuple):
    """A 95 % confidence interval; a bound that was not reached is infinite."""

    low: float
    high: float


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name in files.
        label: Its name in words, for readers.
        kind: What it holds.
        of: For an interval, the key of the column whose values it bounds.
    """

    key: str
    label: str
    kind: Kind
    of: str | None = None


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        name: Its file name without ending; unique within what is rendered together.
        title: What it shows, in words.
        caption: How to read it: definitions, tests, what was left out.
        columns: Its columns, in order.
        rows: Key → value; None for what is not there: nothing to estimate, not testable, not reached.

    Raises:
        ValueError: A row's keys are not the columns', or a value is NaN.
    """

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        keys = [column.key for column in self.columns]
        for row in self.rows:
            if list(row) != keys:
                raise ValueError(f"a row of {self.name} has the keys {list(row)}, not {keys}")
            for key, value in row.items():
                if isinstance(value, float) and isnan(value):
                    raise ValueError(f"{self.name}: {key} is NaN; None says that there is no value")

    def column(self, key: str) -> list[Any]:
        """The values of one column, row by row."""
        return [row[key] for row in self.rows]


def make_table(
    name: str, title: str, caption: str, columns: Iterable[Column], rows: Iterable[Iterable[Any]]
) -> Table:
    """A table from rows of values in the order of the columns."""
    columns = tuple(columns)
    keys = [column.key for column in columns]
    made = tuple(dict(zip(keys, row, strict=True)) for row in rows)
    return Table(name, title, caption, columns, made)
