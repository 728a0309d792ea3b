"""How far a top-k set of units depends on the prompts that happened to be there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Stability(NamedTuple):
    """Top-k sets over replicates.

    Attributes:
        frequency: float32 [units]: share of the replicates whose top k has the unit.
        overlap: Expected share of a top-k set that another replicate's has too.
    """

    frequency: NDArray[np.float32]
    overlap: float


def top_k(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Indices of the k largest of `scores` [units]; equal ones at the edge in order of index."""
    if k >= len(scores):
        return np.arange(len(scores))
    edge = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > edge)
    return np.concatenate([above, np.flatnonzero(scores == edge)[: k - len(above)]])


def ties_at(scores: NDArray[np.float32], k: int) -> int:
    """How many units have exactly the score of rank k."""
    k = min(k, len(scores))
    edge = np.partition(scores, len(scores) - k)[len(scores) - k]
    return int((scores == edge).sum())


def jaccard(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Units in both sets over units in either; 1 for two empty ones."""
    both = len(np.intersect1d(first, second))
    either = len(first) + len(second) - both
    return both / either if either else 1.0


def stability(counts: NDArray[np.int64], replicates: int, k: int) -> Stability:
    """From how often each unit was selected.

    Args:
        counts: [units], in how many replicates the unit is in the top k.
        replicates: How many there were; at least 2.
        k: Size of each set.

    Returns:
        Frequencies, and the mean overlap over all pairs of replicates, Σ_u C(n_u, 2) / (C(R, 2) k).
    """
    pairs = float((counts * (counts - 1)).sum()) / (replicates * (replicates - 1))
    return Stability((counts / replicates).astype(np.float32), pairs / k)
