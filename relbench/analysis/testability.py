"""Which relations a loss can be measured on, from the baseline alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relbench.analysis.intervals import proportion_interval
from relbench.analysis.significance import detectable_loss
from relbench.prompts import concept
from relbench.samples import BASELINE, Sample
from relbench.tables import Interval

LEAST_RIGHT = 20


@dataclass(frozen=True)
class Testability:
    """Whether a relation in a language is testable, over its headline facts (copyable ones left out).

    Attributes:
        concept: `<relation>@<lang>`.
        n, right: Headline facts, and how many of them are right at baseline.
        recall: Their share; None without any fact.
        interval: Its Clopper–Pearson interval.
        majority: Share of the most common canonical answer.
        why_not: In words, what makes it untestable; "" for a testable one.
        detectable: Smallest loss that could be detected; see `detectable_loss`.
    """

    concept: str
    n: int
    right: int
    recall: float | None
    interval: Interval | None
    majority: float | None
    why_not: str
    detectable: float | None

    @property
    def testable(self) -> bool:
        """Whether there is something that an intervention could visibly destroy."""
        return not self.why_not


def testability(samples: Iterable[Sample]) -> dict[str, Testability]:
    """Testability of every concept among the baseline samples, in order of first appearance.

    A concept is testable with at least 20 headline facts right at baseline and the lower bound of recall
    above the share of the most common answer: below that, a constant answer explains the recall.

    Args:
        samples: Of one template; samples of interventions are passed over.
    """
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.intervention == BASELINE:
            kept = grouped.setdefault(concept(sample.relation, sample.language), [])
            if not sample.copyable:
                kept.append(sample)
    return {name: _testability(name, members) for name, members in grouped.items()}


def _testability(name: str, samples: Sequence[Sample]) -> Testability:
    n, right = len(samples), sum(sample.recall for sample in samples)
    if not n:
        return Testability(name, 0, 0, None, None, None, "every answer can be copied", None)
    majority = Counter(sample.answer_id for sample in samples).most_common(1)[0][1] / n
    interval = proportion_interval(right, n)
    assert interval is not None
    why_not = ""
    if right < LEAST_RIGHT:
        why_not = f"{right} facts right at baseline, fewer than {LEAST_RIGHT}"
    elif interval.low <= majority:
        why_not = f"recall may be no more than the most common answer's share ({majority:.2f})"
    return Testability(name, n, right, right / n, interval, majority, why_not, detectable_loss(right))
