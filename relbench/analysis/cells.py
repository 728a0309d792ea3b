"""Every treatment on every evaluated concept, with tests corrected for their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from relbench.analysis.delta import HEADLINE, Delta, deltas_of, subsets
from relbench.analysis.runs import Runs, family
from relbench.analysis.significance import adjusted
from relbench.treatments import Treatment


@dataclass(frozen=True)
class Cell:
    """One treatment on one evaluated concept, over one of the `SUBSETS` of facts.

    Attributes:
        treatment: What was done.
        evaluated: Concept that was asked for.
        facts: The subset.
        testable: Whether the concept is testable; where it is not, a loss should not be read.
        delta: The change.
        p_adjusted: `delta.p` of a testable headline cell, corrected among those of its method: by Holm over
            the targets (the diagonal), by Benjamini–Hochberg over all others; None for other cells.
    """

    treatment: Treatment
    evaluated: str
    facts: str
    testable: bool
    delta: Delta
    p_adjusted: float | None = None

    @property
    def on_target(self) -> bool:
        """Whether the mask was made for what was asked."""
        return self.treatment.concept == self.evaluated


def cells_of(runs: Runs, testable: Iterable[str]) -> list[Cell]:
    """All cells in the sweep's order: treatment by treatment, concept by concept, subset by subset.

    Args:
        runs: Paired samples.
        testable: Testable concepts.
    """
    known = frozenset(testable)
    groups = [
        (treatment, evaluated, facts, members)
        for treatment in runs.treatments
        for evaluated, pairs in runs.pairs[treatment.id].items()
        for facts, members in subsets(pairs).items()
        if members
    ]
    deltas = deltas_of([members for *_, members in groups])
    return _with_adjusted(
        [
            Cell(treatment, evaluated, facts, evaluated in known, delta)
            for (treatment, evaluated, facts, _), delta in zip(groups, deltas, strict=True)
        ]
    )


def _with_adjusted(cells: Sequence[Cell]) -> list[Cell]:
    families: dict[tuple[object, ...], list[int]] = {}
    for number, cell in enumerate(cells):
        if cell.testable and cell.facts == HEADLINE:
            families.setdefault((*family(cell.treatment), cell.on_target), []).append(number)
    found = list(cells)
    for (*_, on_target), members in families.items():
        method: Literal["holm", "fdr_bh"] = "holm" if on_target else "fdr_bh"
        for number, p in zip(members, adjusted([cells[i].delta.p for i in members], method), strict=True):
            found[number] = replace(cells[number], p_adjusted=p)
    return found


CellIndex = Mapping[tuple[str, str], Cell]


def headline_cells(cells: Iterable[Cell]) -> CellIndex:
    """(treatment, evaluated concept) → its cell over headline facts."""
    return {(c.treatment.id, c.evaluated): c for c in cells if c.facts == HEADLINE}
