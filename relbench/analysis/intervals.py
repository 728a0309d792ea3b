"""Confidence intervals, 95 %, one at a time and for many cells at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from relbench.tables import Interval

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2
# Things that must be resampled for an interval over them.
LEAST_UNITS = 3

Floats = NDArray[np.floating[Any]]


def interval_at(bounds: tuple[Floats, Floats], index: int) -> Interval | None:
    """One of many intervals; None where there is nothing to estimate."""
    low, high = float(bounds[0][index]), float(bounds[1][index])
    return None if np.isnan(low) or np.isnan(high) else Interval(low, high)


def proportion_bounds(successes: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats]:
    """Clopper–Pearson bounds of proportions; NaN where n is 0.

    Args:
        successes, n: Counts of equal shape.
    """
    k, n = np.asarray(successes, float), np.asarray(n, float)
    with np.errstate(invalid="ignore"):
        low = np.where(k == 0, 0.0, special.betaincinv(k, n - k + 1, TAIL))
        high = np.where(k == n, 1.0, special.betaincinv(k + 1, n - k, 1 - TAIL))
    empty = n == 0
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def proportion_interval(successes: int, n: int) -> Interval | None:
    """Clopper–Pearson interval of a proportion; None for n = 0."""
    return interval_at(proportion_bounds([successes], [n]), 0)


def paired_bounds(
    both: ArrayLike, only_before: ArrayLike, only_after: ArrayLike, neither: ArrayLike
) -> tuple[Floats, Floats]:
    """Bounds of the difference after − before of two paired proportions.

    Newcombe's hybrid score interval (Newcombe 1998, Statistics in Medicine 17:2635, method 10): Wilson
    intervals of the two proportions, joined with their correlation. It stays honest at 0 and 1, where
    resampling and normal intervals collapse.

    Args:
        both, only_before, only_after, neither: Counts of the paired 2 × 2 tables, of equal shape.
    """
    a, b, c, d = (np.asarray(count, float) for count in (both, only_before, only_after, neither))
    n = a + b + c + d
    with np.errstate(invalid="ignore", divide="ignore"):
        before, after = (a + b) / n, (a + c) / n
        before_low, before_high = _wilson(before, n)
        after_low, after_high = _wilson(after, n)
        product = (a + b) * (c + d) * (a + c) * (b + d)
        excess = a * d - b * c
        # With the continuity correction of method 10 for positive correlation.
        excess = np.where(excess > 0, np.maximum(excess - n / 2, 0), excess)
        phi = np.where(product > 0, excess / np.sqrt(product), 0.0)
        difference = after - before
        low = difference - _reach(after - after_low, before_high - before, phi)
        high = difference + _reach(after_high - after, before - before_low, phi)
    return np.maximum(low, -1.0), np.minimum(high, 1.0)


def _reach(a: Floats, b: Floats, phi: Floats) -> Floats:
    return np.sqrt(np.maximum(a * a - 2 * phi * a * b + b * b, 0.0))


def _wilson(p: Floats, n: Floats) -> tuple[Floats, Floats]:
    z = stats.norm.ppf(1 - TAIL)
    centre = p + z * z / (2 * n)
    reach = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At 0 and 1 the bound is the proportion itself; rounding may put it just beyond.
    return np.minimum((centre - reach) / scale, p), np.maximum((centre + reach) / scale, p)


def paired_interval(both: int, only_before: int, only_after: int, neither: int) -> Interval | None:
    """`paired_bounds` of one table; None for an empty one."""
    return interval_at(paired_bounds([both], [only_before], [only_after], [neither]), 0)


def percentile_interval(draws: Floats, *, units: int | None = None) -> Interval | None:
    """Percentile interval of a statistic's bootstrap draws [draws]; None without any, or with NaN among them.

    With few units the percentiles are moved outwards, as Student's t is wider than the normal distribution
    (Hesterberg 2015, The American Statistician 69:371, expanded percentile interval). Bounds are drawn
    values, so that infinite draws ("not reached") give an infinite bound.

    Args:
        draws: Values of the statistic.
        units: Number of independent things that were resampled, such as relations; None for many. One or two
            cannot show how they vary: there is no interval.
    """
    if draws.size == 0 or np.isnan(draws).any() or (units is not None and units < LEAST_UNITS):
        return None
    tail = TAIL
    if units is not None:
        reach = np.sqrt(units / (units - 1)) * stats.t.ppf(1 - TAIL, units - 1)
        tail = float(stats.norm.sf(reach))
    low, high = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
    return Interval(float(low), float(high))


def difference_interval(first: float, of_first: Interval, second: float, of_second: Interval) -> Interval:
    """Interval of first − second from an interval of each.

    Zou & Donner 2008 (Statistics in Medicine 27:1693), for independent estimates; wider than needed when they
    rise and fall together. Unlike a bootstrap it keeps what an exact interval says at 0 and 1.
    """
    difference = first - second
    low = difference - np.hypot(first - of_first.low, of_second.high - second)
    high = difference + np.hypot(of_first.high - first, second - of_second.low)
    return Interval(float(max(low, -1.0)), float(min(high, 1.0)))
