"""Tests: against enumeration and libraries, and under the null."""

from __future__ import annotations

from itertools import product
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from relbench.analysis.significance import adjusted, detectable_loss, mcnemar_p, sign_flip_p


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_statsmodels_exact_one(lost: int, gained: int) -> None:
    reference = mcnemar([[0, lost], [gained, 0]], exact=True).pvalue if lost + gained else 1.0
    assert float(mcnemar_p(lost, gained)) == pytest.approx(min(reference, 1.0))


@given(st.lists(st.integers(-1, 1), max_size=60))
def test_sign_flip_of_single_facts_is_mcnemar(changes: list[int]) -> None:
    p = sign_flip_p(changes, range(len(changes)))
    assert p == pytest.approx(float(mcnemar_p(changes.count(-1), changes.count(1))))


@given(
    st.lists(
        st.tuples(st.integers(-1, 1) | st.floats(-2, 2).map(lambda x: round(x, 2)), st.integers(0, 7)),
        min_size=1,
        max_size=20,
    )
)
def test_sign_flip_is_what_trying_all_signs_gives(facts: list[tuple[float, int]]) -> None:
    changes, clusters = [fact[0] for fact in facts], [fact[1] for fact in facts]
    sums = [sum(c for c, k in facts if k == cluster) for cluster in sorted(set(clusters))]
    observed = abs(sum(sums))
    reached = [
        abs(sum(s * x for s, x in zip(signs, sums, strict=True)))
        for signs in product((1, -1), repeat=len(sums))
    ]
    assert sign_flip_p(changes, clusters) == pytest.approx(np.mean([r >= observed - 1e-9 for r in reached]))


def test_many_real_clusters_are_drawn_with_a_seed() -> None:
    changes = np.random.default_rng(0).normal(0.2, 1, 60)
    p = sign_flip_p(changes, range(60), seed=1)
    assert p == sign_flip_p(changes, range(60), seed=1)
    assert p == pytest.approx(stats.wilcoxon(changes).pvalue, abs=0.1)
    reference = stats.permutation_test(
        (changes,), np.sum, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(2)
    )
    assert p == pytest.approx(reference.pvalue, abs=0.02)
    assert sign_flip_p(np.full(60, 1.5) + np.arange(60) / 100, range(60)) == 1 / 10_001


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
def test_under_the_null_small_p_values_are_rare(alpha: float) -> None:
    """Facts change, but as often to the better as to the worse; subjects change as one."""
    generator = np.random.default_rng(int(1000 * alpha))
    runs, subjects = 2_000, 40
    changes = generator.choice([-1, 0, 1], (runs, subjects), p=[0.15, 0.7, 0.15])
    single = mcnemar_p((changes < 0).sum(1), (changes > 0).sum(1))
    error = 3 * (alpha * (1 - alpha) / runs) ** 0.5
    assert np.mean(single <= alpha) <= alpha + error
    # Three facts a subject: a test that takes them for independent rejects too often, the clustered one not.
    facts = np.repeat(changes, 3, axis=1)
    clusters = np.repeat(np.arange(subjects), 3).tolist()
    clustered = np.array([sign_flip_p(row, clusters) for row in facts])
    assert np.mean(clustered <= alpha) <= alpha + error
    naive = mcnemar_p((facts < 0).sum(1), (facts > 0).sum(1))
    assert np.mean(naive <= alpha) > alpha + error


def test_adjustments_by_hand_leave_missing_tests_out() -> None:
    assert adjusted([0.01, None, 0.04, 0.03], "holm") == pytest.approx([0.03, None, 0.06, 0.06])
    assert adjusted([0.01, None, 0.04, 0.03], "fdr_bh") == pytest.approx([0.03, None, 0.04, 0.04])
    assert adjusted([None], "holm") == [None]
    assert adjusted([], "fdr_bh") == []


@pytest.mark.parametrize("method", ["holm", "fdr_bh"])
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_adjusted_p_values_are_those_of_statsmodels(
    method: Literal["holm", "fdr_bh"], p: list[float]
) -> None:
    assert adjusted(p, method) == pytest.approx(multipletests(p, method=method)[1].tolist())


@pytest.mark.parametrize("right", [6, 20, 71])
def test_the_detectable_loss_is_detected_with_power_80_percent(right: int) -> None:
    loss = detectable_loss(right)
    assert loss is not None
    lost = np.arange(right + 1)
    rejects = mcnemar_p(lost, np.zeros_like(lost)) <= 0.05
    assert stats.binom.pmf(lost, right, loss)[rejects].sum() == pytest.approx(0.8)
    assert stats.binom.pmf(lost, right, loss - 0.01)[rejects].sum() < 0.8


def test_too_few_facts_detect_nothing() -> None:
    assert detectable_loss(5) is None
