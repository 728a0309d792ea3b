"""Tables as CSV: raw numbers, an empty field for what is not there.

Numbers have six significant digits. An interval has two columns, `<key>_low` and `<key>_high`, with the key of what
it bounds. Text that a spreadsheet would take for a formula has an apostrophe before it; the Parquet file has it as
it was.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from interventions.files import atomic_write
from relbench.reports.flat import flat_columns
from relbench.tables import Kind, Table

# The second four are the fullwidth forms, which some spreadsheets read as the first.
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def write_csv(path: str | Path, table: Table) -> None:
    """Write a table; bounds that were not reached are `inf`."""
    columns = flat_columns(table)
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows([_field(column.value(row), column.kind) for column in columns] for row in table.rows)


def _field(value: Any, kind: Kind) -> str:
    if value is None:
        return ""
    if kind == "text":
        return inert(str(value))
    if kind == "flag":
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def inert(text: str) -> str:
    """`text`, with an apostrophe first where a spreadsheet would run it as a formula."""
    # Tabs and line ends may be dropped before a field is read.
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text
