"""Writing a sweep's report: the files that go beside its samples."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from interventions.files import atomic_write
from relbench.findings import Findings
from relbench.reports.csv import write_csv
from relbench.reports.figures import write_figures
from relbench.reports.latex import latex
from relbench.reports.markdown import markdown
from relbench.reports.page import write_page
from relbench.reports.parquet import write_parquet
from relbench.tables import Table

DELTAS = "deltas"


def write_report(directory: str | Path, findings: Findings) -> list[Path]:
    """Write `deltas.csv` and `.parquet`, `tables/`, `figures/` and `report.html` into a sweep directory.

    Every table but the deltas, of which there are as many as cells, is in `tables/` as CSV, Markdown and LaTeX.
    What an earlier report left in these two folders and this one does not write is deleted. The same findings
    give the same bytes.

    Returns:
        The files written. Without matplotlib there are no figures, and a line on stderr says so.
    """
    directory = Path(directory)
    written = []
    for table in findings.tables:
        if table.name == DELTAS:
            written += _write_deltas(directory, table)
        else:
            written += _write_table(directory / "tables", table)
    figures = _write_figures(directory / "figures", findings.tables)
    written += figures
    _delete_others(directory, written)
    # The page draws the relation × relation changes itself, with values to point at.
    drawn = [path for path in figures if not path.name.startswith("deltas-")]
    written.append(write_page(directory, findings, drawn))
    return written


def _write_deltas(directory: Path, table: Table) -> list[Path]:
    paths = [directory / f"{table.name}.csv", directory / f"{table.name}.parquet"]
    write_csv(paths[0], table)
    write_parquet(paths[1], table)
    return paths


def _write_table(folder: Path, table: Table) -> list[Path]:
    paths = [folder / f"{table.name}.{kind}" for kind in ("csv", "md", "tex")]
    write_csv(paths[0], table)
    for path, text in zip(paths[1:], (markdown(table), latex(table)), strict=True):
        with atomic_write(path) as file:
            file.write(text)
    return paths


def _write_figures(folder: Path, tables: Iterable[Table]) -> list[Path]:
    if find_spec("matplotlib") is None:
        print("relbench: no figures: matplotlib is missing; install relbench-lm[plots]", file=sys.stderr)
        return []
    return write_figures(folder, tables)


# What reports write: nothing else is ever deleted.
_OURS = {"tables": (".csv", ".md", ".tex"), "figures": (".svg", ".png")}


def _delete_others(directory: Path, written: Iterable[Path]) -> None:
    kept = set(written)
    for folder, endings in _OURS.items():
        for path in (directory / folder).glob("*"):
            if path.suffix in endings and path not in kept:
                path.unlink()
    for name in (f"{DELTAS}.csv", f"{DELTAS}.parquet"):
        if directory / name not in kept:
            (directory / name).unlink(missing_ok=True)
