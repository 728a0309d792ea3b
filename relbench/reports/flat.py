"""Tables with one value a column, as files hold them: an interval becomes a column for each bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relbench.tables import Column, Kind, Table


@dataclass(frozen=True)
class FlatColumn:
    """A column of a file.

    Attributes:
        key: Its name: the table column's; for bounds, that of what they bound and `_low` or `_high`.
        label: Its name in words.
        kind: What it holds; "number" for bounds.
        value: Its value in a row of the table.
    """

    key: str
    label: str
    kind: Kind
    value: Callable[[Mapping[str, Any]], Any]


def flat_columns(table: Table) -> list[FlatColumn]:
    """The columns of the file that holds `table`.

    Raises:
        ValueError: Two would have the same name.
    """
    found = [flat for column in table.columns for flat in _flat(column)]
    keys = [column.key for column in found]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{table.name}: two columns of its file would be called {twice}")
    return found


def _flat(column: Column) -> list[FlatColumn]:
    if column.kind != "interval":
        return [FlatColumn(column.key, column.label, column.kind, lambda row: row[column.key])]
    return [_bound(column, number, name) for number, name in enumerate(("low", "high"))]


def _bound(column: Column, number: int, name: str) -> FlatColumn:
    def value(row: Mapping[str, Any]) -> Any:
        interval = row[column.key]
        return None if interval is None else interval[number]

    return FlatColumn(f"{column.of or column.key}_{name}", f"{column.label}, {name}", "number", value)
