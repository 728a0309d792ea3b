"""A sweep's samples, each treatment's paired with the baseline's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from interventions.errors import UserError
from relbench.analysis.pairing import Pair, pair, split_by
from relbench.prompts import concept
from relbench.samples import BASELINE, Sample
from relbench.treatments import RANDOM, Treatment

Pairs = Sequence[Pair[Sample]]


@dataclass(frozen=True)
class Runs:
    """Paired samples of a sweep.

    Attributes:
        treatments: Everything that was done but the baseline, in the sweep's order.
        baseline: The baseline's samples.
        pairs: Treatment → evaluated concept (`<relation>@<lang>`) → pairs.
    """

    treatments: tuple[Treatment, ...]
    baseline: tuple[Sample, ...]
    pairs: Mapping[str, Mapping[str, Pairs]]

    @property
    def masks(self) -> tuple[Treatment, ...]:
        """Treatments made for a concept: all but the random controls."""
        return tuple(t for t in self.treatments if t.concept is not None)

    @property
    def controls(self) -> tuple[Treatment, ...]:
        """The random controls."""
        return tuple(t for t in self.treatments if t.method == RANDOM)


def paired_runs(treatments: Iterable[Treatment], samples: Iterable[Sample]) -> Runs:
    """Pair every treatment's samples with the baseline's.

    Args:
        treatments: Of a sweep, the baseline among them or not.
        samples: Of the baseline and of every treatment, in any order.

    Raises:
        UserError: A treatment or the baseline has no samples, or samples do not pair.
    """
    by_treatment: dict[str, list[Sample]] = {}
    for sample in samples:
        by_treatment.setdefault(sample.intervention, []).append(sample)
    treated = tuple(t for t in treatments if t.id != BASELINE)
    missing = [name for name in (BASELINE, *(t.id for t in treated)) if name not in by_treatment]
    if missing:
        raise UserError(f"there are no samples of {missing[0]}; finish the sweep first")
    baseline = by_treatment[BASELINE]
    return Runs(
        treatments=treated,
        baseline=tuple(baseline),
        pairs={t.id: _by_concept(baseline, by_treatment[t.id]) for t in treated},
    )


def _by_concept(baseline: Sequence[Sample], treated: Sequence[Sample]) -> Mapping[str, Pairs]:
    return split_by(pair(baseline, treated), lambda sample: concept(sample.relation, sample.language))
