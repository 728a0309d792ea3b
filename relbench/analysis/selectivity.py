"""Selectivity of a mask: loss on its target relation less the mean loss on others, beside random masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from relbench.analysis.intervals import difference_interval, percentile_interval, proportion_interval
from relbench.analysis.offtarget import Scheme, basis
from relbench.analysis.resampling import DRAWS, Array, Losses, Resample, losses_of
from relbench.analysis.runs import Runs, controls_of
from relbench.tables import Interval
from relbench.treatments import Treatment

# Seeds that a random control's interval needs.
LEAST_SEEDS = 10


@dataclass(frozen=True)
class OffTarget:
    """Loss on a group of other relations.

    Attributes:
        concepts: The testable ones.
        mean: Mean of their losses, each counting the same.
        interval: Bootstrap over relations and subjects; Clopper–Pearson where there is one relation.
        worst: The largest of their losses.
        worst_concept: Whose it is.
    """

    concepts: tuple[str, ...]
    mean: float
    interval: Interval | None
    worst: float
    worst_concept: str


@dataclass(frozen=True)
class Control:
    """Matched random masks on the same target and the same off-target relations.

    Attributes:
        seeds: How many masks.
        target: Mean loss on the target; None when it is not testable.
        target_interval: Bootstrap over seeds and subjects; None with fewer than 10 seeds.
        off_target, off_target_interval: The same for the mean loss on the off-target relations.
        selectivity, selectivity_interval: The same for the difference.
    """

    seeds: int
    target: float | None
    target_interval: Interval | None
    off_target: float | None
    off_target_interval: Interval | None
    selectivity: float | None
    selectivity_interval: Interval | None


@dataclass(frozen=True)
class Selectivity:
    """What one mask does to its target and to other relations, over headline facts of testable relations.

    Attributes:
        treatment: The mask.
        target: Loss on its own concept; None when that is not testable.
        target_interval: Its Clopper–Pearson interval.
        off_target: Group → loss on the other relations; see `relbench.analysis.offtarget.GROUPS`.
        basis: The group that selectivity rests on; None without any.
        selectivity: Target loss − mean off-target loss of the basis; None without either.
        interval: Of the selectivity, from the intervals of both.
        control: Matched random masks; None without any.
    """

    treatment: Treatment
    target: float | None
    target_interval: Interval | None
    off_target: Mapping[str, OffTarget]
    basis: str | None
    selectivity: float | None
    interval: Interval | None
    control: Control | None


def selectivities(runs: Runs, scheme: Scheme, *, draws: int = DRAWS, seed: int = 0) -> list[Selectivity]:
    """Selectivity of every mask of a sweep, in its order.

    Args:
        runs: Paired samples.
        scheme: Testable relations and off-target groups.
        draws: Bootstrap draws.
        seed: Of the draws.
    """
    concepts = [concept for concept in runs.concepts if concept in scheme.testable]
    judge = _Judge(losses_of(runs, concepts), draws, seed)
    found = []
    for start in range(0, len(runs.masks), _BATCH):
        batch = runs.masks[start : start + _BATCH]
        judge.draw([mask.id for mask in batch])
        for mask in batch:
            groups = scheme.groups(mask.method, str(mask.concept), runs.pairs[mask.id])
            controls = controls_of(mask, runs.controls)
            found.append(_selectivity(mask, groups, controls, runs, judge))
    return found


# Masks whose draws are kept at once.
_BATCH = 64


class _Judge:
    """Draws of losses, kept while masks are judged one after the other."""

    def __init__(self, losses: Losses, draws: int, seed: int) -> None:
        self.losses = losses
        self._resample = Resample(losses, draws=draws, seed=seed)
        self._drawn: dict[tuple[str, str], Array] = {}
        self._controls: dict[tuple[str, tuple[str, ...]], Array] = {}
        self._counts: dict[tuple[int, str], Array] = {}

    def draw(self, treatments: Sequence[str]) -> None:
        """Draw the losses of these treatments, and forget those of others."""
        self._drawn = {}
        for concept, facts in self.losses.evaluated.items():
            here = [treatment for treatment in treatments if treatment in facts.lost]
            if here:
                drawn = self._resample.loss(concept, here)
                self._drawn |= {(treatment, concept): row for treatment, row in zip(here, drawn, strict=True)}

    def loss(self, treatment: str, concept: str) -> tuple[float, Interval]:
        """Loss on one concept, with its Clopper–Pearson interval."""
        facts = self.losses.evaluated[concept]
        lost, right = int(facts.lost[treatment].sum()), int(facts.right.sum())
        interval = proportion_interval(lost, right)
        assert interval is not None
        return lost / right, interval

    def off_target(self, treatment: str, concepts: Sequence[str]) -> OffTarget:
        """Loss on a group of concepts."""
        losses = [self.loss(treatment, concept) for concept in concepts]
        interval: Interval | None
        if len(concepts) == 1:
            interval = losses[0][1]
        else:
            drawn = [self._drawn[treatment, concept] for concept in concepts]
            interval = percentile_interval(self._mean(drawn), units=len(concepts))
        observed = [loss for loss, _ in losses]
        worst = int(np.argmax(observed))
        return OffTarget(
            tuple(concepts), float(np.mean(observed)), interval, observed[worst], concepts[worst]
        )

    def control(self, seeds: Sequence[str], target: str | None, others: Sequence[str]) -> Control:
        """Random masks on a target and on off-target concepts."""
        names = tuple(seeds)

        def observed(concept: str) -> float:
            facts = self.losses.evaluated[concept]
            return float(np.mean([facts.loss(name) for name in names]))

        on = None if target is None else observed(target)
        off = float(np.mean([observed(concept) for concept in others])) if others else None
        both = None if on is None or off is None else on - off
        if len(names) < LEAST_SEEDS:
            return Control(len(names), on, None, off, None, both, None)
        on_drawn = None if target is None else self._control(target, names)
        off_drawn = self._mean([self._control(c, names) for c in others]) if others else None
        units = len(names)
        least = min(units, len(others)) if len(others) > 1 else units
        return Control(
            seeds=units,
            target=on,
            target_interval=None if on_drawn is None else percentile_interval(on_drawn, units=units),
            off_target=off,
            off_target_interval=None if off_drawn is None else percentile_interval(off_drawn, units=least),
            selectivity=both,
            selectivity_interval=None
            if on_drawn is None or off_drawn is None
            else percentile_interval(on_drawn - off_drawn, units=least),
        )

    def _control(self, concept: str, names: tuple[str, ...]) -> Array:
        """Mean loss over seeds in every draw, seeds and subjects drawn, float32 [draws]."""
        if (concept, names) not in self._controls:
            drawn = self._resample.loss(concept, names)
            self._controls[concept, names] = (drawn * self._count(len(names), "seeds")).sum(0) / len(names)
        return self._controls[concept, names]

    def _mean(self, drawn: Sequence[Array]) -> Array:
        """Mean over relations in every draw, relations and subjects drawn, float32 [draws]."""
        mean: Array = (np.stack(drawn) * self._count(len(drawn), "relations")).sum(0) / len(drawn)
        return mean

    def _count(self, n: int, of: Literal["relations", "seeds"]) -> Array:
        if (n, of) not in self._counts:
            self._counts[n, of] = self._resample.draws_of(n, of)
        return self._counts[n, of]


def _selectivity(
    mask: Treatment,
    groups: Mapping[str, Sequence[str]],
    controls: Sequence[Treatment],
    runs: Runs,
    judge: _Judge,
) -> Selectivity:
    measured = mask.concept in judge.losses.evaluated and mask.concept in runs.pairs[mask.id]
    target = mask.concept if measured else None
    loss = None if target is None else judge.loss(mask.id, target)
    off = {group: judge.off_target(mask.id, concepts) for group, concepts in groups.items()}
    rests_on = basis(off)
    others = off[rests_on].concepts if rests_on else ()
    value = interval = None
    if loss is not None and rests_on is not None:
        other = off[rests_on]
        value = loss[0] - other.mean
        if other.interval is not None:
            interval = difference_interval(*loss, other.mean, other.interval)
    needed = {*others, *([target] if target else [])}
    seeds = [control.id for control in controls if needed <= runs.pairs[control.id].keys()]
    return Selectivity(
        treatment=mask,
        target=None if loss is None else loss[0],
        target_interval=None if loss is None else loss[1],
        off_target=off,
        basis=rests_on,
        selectivity=value,
        interval=interval,
        control=judge.control(seeds, target, others) if seeds and needed else None,
    )
