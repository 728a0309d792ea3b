"""Ranks that do not claim more than the intervals do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relbench.tables import Interval


@dataclass(frozen=True)
class Score:
    """What an entry is ranked by.

    Attributes:
        value: None for an entry that did not get there ("not reached").
        interval: Its 95 % interval; a bound may be infinite. An entry without one is not ranked.
    """

    value: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Rank:
    """A place on a board.

    Attributes:
        number: 1 for the best; None when the entry is not ranked.
        shared: Whether another entry has the same number.
    """

    number: int | None
    shared: bool = False

    def __str__(self) -> str:
        return "–" if self.number is None else f"{self.number}{'=' if self.shared else ''}"


def ranks(scores: Sequence[Score], *, lower_is_better: bool = True) -> list[Rank]:
    """The rank of every entry: 1 + the number of entries that are better beyond doubt.

    One entry is better than another beyond doubt when its interval lies wholly on the better side of the
    other's, so that entries whose intervals overlap can share a rank. An entry that did not get there competes
    with its interval, whose upper bound is infinite. Overlap is not passed on: of three entries the first two
    may share rank 1 while the third, which the second overlaps, has rank 2.

    Args:
        scores: Of the entries of one board.
        lower_is_better: Whether small values are good.
    """
    judged = [score if lower_is_better else _mirrored(score) for score in scores]
    numbers = [_number(score, judged) for score in judged]
    return [Rank(number, number is not None and numbers.count(number) > 1) for number in numbers]


def _number(score: Score, others: Sequence[Score]) -> int | None:
    if score.interval is None:
        return None
    low = score.interval.low
    return 1 + sum(other.interval is not None and other.interval.high < low for other in others)


def _mirrored(score: Score) -> Score:
    interval = score.interval
    return Score(
        None if score.value is None else -score.value,
        None if interval is None else Interval(-interval.high, -interval.low),
    )
