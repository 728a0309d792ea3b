"""From a sweep directory to its findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relbench.analysis.cells import Cell, cells_of, headline_cells
from relbench.analysis.contest import contests
from relbench.analysis.continuations import flips
from relbench.analysis.cumulativity import band_losses, steps
from relbench.analysis.curve import Curve, curves
from relbench.analysis.interference import gains
from relbench.analysis.perplexity import harms
from relbench.analysis.runs import Runs, Setting, paired_runs
from relbench.analysis.selectivity import Selectivity, selectivities
from relbench.analysis.sufficiency import kept_recalls
from relbench.analysis.testability import Testability, testability
from relbench.analysis.versatility import shared_units, transfers
from relbench.findings.changes import (
    contest_table,
    curve_table,
    delta_table,
    mask_table,
    method_table,
)
from relbench.findings.harm import perplexity_table
from relbench.findings.properties import (
    band_table,
    cumulativity_table,
    interference_table,
    layer_table,
    sufficiency_table,
    template_table,
    transfer_table,
    versatility_table,
)
from relbench.findings.reading import Sweep, questions, read_sweep
from relbench.findings.recall import recall_table
from relbench.findings.said import continuation_table, flip_table
from relbench.recall import Recall, recalls
from relbench.tables import Table
from relbench.treatments import TOP_K


@dataclass(frozen=True)
class Findings:
    """What a sweep found.

    Attributes:
        recalls: Recall of the baseline, over all facts.
        testability: Which evaluated concepts are testable.
        cells: Every treatment on every evaluated concept.
        selectivities: Every mask on its target and off it.
        curves: Every scoring method over mask sizes, with its headline.
        tables: All of it as tables, and everything else: those without rows are left out.
    """

    recalls: tuple[Recall, ...]
    testability: tuple[Testability, ...]
    cells: tuple[Cell, ...]
    selectivities: tuple[Selectivity, ...]
    curves: tuple[Curve, ...]
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """The table called `name`.

        Raises:
            KeyError: There is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)


def make_findings(directory: str | Path) -> Findings:
    """Compare every treatment of a finished sweep with its baseline.

    Everything rests on the config's first template and number of shots; the others are template transfer.

    Raises:
        UserError: The directory is no finished sweep, or its samples do not pair.
    """
    sweep = read_sweep(directory)
    runs = paired_runs(sweep.treatments, sweep.main)
    judged = testability(runs.baseline)
    scheme = sweep.scheme(judged.values())
    recalled = recalls(runs.baseline)
    cells = cells_of(runs, scheme.testable)
    judgements = selectivities(runs, scheme)
    curved = curves(runs, scheme)
    tables = [
        recall_table(recalled, judged),
        method_table(curved),
        contest_table(contests(curved)),
        curve_table(curved),
        mask_table(judgements),
        *_properties(sweep, runs, cells),
        delta_table(cells),
    ]
    return Findings(
        recalls=tuple(recalled),
        testability=tuple(judged.values()),
        cells=tuple(cells),
        selectivities=tuple(judgements),
        curves=tuple(curved),
        tables=tuple(table for table in tables if table.rows),
    )


def _properties(sweep: Sweep, runs: Runs, cells: list[Cell]) -> Iterator[Table]:
    index = headline_cells(cells)
    yield cumulativity_table(steps(runs, index))
    yield band_table(band_losses(runs, index))
    yield versatility_table(shared_units(runs, index, sweep.chosen))
    yield interference_table(gains(runs, index))
    yield transfer_table(transfers(runs, index, sweep.chosen))
    yield layer_table(runs.masks, sweep.chosen)
    yield sufficiency_table(kept_recalls(runs, index))
    main, *others = sweep.settings
    yield template_table(main, [found for setting in others for found in _asked(sweep, setting, cells)])
    asked = questions(sweep.main, sweep.config.split)
    flipped = [
        (treatment, flip)
        for treatment in runs.treatments
        for pairs in runs.pairs[treatment.id].values()
        for flip in flips(pairs, asked)
    ]
    yield continuation_table(flipped)
    yield flip_table(flipped)
    yield perplexity_table(harms(sweep.treatments, sweep.documents))


def _asked(sweep: Sweep, setting: Setting, main: list[Cell]) -> Iterator[tuple[Setting, Cell, Cell | None]]:
    """Top-k masks on their own concept in another setting, beside the main one."""
    runs = paired_runs(sweep.treatments, sweep.settings[setting])
    testable = [name for name, one in testability(runs.baseline).items() if one.testable]
    own = headline_cells(main)
    for cell in headline_cells(cells_of(runs, testable)).values():
        if cell.on_target and cell.treatment.selection == TOP_K:
            yield setting, cell, own.get((cell.treatment.id, cell.evaluated))
