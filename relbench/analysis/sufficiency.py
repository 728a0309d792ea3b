"""Sufficiency: what is recalled when a mask's units are the only ones left on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relbench.analysis.cells import CellIndex
from relbench.analysis.delta import Delta
from relbench.analysis.intervals import percentile_interval, proportion_interval
from relbench.analysis.resampling import Resample, losses_of
from relbench.analysis.runs import Runs, controls_of
from relbench.analysis.selectivity import LEAST_SEEDS
from relbench.tables import Interval
from relbench.treatments import COMPLEMENT, Treatment


@dataclass(frozen=True)
class Kept:
    """A concept asked for with all units off but those of its mask.

    Attributes:
        treatment: The complement mask.
        testable: Whether the concept is.
        delta: What it does.
        kept, interval: Share of the baseline-right facts that stay right, Clopper–Pearson; None without any.
        random_kept: The mean of the same when random masks are kept; None without any.
        random_interval: Bootstrap over seeds and subjects; None with fewer than 10 seeds.
        seeds: Number of random masks.
    """

    treatment: Treatment
    testable: bool
    delta: Delta
    kept: float | None
    interval: Interval | None
    random_kept: float | None
    random_interval: Interval | None
    seeds: int


def kept_recalls(runs: Runs, cells: CellIndex, *, seed: int = 0) -> list[Kept]:
    """Every complement mask on its own concept.

    Args:
        runs: Paired samples.
        cells: Headline cells.
        seed: Of the bootstrap draws.
    """
    masks = [m for m in runs.masks if m.selection == COMPLEMENT and (m.id, str(m.concept)) in cells]
    if not masks:
        return []
    resample = Resample(losses_of(runs, {str(mask.concept) for mask in masks}), seed=seed)
    found = []
    for mask in masks:
        cell = cells[mask.id, str(mask.concept)]
        seeds = [c.id for c in controls_of(mask, runs.controls) if (c.id, cell.evaluated) in cells]
        facts = resample.losses.evaluated.get(cell.evaluated)
        random = interval = None
        if facts is not None and seeds:
            random = 1 - float(np.mean([facts.loss(control) for control in seeds]))
            if len(seeds) >= LEAST_SEEDS:
                often = resample.draws_of(len(seeds), "seeds")
                drawn = (resample.loss(cell.evaluated, seeds) * often).sum(0) / len(seeds)
                interval = percentile_interval(1 - drawn, units=len(seeds))
        right, lost = cell.delta.right, cell.delta.lost
        found.append(
            Kept(
                treatment=mask,
                testable=cell.testable,
                delta=cell.delta,
                kept=1 - lost / right if right else None,
                interval=proportion_interval(right - lost, right),
                random_kept=random,
                random_interval=interval,
                seeds=len(seeds),
            )
        )
    return found
