"""Intervals: published examples, edges, and whether they cover the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from relbench.analysis.intervals import (
    difference_interval,
    paired_bounds,
    paired_interval,
    percentile_interval,
    proportion_bounds,
    proportion_interval,
)
from relbench.tables import Interval

LOSSES = (0.0, 0.05, 0.5, 0.95, 1.0)


def test_newcombe_paired_interval_against_published_example() -> None:
    # Newcombe 1998, table II, example (36, 12, 2, 0): method 10 gives 0.0569 to 0.3404 for before − after.
    low, high = paired_interval(36, 12, 2, 0) or (0, 0)
    assert (-high, -low) == pytest.approx((0.0569, 0.3404), abs=5e-4)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_paired_interval_holds_its_estimate(a: int, b: int, c: int, d: int) -> None:
    found = paired_interval(a, b, c, d)
    if a + b + c + d == 0:
        assert found is None
        return
    assert found is not None
    difference = (c - b) / (a + b + c + d)
    assert -1 <= found.low <= difference + 1e-12
    assert difference - 1e-12 <= found.high <= 1
    mirrored = paired_interval(a, c, b, d)
    assert mirrored == pytest.approx((-found.high, -found.low), abs=1e-9)


def test_proportion_bounds_are_scipys_exact_ones() -> None:
    n = np.arange(1, 60)
    for share in (0, 0.3, 1):
        k = np.round(share * n).astype(int)
        low, high = proportion_bounds(k, n)
        for i in range(len(n)):
            reference = stats.binomtest(int(k[i]), int(n[i])).proportion_ci(0.95, method="exact")
            assert (low[i], high[i]) == pytest.approx((reference.low, reference.high), abs=1e-12)
    assert proportion_interval(0, 0) is None


@pytest.mark.parametrize("n", [36, 71, 100])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_intervals_cover(n: int, loss: float) -> None:
    """Exactly, not by simulation: the chance of all counts whose interval holds the truth."""
    counts = np.arange(n + 1)
    low, high = proportion_bounds(counts, np.full(n + 1, n))
    covers = (low <= loss) & (loss <= high)
    assert stats.binom.pmf(counts, n, loss)[covers].sum() >= 0.95


@pytest.mark.parametrize("n", [36, 71, 100])
@pytest.mark.parametrize("loss", LOSSES)
def test_recall_change_intervals_cover(n: int, loss: float) -> None:
    generator = np.random.default_rng([n, int(100 * loss)])
    recall, gain, runs = 0.7, 0.1, 4_000
    cells = [recall * (1 - loss), recall * loss, (1 - recall) * gain, (1 - recall) * (1 - gain)]
    low, high = paired_bounds(*generator.multinomial(n, cells, runs).T)
    truth = (1 - recall) * gain - recall * loss
    assert np.mean((low <= truth + 1e-12) & (truth - 1e-12 <= high)) >= 0.93


def test_percentiles_are_moved_outwards_for_few_units() -> None:
    draws = np.random.default_rng(0).normal(size=100_000)
    plain = percentile_interval(draws)
    assert plain == pytest.approx((-1.96, 1.96), abs=0.03)
    # Student's t with 9 degrees of freedom 2.262, times √(10/9).
    assert percentile_interval(draws, units=10) == pytest.approx((-2.385, 2.385), abs=0.05)
    assert percentile_interval(draws, units=1) is percentile_interval(draws, units=2) is None
    assert percentile_interval(draws, units=3) is not None
    assert percentile_interval(np.array([1.0, np.nan])) is None
    assert percentile_interval(np.array([])) is None


def test_draws_that_were_not_reached_make_an_infinite_bound() -> None:
    found = percentile_interval(np.array([0.1] * 90 + [np.inf] * 10))
    assert found == (0.1, np.inf)


@pytest.mark.parametrize("units", [8, 11])
def test_means_over_relations_that_differ_cover(units: int) -> None:
    """A bootstrap over a dozen relations covers the mean of all relations; unexpanded percentiles do not."""
    generator = np.random.default_rng(units)
    covered, plain, runs = 0, 0, 1_000
    for _ in range(runs):
        losses = generator.beta(2, 5, units)
        draws = losses[generator.integers(0, units, (1_000, units))].mean(1)
        wide, narrow = percentile_interval(draws, units=units), percentile_interval(draws)
        assert wide is not None and narrow is not None
        covered += wide.low <= 2 / 7 <= wide.high
        plain += narrow.low <= 2 / 7 <= narrow.high
    assert covered / runs >= 0.93 > plain / runs


def test_difference_interval_by_hand_and_at_the_edges() -> None:
    found = difference_interval(0.5, Interval(0.3, 0.8), 0.2, Interval(0.1, 0.6))
    assert found == pytest.approx((0.3 - (0.2**2 + 0.4**2) ** 0.5, 0.3 + (0.3**2 + 0.1**2) ** 0.5))
    # All lost against none lost: as sure as the exact intervals, no surer.
    assert difference_interval(1.0, Interval(0.9, 1.0), 0.0, Interval(0.0, 0.0)) == pytest.approx((0.9, 1.0))
