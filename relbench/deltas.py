"""Paired change of recall: what an intervention did to the same questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from interventions.errors import UserError
from relbench.samples import Sample
from relbench.tables import Interval as Interval

CONFIDENCE = 0.95
BOOTSTRAP_DRAWS = 10_000


class Question(Protocol):
    """What pairing needs of a record: what identifies the question, and a name for messages."""

    @property
    def key(self) -> tuple[str, str, int, str, str, str]:
        """Task, filter, document id, and lm-eval's document, prompt and target hashes."""

    @property
    def name(self) -> str:
        """The question in a message."""


Q = TypeVar("Q", bound=Question)


class Pair(NamedTuple, Generic[Q]):
    """One question, asked without and with the intervention."""

    before: Q
    after: Q


@dataclass(frozen=True)
class Delta:
    """Change of recall over paired questions.

    Attributes:
        n: Number of questions.
        before, after: Recall, as shares.
        before_interval, after_interval: Their Clopper–Pearson intervals.
        delta: `after - before`.
        delta_interval: Newcombe's interval for paired proportions.
        loss: Share of the baseline-right questions that become wrong; NaN without any.
        loss_interval: Its Clopper–Pearson interval.
        gain: Share of the baseline-wrong questions that become right; NaN without any.
        gain_interval: Its Clopper–Pearson interval.
        logprob: Mean change of the canonical answer's log probability.
    """

    n: int
    before: float
    after: float
    before_interval: Interval
    after_interval: Interval
    delta: float
    delta_interval: Interval
    loss: float
    loss_interval: Interval
    gain: float
    gain_interval: Interval
    logprob: float


def pair(before: Iterable[Q], after: Iterable[Q]) -> list[Pair[Q]]:
    """Pair the records of two runs by question; order does not matter.

    Raises:
        UserError: A question stands twice in one run, or in one run only; the first is named.
    """
    first, second = _by_key(before, "the baseline"), _by_key(after, "the intervention")
    alone = sorted(first.keys() ^ second.keys())
    if alone:
        where = "the baseline" if alone[0] in first else "the intervention"
        question = first.get(alone[0]) or second[alone[0]]
        raise UserError(
            f"{len(alone)} samples do not pair, such as {question.name}, which only {where} has; "
            "both runs need the same tasks, prompts and data"
        )
    return [Pair(first[key], second[key]) for key in sorted(first)]


def _by_key(questions: Iterable[Q], run: str) -> dict[tuple[str, str, int, str, str, str], Q]:
    found: dict[tuple[str, str, int, str, str, str], Q] = {}
    for question in questions:
        if question.key in found:
            raise UserError(f"{run} has {question.name} twice; keep one of them")
        found[question.key] = question
    return found


def headline(pairs: Iterable[Pair[Sample]]) -> list[Pair[Sample]]:
    """The pairs that headline numbers rest on: facts whose answer cannot be copied from the subject."""
    return [pair for pair in pairs if not pair.before.copyable]


def delta_of(pairs: Sequence[Pair[Sample]]) -> Delta:
    """The change over `pairs`.

    Raises:
        ValueError: There are none.
    """
    if not pairs:
        raise ValueError("no pairs to compare")
    n = len(pairs)
    right = sum(pair.before.recall for pair in pairs)
    lost = sum(pair.before.recall > pair.after.recall for pair in pairs)
    gained = sum(pair.before.recall < pair.after.recall for pair in pairs)
    return Delta(
        n=n,
        before=right / n,
        after=(right - lost + gained) / n,
        before_interval=proportion_interval(right, n),
        after_interval=proportion_interval(right - lost + gained, n),
        delta=(gained - lost) / n,
        delta_interval=paired_interval(right - lost, lost, gained, n - right - gained),
        loss=lost / right if right else nan,
        loss_interval=proportion_interval(lost, right),
        gain=gained / (n - right) if n > right else nan,
        gain_interval=proportion_interval(gained, n - right),
        logprob=float(np.mean([pair.after.answer_logprob - pair.before.answer_logprob for pair in pairs])),
    )


def proportion_interval(successes: int, n: int) -> Interval:
    """Clopper–Pearson interval of a proportion; NaN for n = 0."""
    if n == 0:
        return Interval(nan, nan)
    exact = binomtest(successes, n).proportion_ci(CONFIDENCE, method="exact")
    return Interval(float(exact.low), float(exact.high))


def paired_interval(both: int, only_before: int, only_after: int, neither: int) -> Interval:
    """Interval of the difference after − before of two paired proportions.

    Newcombe's hybrid score interval (Newcombe 1998, Statistics in Medicine 17:2635, method 10): Wilson
    intervals of the two proportions, joined with their correlation. It stays honest at 0 and 1, where
    resampling and normal intervals collapse.

    Args:
        both, only_before, only_after, neither: Counts of the paired 2 × 2 table.
    """
    n = both + only_before + only_after + neither
    p_after, p_before = (both + only_after) / n, (both + only_before) / n
    after, before = _wilson(both + only_after, n), _wilson(both + only_before, n)
    product = (both + only_before) * (only_after + neither) * (both + only_after) * (only_before + neither)
    excess: float = both * neither - only_before * only_after
    # With the continuity correction of method 10 for positive correlation.
    excess = max(excess - n / 2, 0) if excess > 0 else excess
    phi = excess / sqrt(product) if product else 0.0

    def reach(a: float, b: float) -> float:
        return sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    difference = p_after - p_before
    low = difference - reach(p_after - after.low, before.high - p_before)
    high = difference + reach(after.high - p_after, p_before - before.low)
    return Interval(max(low, -1.0), min(high, 1.0))


def _wilson(successes: int, n: int) -> Interval:
    score = binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(score.low), float(score.high))


def mean_delta_interval(groups: Mapping[str, Sequence[Pair[Sample]]], *, seed: int = 0) -> Interval:
    """Bootstrap interval of the mean over relations of their delta, each relation counting the same.

    Subjects are resampled within each relation (10,000 draws); the relations themselves are fixed.

    Args:
        groups: Relation → its pairs.
        seed: Of the draws.
    """
    groups = {name: pairs for name, pairs in groups.items() if pairs}
    if not groups:
        return Interval(nan, nan)
    generator = np.random.default_rng(seed)
    total = np.zeros(BOOTSTRAP_DRAWS)
    for name in sorted(groups):
        total += _resampled(groups[name], generator)
    return _percentiles(total / len(groups))


def _resampled(pairs: Sequence[Pair[Sample]], generator: np.random.Generator) -> NDArray[np.float64]:
    """Delta of one relation in each draw [draws], its subjects drawn with replacement."""
    subjects = sorted({pair.before.subject_id for pair in pairs})
    place = {subject: number for number, subject in enumerate(subjects)}
    change, size = np.zeros(len(subjects)), np.zeros(len(subjects))
    for pair in pairs:
        change[place[pair.before.subject_id]] += pair.after.recall - pair.before.recall
        size[place[pair.before.subject_id]] += 1
    weights = generator.multinomial(
        len(subjects), np.full(len(subjects), 1 / len(subjects)), size=BOOTSTRAP_DRAWS
    )
    drawn: NDArray[np.float64] = (weights @ change) / (weights @ size)
    return drawn


def _percentiles(values: NDArray[np.float64]) -> Interval:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(float(low), float(high))


def split_by(pairs: Iterable[Pair[Sample]], key: Callable[[Sample], str]) -> dict[str, list[Pair[Sample]]]:
    """Pairs by a property of their question, in order of first appearance."""
    groups: dict[str, list[Pair[Sample]]] = {}
    for pair in pairs:
        groups.setdefault(key(pair.before), []).append(pair)
    return groups
