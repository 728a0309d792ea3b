"""Results of a submission: tables recomputed from its samples by the code that makes every report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from relbench.analysis.cells import CellIndex, cells_of, headline_cells
from relbench.analysis.curve import curves
from relbench.analysis.runs import by_setting, paired_runs
from relbench.analysis.selectivity import selectivities
from relbench.analysis.testability import testability
from relbench.analysis.versatility import transfers
from relbench.findings.changes import curve_table, mask_table, method_table
from relbench.findings.properties import transfer_table
from relbench.findings.reading import Sweep
from relbench.findings.recall import recall_table
from relbench.leaderboards.problems import Problem, quoted
from relbench.leaderboards.submission import Row, cell_to_json
from relbench.recall import recalls
from relbench.samples import Sample
from relbench.sweep_config import SweepConfig
from relbench.tables import Table
from relbench.treatments import Treatment

# The tables of a submission's results, and what they hold.
TABLES: Mapping[str, str] = {
    "recall": "the baseline's recall of every relation and language; see findings.recall",
    "methods": "the headline of every method over all languages and in each; see findings.changes",
    "curves": "losses by mask size, over all languages and in each",
    "masks": "target loss and off-target losses of every mask",
    "transfer": "masks in other languages than their own",
    "counts": "facts right at baseline, lost and gained, of those that cannot be copied",
}
# The same samples give the same numbers but for the last bits of sums, which differ between processors.
_RELATIVE, _ABSOLUTE = 1e-7, 1e-9
# Overlaps need the masks themselves.
_TRANSFER_LEFT_OUT = ("shared", "jaccard", "expected", "expected_interval", "expected_by_layer", "p")

Results = dict[str, tuple[Row, ...]]


def sweep_of(config: SweepConfig, treatments: Sequence[Treatment], samples: Sequence[Sample]) -> Sweep:
    """A sweep as its samples tell it, without masks and without perplexity."""
    found = by_setting(samples)
    order = [(template, shots) for shots in config.shots for template in config.templates]
    settings = {key: found[key] for wanted in order for key in found if key == wanted}
    return Sweep(config, tuple(treatments), settings, documents=(), chosen={})


def results_of(sweep: Sweep) -> Results:
    """The tables of `TABLES`; those without rows are left out.

    Raises:
        UserError: The samples do not pair.
    """
    runs = paired_runs(sweep.treatments, sweep.main)
    judged = testability(runs.baseline)
    scheme = sweep.scheme(judged.values())
    index = headline_cells(cells_of(runs, scheme.testable))
    curved = curves(runs, scheme)
    tables = {
        "recall": _rows(recall_table(recalls(runs.baseline), judged)),
        "methods": _rows(method_table(curved)),
        "curves": _rows(curve_table(curved)),
        "masks": _rows(mask_table(selectivities(runs, scheme))),
        "transfer": _rows(transfer_table(transfers(runs, index, {})), _TRANSFER_LEFT_OUT),
        "counts": tuple(_counts(index)),
    }
    return {name: rows for name, rows in tables.items() if rows}


def _rows(table: Table, left_out: Sequence[str] = ()) -> tuple[Row, ...]:
    return tuple({key: row[key] for key in row if key not in left_out} for row in table.rows)


def _counts(index: CellIndex) -> Iterator[Row]:
    for (treatment, evaluated), cell in index.items():
        delta = cell.delta
        relation, _, language = evaluated.rpartition("@")
        yield {
            "treatment": treatment,
            "relation": relation,
            "language": language,
            "n": delta.n,
            "right": delta.right,
            "lost": delta.lost,
            "gained": delta.gained,
        }


def differences(file: str, given: Mapping[str, Sequence[Row]], expected: Results) -> Iterator[Problem]:
    """Where a submission's results are not those of its samples.

    Args:
        file: What the submission is called in problems.
        given: Its results.
        expected: Recomputed ones.
    """
    for name in TABLES:
        yield from _table_differences(file, f"results.{name}", given.get(name, ()), expected.get(name, ()))


def _table_differences(
    file: str, field: str, given: Sequence[Row], expected: Sequence[Row]
) -> Iterator[Problem]:
    if len(given) != len(expected):
        found = f"expected {len(expected)} rows, as recomputed from the samples, found {len(given)}"
        yield Problem(file, f"{field}.rows", found)
        return
    if expected and list(given[0]) != list(expected[0]):
        wanted = f"expected the columns {', '.join(expected[0])}"
        yield Problem(file, f"{field}.columns", f"{wanted}, found {', '.join(given[0])}")
        return
    for number, (row, right) in enumerate(zip(given, expected, strict=True)):
        for key, value in right.items():
            if not _equal(cell_to_json(row[key]), cell_to_json(value)):
                wanted = f"expected {quoted(cell_to_json(value))}, as recomputed from the samples"
                found = quoted(cell_to_json(row[key]))
                yield Problem(file, f"{field}.rows[{number}].{key}", f"{wanted}, found {found}")


def _equal(given: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        both = isinstance(given, list) and len(given) == len(expected)
        return both and all(_equal(one, other) for one, other in zip(given, expected, strict=True))
    if type(expected) is float and type(given) in (int, float):
        return isclose(given, expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return type(given) is type(expected) and bool(given == expected)
