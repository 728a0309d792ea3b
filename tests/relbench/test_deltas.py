"""Pairing and deltas: a hand-computed example, references, and what must be refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interventions.errors import UserError
from relbench.deltas import (
    delta_of,
    headline,
    mean_delta_interval,
    pair,
    paired_interval,
    proportion_interval,
)
from relbench.samples import Sample
from tests.relbench.records import sample


def _run(recalls: list[int]) -> list[Sample]:
    return [sample(number, recall) for number, recall in enumerate(recalls)]


def test_three_facts_by_hand() -> None:
    delta = delta_of(pair(_run([1, 1, 0]), _run([1, 0, 1])))
    assert (delta.n, delta.before, delta.after, delta.delta) == (3, 2 / 3, 2 / 3, 0.0)
    assert (delta.loss, delta.gain) == (1 / 2, 1.0)
    assert delta.logprob == pytest.approx(0.0)
    # Clopper–Pearson of 1 in 2: the roots of p² = .025 and 1 - (1 - p)² = .025.
    assert delta.loss_interval == pytest.approx((1 - 0.975**0.5, 0.975**0.5), abs=1e-9)


def test_order_does_not_matter_and_equal_runs_have_no_delta() -> None:
    run = _run([1, 0, 1, 1])
    delta = delta_of(pair(run, run[::-1]))
    assert (delta.delta, delta.loss, delta.gain, delta.logprob) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (_run([1, 1]), "do not pair"),
        ([*_run([1, 1, 0]), sample(7, 1)], "only the intervention"),
        ([*_run([1, 1, 0]), sample(2, 1)], "twice"),
        ([*_run([1, 1]), sample(2, 0, prompt_hash="other")], "do not pair"),
    ],
)
def test_what_does_not_pair_is_named(after: list[Sample], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pair(_run([1, 1, 0]), after)


def test_headline_leaves_copyable_facts_out() -> None:
    run = [sample(0, 1), sample(1, 1, copyable=True)]
    assert [p.before.doc_id for p in headline(pair(run, run))] == [0]


def test_newcombe_paired_interval_against_published_example() -> None:
    # Newcombe 1998, table II, example (36, 12, 2, 0): method 10 gives 0.0569 to 0.3404 for before - after.
    low, high = paired_interval(36, 12, 2, 0)
    assert (-high, -low) == pytest.approx((0.0569, 0.3404), abs=5e-4)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_paired_interval_holds_its_estimate(a: int, b: int, c: int, d: int) -> None:
    if a + b + c + d == 0:
        return
    low, high = paired_interval(a, b, c, d)
    difference = (c - b) / (a + b + c + d)
    assert -1 <= low <= difference + 1e-12
    assert difference - 1e-12 <= high <= 1
    mirrored = paired_interval(a, c, b, d)
    assert (mirrored.low, mirrored.high) == pytest.approx((-high, -low), abs=1e-9)


def test_paired_interval_covers_the_truth() -> None:
    generator = np.random.default_rng(0)
    for loss in (0.05, 0.5, 0.95):
        covered, runs, n, right = 0, 300, 40, 0.7
        for _ in range(runs):
            before = generator.random(n) < right
            after = before & (generator.random(n) >= loss)
            low, high = paired_interval(
                int((before & after).sum()),
                int((before & ~after).sum()),
                int((~before & after).sum()),
                int((~before & ~after).sum()),
            )
            covered += low <= -right * loss <= high
        assert covered / runs >= 0.92


def test_proportion_interval_edges() -> None:
    assert proportion_interval(0, 10).low == 0.0
    assert proportion_interval(10, 10).high == 1.0
    assert all(np.isnan(proportion_interval(0, 0)))


def test_mean_delta_interval_counts_relations_equally() -> None:
    small = pair(_run([1, 1]), _run([0, 0]))
    large = pair(_run([1] * 50), _run([1] * 50))
    low, high = mean_delta_interval({"a": small, "b": large})
    assert (low, high) == (-0.5, -0.5)
