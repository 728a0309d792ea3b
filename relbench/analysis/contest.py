"""Two scoring methods side by side: which masks are more selective, on the same facts, relations and draws.

Intervals of single methods say little about their difference: facts and relations that are easy or hard are so
for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from relbench.analysis.curve import Curve
from relbench.analysis.intervals import percentile_interval
from relbench.tables import Interval
from relbench.treatments import RANDOM


@dataclass(frozen=True)
class Contest:
    """Two methods on the same targets, off-target relations and sizes.

    Attributes:
        first, second: Their curves.
        difference: Mean selectivity of the first − that of the second.
        interval: A bootstrap over subjects and relations that draws the same ones for both.
    """

    first: Curve
    second: Curve
    difference: float
    interval: Interval | None


def contests(curves: Sequence[Curve]) -> list[Contest]:
    """Every two scoring methods that can be compared, but not the random masks.

    Returns:
        Language by language, the most selective methods first; so within each contest.
    """
    languages = list(dict.fromkeys(curve.language for curve in curves))
    return sorted(
        _contests(curves),
        key=lambda one: (
            languages.index(one.first.language),
            -one.first.mean_selectivity,
            -one.second.mean_selectivity,
        ),
    )


def _contests(curves: Sequence[Curve]) -> Iterator[Contest]:
    for pair in combinations(curves, 2):
        if RANDOM not in {curve.method for curve in pair} and _judged_alike(*pair):
            first, second = sorted(pair, key=lambda curve: -curve.mean_selectivity)
            drawn = first.drawn_selectivity - second.drawn_selectivity
            yield Contest(
                first,
                second,
                first.mean_selectivity - second.mean_selectivity,
                percentile_interval(drawn[~np.isnan(drawn)], units=len(first.relations)),
            )


def _judged_alike(first: Curve, second: Curve) -> bool:
    def judged(curve: Curve) -> tuple[object, ...]:
        sizes = [point.k for point in curve.points]
        return curve.mode, curve.positions, curve.language, curve.targets, curve.relations, curve.basis, sizes

    return judged(first) == judged(second)
