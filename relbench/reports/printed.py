"""Tables made ready for print: estimates with their intervals in one cell, and nothing said in every row."""

from __future__ import annotations

from dataclasses import dataclass

from relbench.reports.formats import NOT_REACHED, NOTHING, is_right_aligned, show_rows
from relbench.tables import Column, Table

INTERVAL = "95 % interval"


@dataclass(frozen=True)
class PrintedColumn:
    """A column of a printed table.

    Attributes:
        label: Its heading.
        right: Whether it is aligned to the right, as numbers are.
        text: Whether its cells are text that was not made here.
    """

    label: str
    right: bool
    text: bool


@dataclass(frozen=True)
class Printed:
    """A table for print.

    Attributes:
        columns: Its columns; without those that have one value throughout or none.
        rows: Cells in words [row][column].
        notes: Sentences to add to the caption: what holds in every row, what brackets are.
    """

    columns: tuple[PrintedColumn, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    @property
    def caption_end(self) -> str:
        """The notes, to stand after a caption."""
        return "".join(f" {note}" for note in self.notes)


def printed(table: Table) -> Printed:
    """Make a table ready for print.

    Intervals move into the cell of what they bound. Columns without any value are left out; those that name the
    same text, number or size in each of several rows are said in a note instead.
    """
    cells = list(zip(*show_rows(table), strict=True)) or [()] * len(table.columns)
    by_key = {column.key: number for number, column in enumerate(table.columns)}
    intervals = {column.of: column for column in table.columns if column.of in by_key}
    columns, printed_cells, everywhere = [], [], []
    brackets = False
    for column, values in zip(table.columns, cells, strict=True):
        if column.of in by_key or all(value in (NOTHING, "") for value in values):
            continue
        if _is_name(column) and len(values) > 1 and len(set(values)) == 1:
            everywhere.append(f"{column.label}: {values[0]}")
            continue
        label, interval = column.label, intervals.get(column.key)
        if interval is not None:
            bounds = cells[by_key[interval.key]]
            values = tuple(_joined(*pair) for pair in zip(values, bounds, strict=True))
            if any(bound != NOTHING for bound in bounds):
                brackets = brackets or interval.label == INTERVAL
                label += "" if interval.label == INTERVAL else f" [{interval.label}]"
        columns.append(PrintedColumn(label, is_right_aligned(column.kind), column.kind == "text"))
        printed_cells.append(values)
    notes = []
    if brackets:
        notes.append(f"In brackets: {INTERVAL}s.")
    if everywhere:
        notes.append(f"In every row: {'; '.join(everywhere)}.")
    return Printed(tuple(columns), tuple(zip(*printed_cells, strict=True)), tuple(notes))


def _joined(value: str, interval: str) -> str:
    if interval == NOTHING:
        return value
    return interval if interval == NOT_REACHED else f"{value} {interval}"


def _is_name(column: Column) -> bool:
    """Whether a column says what a row is about; estimates stay even where they are all the same."""
    return column.kind in ("text", "flag") or column.key in ("fraction", "k", "seed", "shots")
