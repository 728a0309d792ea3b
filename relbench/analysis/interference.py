"""Interference: facts that become right when another relation's units are off."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from relbench.analysis.cells import Cell, CellIndex
from relbench.analysis.pairing import headline
from relbench.analysis.runs import Runs, controls_of


@dataclass(frozen=True)
class Gain:
    """Facts that a mask makes right.

    Attributes:
        cell: The mask on the evaluated concept; its `delta.gain` is the share of the wrong facts.
        facts: Ids of the gained facts, sorted.
        random_gain: Mean gain under its random controls; None without any.
        seeds: Number of those.
    """

    cell: Cell
    facts: tuple[str, ...]
    random_gain: float | None
    seeds: int


def gains(runs: Runs, cells: CellIndex) -> list[Gain]:
    """Every mask and evaluated concept with gained facts, the largest gain first."""
    found = []
    for mask in runs.masks:
        controls = controls_of(mask, runs.controls)
        for evaluated, pairs in runs.pairs[mask.id].items():
            cell = cells.get((mask.id, evaluated))
            if cell is None or not cell.delta.gained:
                continue
            random = [
                cells[control.id, evaluated].delta.gain
                for control in controls
                if (control.id, evaluated) in cells
            ]
            known = [gain for gain in random if gain is not None]
            facts = (p.before.fact_id for p in headline(pairs) if p.before.recall < p.after.recall)
            found.append(Gain(cell, tuple(sorted(facts)), mean(known) if known else None, len(known)))
    return sorted(found, key=lambda gain: -(gain.cell.delta.gain or 0.0))
