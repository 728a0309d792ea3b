"""Paired change of recall: what an intervention did to the same questions. Loss and gain are never netted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from relbench.analysis.intervals import TAIL, Floats, interval_at, paired_bounds, proportion_bounds
from relbench.analysis.pairing import Pair, headline
from relbench.analysis.significance import mcnemar_p, sign_flip_p
from relbench.samples import Sample
from relbench.tables import Interval

# Which facts a number is about.
HEADLINE, SEEN, UNSEEN, ALL = "headline", "seen", "unseen", "all"
SUBSETS = {
    HEADLINE: "facts whose answer cannot be copied from the subject",
    SEEN: "headline facts whose answer also answers a scored fact",
    UNSEEN: "headline facts whose answer answers no scored fact",
    ALL: "all facts, copyable ones too",
}


@dataclass(frozen=True)
class Delta:
    """Change of recall over paired questions.

    Attributes:
        n: Number of questions.
        right, lost, gained: How many are right at baseline, of these become wrong, and of the others right.
        before, after: Recall, as shares.
        before_interval, after_interval: Their Clopper–Pearson intervals.
        delta: `after - before`.
        delta_interval: Newcombe's interval for paired proportions.
        loss: Share of the baseline-right questions that become wrong; None without any.
        loss_interval: Its Clopper–Pearson interval.
        gain: Share of the baseline-wrong questions that become right; None without any.
        gain_interval: Its Clopper–Pearson interval.
        p: Two-sided, of no net change: McNemar's exact test, or the sign-flip test clustered on subject
            where a subject occurs more than once.
        logprob: Mean change of the canonical answer's natural log probability.
        logprob_interval: Student's t interval over subjects; None for fewer than two.
    """

    n: int
    right: int
    lost: int
    gained: int
    before: float
    before_interval: Interval
    after: float
    after_interval: Interval
    delta: float
    delta_interval: Interval
    loss: float | None
    loss_interval: Interval | None
    gain: float | None
    gain_interval: Interval | None
    p: float
    logprob: float
    logprob_interval: Interval | None


def delta_of(pairs: Sequence[Pair[Sample]]) -> Delta:
    """The change over `pairs`.

    Raises:
        ValueError: There are none.
    """
    return deltas_of([pairs])[0]


def deltas_of(groups: Sequence[Sequence[Pair[Sample]]]) -> list[Delta]:
    """The change over each of many groups of pairs, their intervals computed together.

    Raises:
        ValueError: A group is empty.
    """
    if not all(groups):
        raise ValueError("no pairs to compare")
    counts = np.array([_counts(group) for group in groups], dtype=np.int64).reshape(-1, 4)
    n, right, lost, gained = counts.T
    before = proportion_bounds(right, n)
    after = proportion_bounds(right - lost + gained, n)
    change = paired_bounds(right - lost, lost, gained, n - right - gained)
    loss, gain = proportion_bounds(lost, right), proportion_bounds(gained, n - right)
    p = mcnemar_p(lost, gained)
    changes = [_logprob_changes(group) for group in groups]
    return [
        Delta(
            n=int(n[i]),
            right=int(right[i]),
            lost=int(lost[i]),
            gained=int(gained[i]),
            before=float(right[i] / n[i]),
            before_interval=_sure(before, i),
            after=float((right[i] - lost[i] + gained[i]) / n[i]),
            after_interval=_sure(after, i),
            delta=float((gained[i] - lost[i]) / n[i]),
            delta_interval=_sure(change, i),
            loss=float(lost[i] / right[i]) if right[i] else None,
            loss_interval=interval_at(loss, i),
            gain=float(gained[i] / (n[i] - right[i])) if n[i] > right[i] else None,
            gain_interval=interval_at(gain, i),
            p=float(p[i]) if _subjects_once(group) else _clustered_p(group),
            logprob=float(changes[i].mean()),
            logprob_interval=_mean_interval(changes[i], [one.before.subject_id for one in group]),
        )
        for i, group in enumerate(groups)
    ]


def subsets(pairs: Sequence[Pair[Sample]]) -> dict[str, list[Pair[Sample]]]:
    """The pairs of each of `SUBSETS`; some may be empty."""
    kept = headline(pairs)
    return {
        HEADLINE: kept,
        SEEN: [one for one in kept if one.before.answer_seen],
        UNSEEN: [one for one in kept if not one.before.answer_seen],
        ALL: list(pairs),
    }


def _counts(pairs: Iterable[Pair[Sample]]) -> tuple[int, int, int, int]:
    n = right = lost = gained = 0
    for before, after in pairs:
        n += 1
        right += before.recall
        lost += before.recall > after.recall
        gained += before.recall < after.recall
    return n, right, lost, gained


def _subjects_once(pairs: Sequence[Pair[Sample]]) -> bool:
    return len({one.before.subject_id for one in pairs}) == len(pairs)


def _clustered_p(pairs: Sequence[Pair[Sample]]) -> float:
    changes = [one.after.recall - one.before.recall for one in pairs]
    return sign_flip_p(changes, [one.before.subject_id for one in pairs])


def _logprob_changes(pairs: Sequence[Pair[Sample]]) -> NDArray[np.float64]:
    return np.array([one.after.answer_logprob - one.before.answer_logprob for one in pairs])


def _mean_interval(changes: NDArray[np.float64], subjects: Sequence[str]) -> Interval | None:
    """Of a mean over facts; subjects are the independent units."""
    place: dict[str, int] = {}
    clusters = [place.setdefault(subject, len(place)) for subject in subjects]
    if len(place) < 2:
        return None
    mean = changes.mean()
    residuals = np.bincount(clusters, changes - mean)
    error = np.sqrt(len(place) / (len(place) - 1) * np.sum(residuals**2)) / len(changes)
    reach = float(special.stdtrit(len(place) - 1, 1 - TAIL) * error)
    return Interval(float(mean) - reach, float(mean) + reach)


def _sure(bounds: tuple[Floats, Floats], index: int) -> Interval:
    found = interval_at(bounds, index)
    assert found is not None
    return found
