"""A sweep's samples, each treatment's paired with the baseline's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from interventions.errors import UserError
from relbench.analysis.pairing import Pair, pair, split_by
from relbench.prompts import concept
from relbench.samples import BASELINE, Sample
from relbench.treatments import RANDOM, Treatment

Pairs = Sequence[Pair[Sample]]


class Setting(NamedTuple):
    """How questions were put: the template, and the number of few-shot examples."""

    template: str
    shots: int


@dataclass(frozen=True)
class Runs:
    """Paired samples of a sweep in one setting.

    Attributes:
        treatments: Everything that was done but the baseline, in the sweep's order.
        baseline: The baseline's samples.
        pairs: Treatment → evaluated concept (`<relation>@<lang>`) → pairs.
    """

    treatments: tuple[Treatment, ...]
    baseline: tuple[Sample, ...]
    pairs: Mapping[str, Mapping[str, Pairs]]

    @property
    def concepts(self) -> tuple[str, ...]:
        """Every concept that a treatment was evaluated on, in order of first appearance."""
        return tuple(dict.fromkeys(concept for pairs in self.pairs.values() for concept in pairs))

    @property
    def masks(self) -> tuple[Treatment, ...]:
        """Treatments made for a concept: all but the random controls."""
        return tuple(t for t in self.treatments if t.concept is not None)

    @property
    def controls(self) -> tuple[Treatment, ...]:
        """The random controls."""
        return tuple(t for t in self.treatments if t.method == RANDOM)


def by_setting(samples: Iterable[Sample]) -> dict[Setting, list[Sample]]:
    """Samples by the setting that they were asked in."""
    found: dict[Setting, list[Sample]] = {}
    for sample in samples:
        found.setdefault(Setting(sample.template, sample.shots), []).append(sample)
    return found


def paired_runs(treatments: Iterable[Treatment], samples: Iterable[Sample]) -> Runs:
    """Pair every treatment's samples with the baseline's.

    Args:
        treatments: Of a sweep, the baseline among them or not.
        samples: Of the baseline and of every treatment, in one setting and any order.

    Raises:
        UserError: A treatment or the baseline has no samples, or samples do not pair.
        ValueError: The samples are of several settings.
    """
    by_treatment: dict[str, list[Sample]] = {}
    settings = set()
    for sample in samples:
        by_treatment.setdefault(sample.intervention, []).append(sample)
        settings.add((sample.template, sample.shots))
    if len(settings) > 1:
        raise ValueError("samples of several settings; pair those of one, see by_setting")
    treated = tuple(t for t in treatments if t.id != BASELINE)
    missing = [name for name in (BASELINE, *(t.id for t in treated)) if name not in by_treatment]
    if missing:
        raise UserError(f"there are no samples of {missing[0]}; finish the sweep first")
    baseline = by_treatment[BASELINE]
    return Runs(
        treatments=treated,
        baseline=tuple(baseline),
        pairs={t.id: _by_concept(_asked(baseline, t), by_treatment[t.id]) for t in treated},
    )


def _asked(baseline: Sequence[Sample], treatment: Treatment) -> Sequence[Sample]:
    """The baseline's samples of the tasks that a treatment was evaluated on."""
    if treatment.tasks is None:
        return baseline
    tasks = frozenset(treatment.tasks)
    return [sample for sample in baseline if sample.task in tasks]


def _by_concept(baseline: Sequence[Sample], treated: Sequence[Sample]) -> Mapping[str, Pairs]:
    return split_by(pair(baseline, treated), lambda sample: concept(sample.relation, sample.language))


def relation_of(concept: str) -> str:
    """The relation of `<relation>@<lang>`."""
    return concept.rpartition("@")[0]


def language_of(concept: str) -> str:
    """The language of `<relation>@<lang>`."""
    return concept.rpartition("@")[2]


def family(treatment: Treatment) -> tuple[str, ...]:
    """What treatments share that are compared with each other: method, selection, mode and positions."""
    return (treatment.method, treatment.selection, str(treatment.mode), str(treatment.positions))


def controls_of(treatment: Treatment, controls: Sequence[Treatment]) -> tuple[Treatment, ...]:
    """The random masks matched to a mask: to it alone, else to all masks of its size and selection."""
    own = tuple(control for control in controls if control.matched_to == treatment.id)
    return own or tuple(
        control
        for control in controls
        if control.matched_to is None and _variant(control) == _variant(treatment)
    )


def _variant(treatment: Treatment) -> tuple[object, ...]:
    return (
        treatment.fraction,
        treatment.k,
        treatment.selection,
        treatment.band,
        treatment.mode,
        treatment.positions,
    )
