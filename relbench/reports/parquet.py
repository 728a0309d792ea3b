"""Tables as Parquet: full precision, typed columns, nulls for what is not there.

The schema's metadata holds the table's title and caption, each field's its label and kind. The same table gives the
same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from interventions.files import atomic_write
from relbench.reports.flat import flat_columns
from relbench.tables import Kind, Table

if TYPE_CHECKING:
    import pyarrow as pa


def write_parquet(path: str | Path, table: Table) -> None:
    """Write a table; intervals have two columns, as in CSV."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = flat_columns(table)
    schema = pa.schema(
        [
            pa.field(
                column.key,
                _type(column.kind),
                metadata={"label": column.label, "kind": column.kind},
            )
            for column in columns
        ],
        metadata={"title": table.title, "caption": table.caption},
    )
    arrays = [
        pa.array([column.value(row) for row in table.rows], field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    with atomic_write(path, "wb") as file:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file)


def _type(kind: Kind) -> pa.DataType:
    import pyarrow as pa

    if kind == "text":
        return pa.string()
    if kind == "flag":
        return pa.bool_()
    return pa.int64() if kind in ("count", "bytes") else pa.float64()
