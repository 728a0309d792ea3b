"""What a model recalls without any mask, beside what one constant answer would recall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relbench.analysis.intervals import proportion_interval
from relbench.samples import BASELINE, Sample
from relbench.tables import Interval


@dataclass(frozen=True)
class Recall:
    """Recall of one relation in one language, over all facts.

    Attributes:
        relation, language: Which.
        n: Number of facts.
        recall: Share of facts whose greedy continuation is an accepted answer.
        interval: Its Clopper–Pearson interval.
        majority: Share of the most common canonical answer.
    """

    relation: str
    language: str
    n: int
    recall: float
    interval: Interval
    majority: float


def recalls(samples: Iterable[Sample]) -> list[Recall]:
    """Recall of every relation and language among the baseline samples, sorted by relation."""
    grouped: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.intervention == BASELINE:
            grouped.setdefault((sample.relation, sample.language), []).append(sample)
    return [_recall(relation, language, members) for (relation, language), members in sorted(grouped.items())]


def _recall(relation: str, language: str, samples: Sequence[Sample]) -> Recall:
    n, right = len(samples), sum(sample.recall for sample in samples)
    common = Counter(sample.answer_id for sample in samples).most_common(1)[0][1]
    interval = proportion_interval(right, n)
    assert interval is not None
    return Recall(relation, language, n, right / n, interval, common / n)
