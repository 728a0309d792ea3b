"""Bootstrap draws of losses: subjects, and for claims over relations or seeds those too, with replacement.

One draw of the subjects serves all relations and languages, so that facts about one subject stay together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from relbench.analysis.pairing import headline
from relbench.analysis.runs import Runs
from relbench.samples import Sample

DRAWS = 10_000

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Evaluated:
    """Baseline-right headline facts of one concept by subject, and what treatments make of them.

    Attributes:
        subjects: int [s], numbers of the subjects that have such facts.
        right: float32 [s], how many.
        lost: Treatment → float32 [s], how many of them become wrong.
    """

    subjects: NDArray[np.int64]
    right: Array
    lost: Mapping[str, Array]

    def loss(self, treatment: str) -> float:
        """Share of the baseline-right facts that become wrong."""
        return float(self.lost[treatment].sum()) / float(self.right.sum())


@dataclass(frozen=True)
class Losses:
    """Evaluated concepts with baseline-right headline facts, their subjects numbered across all of them.

    Attributes:
        evaluated: Concept → its facts by subject.
        n_subjects: Number of subjects.
    """

    evaluated: Mapping[str, Evaluated]
    n_subjects: int


def losses_of(runs: Runs, concepts: Collection[str]) -> Losses:
    """Count the losses of `concepts` by subject; those without a baseline-right headline fact are left out.

    Args:
        runs: Paired samples.
        concepts: Evaluated concepts, `<relation>@<lang>`.
    """
    numbers: dict[str, int] = {}
    evaluated: dict[str, Evaluated] = {}
    for concept in concepts:
        first = next((pairs[concept] for pairs in runs.pairs.values() if concept in pairs), ())
        right = [one.before for one in headline(first) if one.before.recall]
        if not right:
            continue
        place: dict[str, int] = {}
        for sample in right:
            place.setdefault(sample.subject_id, len(place))
        for subject in place:
            numbers.setdefault(subject, len(numbers))
        evaluated[concept] = Evaluated(
            subjects=np.array([numbers[subject] for subject in place]),
            right=_by_subject(right, place),
            lost={
                treatment: _by_subject(
                    [p.before for p in headline(pairs[concept]) if p.before.recall > p.after.recall], place
                )
                for treatment, pairs in runs.pairs.items()
                if concept in pairs
            },
        )
    return Losses(evaluated, len(numbers))


def _by_subject(samples: Sequence[Sample], place: Mapping[str, int]) -> Array:
    numbers = [place[sample.subject_id] for sample in samples]
    return np.bincount(np.array(numbers, int), minlength=len(place)).astype(np.float32)


def multiplicities(n: int, draws: int, generator: np.random.Generator) -> Array:
    """How often each of n things is in each of `draws` samples of n with replacement, float32 [n, draws]."""
    chosen = generator.integers(0, n, (n, draws))
    chosen *= draws
    chosen += np.arange(draws)
    return np.bincount(chosen.ravel(), minlength=n * draws).reshape(n, draws).astype(np.float32)


def ratio_draws(
    sums: NDArray[Any], sizes: NDArray[Any], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Bootstrap draws of Σ sums / Σ sizes over clusters drawn with replacement, [draws].

    Args:
        sums, sizes: [..., clusters] and [clusters]; draws are [..., draws].
        generator: Of the draws.
    """
    n = sums.shape[-1]
    # Blocks of some tens of megabytes, however many clusters there are.
    block = max(1, min(DRAWS, 2**22 // n))
    parts = []
    for start in range(0, DRAWS, block):
        drawn = multiplicities(n, min(block, DRAWS - start), generator)
        parts.append((sums @ drawn) / (sizes @ drawn))
    return np.concatenate(parts, axis=-1)


class Resample:
    """Draws of the subjects of some losses; the same seed gives the same draws."""

    def __init__(self, losses: Losses, *, draws: int = DRAWS, seed: int = 0) -> None:
        self.losses, self.draws = losses, draws
        self._seed = seed
        self._weights = multiplicities(losses.n_subjects, draws, np.random.default_rng([seed, 0]))

    def loss(self, concept: str, treatments: Sequence[str]) -> Array:
        """Loss of one concept under several treatments in every draw, float32 [treatments, draws]."""
        evaluated = self.losses.evaluated[concept]
        weights = self._weights[evaluated.subjects]
        lost = np.stack([evaluated.lost[treatment] for treatment in treatments])
        right = evaluated.right @ weights
        drawn: Array = lost @ weights
        drawn /= np.maximum(right, 1)
        if not right.all():
            # A draw without any of the facts says nothing: the loss as observed stands in. With the 20 facts
            # of a testable concept that does not happen.
            drawn = np.where(right > 0, drawn, lost.sum(1, keepdims=True) / evaluated.right.sum())
        return drawn

    def draws_of(self, n: int, of: Literal["relations", "seeds"]) -> Array:
        """How often each of n relations or seeds is drawn, float32 [n, draws].

        Equal numbers of relations are drawn alike, so that methods can be compared draw by draw; as many seeds
        are not, for the two are independent.
        """
        role = {"relations": 1, "seeds": 2}[of]
        return multiplicities(n, self.draws, np.random.default_rng([self._seed, role, n]))
