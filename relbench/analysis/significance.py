"""Tests of paired change, and corrections for many of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

ALPHA = 0.05
POWER = 0.8
DRAWS = 10_000
# Up to so many differences every assignment of signs is tried.
EXACT_UP_TO = 14
_CHUNK = 1_000


def mcnemar_p(lost: ArrayLike, gained: ArrayLike) -> NDArray[np.float64]:
    """Two-sided p of McNemar's exact test, for facts whose subjects occur once.

    Args:
        lost, gained: Counts of facts that became wrong, and right, of equal shape.
    """
    b, c = np.asarray(lost), np.asarray(gained)
    p: NDArray[np.float64] = np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(b, c), b + c, 0.5))
    return p


def sign_flip_p(changes: ArrayLike, clusters: Sequence[object], *, seed: int = 0) -> float:
    """Two-sided p of the sign-flip test that the changes have no direction.

    Under the null each cluster's summed change is as likely to have the other sign. The statistic is the
    absolute sum of all changes. Exact for whole numbers (the sum's distribution is built up cluster by
    cluster) and for few clusters (all signs are tried); else from 10,000 seeded draws, the observed one
    counted among them.

    Args:
        changes: After − before, one a fact.
        clusters: What each fact is about; facts of one subject change together.
        seed: Of the draws.
    """
    values = np.asarray(changes, float)
    _, place = np.unique(np.array([str(cluster) for cluster in clusters]), return_inverse=True)
    sums = np.bincount(place, values, minlength=1)
    sums = np.abs(sums[sums != 0])
    observed = abs(values.sum())
    if sums.size == 0:
        return 1.0
    if np.all(sums == np.rint(sums)):
        return _exact_whole(np.rint(sums).astype(int), round(observed))
    # Sums that differ by rounding alone are equal.
    reached = observed - 1e-9 * sums.sum()
    if sums.size <= EXACT_UP_TO:
        signs = 1.0 - 2 * (np.arange(2**sums.size)[:, None] >> np.arange(sums.size) & 1)
        return float(np.mean(np.abs(signs @ sums) >= reached))
    generator = np.random.default_rng(seed)
    beyond = 0
    for _ in range(DRAWS // _CHUNK):
        signs = 2.0 * generator.integers(0, 2, (_CHUNK, sums.size)) - 1
        beyond += int(np.sum(np.abs(signs @ sums) >= reached))
    return (1 + beyond) / (1 + DRAWS)


def _exact_whole(sums: NDArray[np.int64], observed: int) -> float:
    """P(|Σ ± sums| ≥ observed), the distribution built up by one convolution a cluster."""
    reach = int(sums.sum())
    chances = np.zeros(2 * reach + 1)
    chances[reach] = 1.0
    for size in sums:
        chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2
    return float(min(1.0, chances[np.abs(np.arange(-reach, reach + 1)) >= observed].sum()))


def adjusted(p: Sequence[float | None], method: Literal["holm", "fdr_bh"]) -> list[float | None]:
    """p-values adjusted for their number; None stays None and is not counted.

    Args:
        p: p-values of one family.
        method: "holm" bounds the chance of any false rejection, "fdr_bh" (Benjamini–Hochberg) the share of
            false ones among the rejections.
    """
    given = np.array([value for value in p if value is not None])
    if not given.size:
        return list(p)
    found = iter((_holm(given) if method == "holm" else stats.false_discovery_control(given)).tolist())
    return [None if value is None else next(found) for value in p]


def _holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm (1979): the i-th smallest of n p-values times n − i + 1, none below a smaller one's, none above 1."""
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(p.size, 0, -1)
    adjusted_p = np.empty_like(p)
    adjusted_p[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted_p


def detectable_loss(right: int) -> float | None:
    """Smallest loss that McNemar's exact test finds (two-sided, α = .05) with probability .8.

    Without gains the test rejects from the smallest b with 2 · ½^b ≤ α lost facts on; the answer is the
    loss L with P(Binomial(right, L) ≥ b) = .8.

    Args:
        right: Number of baseline-right facts.

    Returns:
        The loss, or None when not even losing all of them would be found.
    """
    least = ceil(log(2 / ALPHA) / log(2))
    if right < least:
        return None
    return float(stats.beta.ppf(POWER, least, right - least + 1))
