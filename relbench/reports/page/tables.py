"""Tables as the page's script reads them: column by column, each different value once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from relbench.analysis.delta import HEADLINE
from relbench.reports.formats import bounded_kind, show
from relbench.reports.page.packing import pack_integers
from relbench.tables import Column, Table
from relbench.treatments import RANDOM

# Most values of a table that are embedded; more make a page slow to open. The changes come first, since the heat
# map and the lists of facts rest on them.
VALUES = {"deltas": 1_000_000}
OTHER_VALUES = 150_000

# Table → the columns that name the relation and language whose facts a row is about; the mask is its treatment, or
# none: the baseline.
ABOUT = {
    "recall": ("relation", "language"),
    "deltas": ("relation", "language"),
    "interference": ("relation", "language"),
    "continuations": ("relation", "language"),
    "flips": ("relation", "language"),
    "masks": ("masked", "masked_language"),
    "cumulativity": ("masked", "masked_language"),
    "bands": ("masked", "masked_language"),
    "sufficiency": ("masked", "masked_language"),
    "transfer": ("masked", "language"),
    "versatility": ("other", "masked_language"),
}
# Tables whose rows are means over masks: a row leads to these.
OVER_MASKS = ("methods", "contests", "curves")

# Filter → its name, and the columns that it looks at; a row stays when one of them has the chosen value.
FILTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "method": ("method", ("method",)),
    "masked": ("masked relation", ("masked",)),
    "mask_language": ("mask’s language", ("masked_language",)),
    "relation": ("evaluated relation", ("relation", "other")),
    "language": ("evaluated language", ("language",)),
    "k": ("units", ("k",)),
    "mode": ("mode", ("mode",)),
}


def page_table(table: Table) -> dict[str, Any]:
    """A table's columns, packed; what does not fit is left out and said in `note`."""
    rows, note = _kept(table)
    about = ABOUT.get(table.name)
    return {
        "name": table.name,
        "title": table.title,
        "n": len(rows),
        "note": note,
        "about": list(about) if about else None,
        "masks": table.name in OVER_MASKS,
        "filters": {name: list(keys) for name, keys in _filters(table).items()},
        "columns": [_column(table, column, [row[column.key] for row in rows]) for column in table.columns],
    }


def _filters(table: Table) -> Mapping[str, tuple[str, ...]]:
    # A share can have a relation's key: "other" among the classes of continuations.
    known = {column.key for column in table.columns if column.kind in ("text", "count")}
    found = {}
    for name, (_, keys) in FILTERS.items():
        here = tuple(key for key in keys if key in known)
        # A mean over masks is about the language of the masks.
        if name == "mask_language" and table.name in OVER_MASKS:
            here = ("language",)
        elif name == "language" and table.name in OVER_MASKS:
            here = ()
        if here:
            found[name] = here
    return found


def _kept(table: Table) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The rows that are embedded, and in words what is not."""
    most = VALUES.get(table.name, OTHER_VALUES) // len(table.columns)
    rows: Sequence[Mapping[str, Any]] = table.rows
    left_out: list[str] = []
    known = {column.key for column in table.columns}
    steps: tuple[tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...] = (
        ("facts", "facts other than the headline’s", lambda row: row["facts"] == HEADLINE),
        ("method", "random masks", lambda row: row["method"] != RANDOM),
    )
    for key, what, kept in steps if table.name == "deltas" else ():
        if len(rows) > most and key in known:
            rows = [row for row in rows if kept(row)]
            left_out.append(what)
    if len(rows) > most:
        rows = rows[:most]
        left_out.append(f"all after the first {most:,}")
    if not left_out:
        return rows, ""
    return rows, (
        f"{len(rows):,} of {len(table.rows):,} rows are in this page, without {' and '.join(left_out)}; "
        f"{table.name}.csv has them all."
    )


def _column(table: Table, column: Column, values: Sequence[Any]) -> dict[str, Any]:
    of = bounded_kind(table, column)
    distinct = sorted({value for value in values if value is not None}, key=_order(column))
    number = {value: index for index, value in enumerate(distinct, start=1)}
    packed: dict[str, Any] = {
        "key": column.key,
        "label": column.label,
        "kind": column.kind,
        "of": column.of,
        # Number 0 is no value; the others are numbered in the order in which they sort.
        "shown": [show(value, column.kind, of) for value in distinct],
        "index": pack_integers((0 if value is None else number[value] for value in values), len(distinct)),
    }
    if column.kind not in ("text", "flag", "interval"):
        packed["values"] = [_rounded(value) for value in distinct]
    return packed


def _order(column: Column) -> Callable[[Any], Any]:
    if column.kind == "text":
        return lambda value: (str(value).casefold(), str(value))
    return lambda value: value


def _rounded(value: float) -> float | None:
    """Six digits: more than is shown, and fewer bytes."""
    return float(f"{value:.6g}") if isfinite(value) else None


def filter_values(tables: Iterable[Table]) -> dict[str, list[str]]:
    """Filter → what can be chosen: values of its columns in any table, in the order in which they sort."""
    found: dict[str, set[Any]] = {name: set() for name in FILTERS}
    for table in tables:
        for name, keys in _filters(table).items():
            found[name].update(row[key] for key in keys for row in table.rows if row[key] is not None)
    return {
        name: [show(value, "count" if name == "k" else "text") for value in sorted(values)]
        for name, values in found.items()
        if len(values) > 1
    }
