"""Perplexity before and after, paired by document: whether a mask harms more than the relations it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from relbench.analysis.intervals import percentile_interval
from relbench.analysis.resampling import DRAWS, multiplicities, ratio_draws
from relbench.analysis.selectivity import LEAST_SEEDS
from relbench.tables import Interval


@dataclass(frozen=True)
class Perplexity:
    """Perplexity over documents without and with an intervention, or with each of several seeds.

    Attributes:
        documents, tokens: How many; predicted tokens.
        before, after: exp of the mean negative log probability of a token.
        ratio: `after / before`; of several seeds the geometric mean.
        interval: Bootstrap over documents, and over seeds where there are several (10 at least; else None);
            None for a single document.
    """

    documents: int
    tokens: int
    before: float
    after: float
    ratio: float
    interval: Interval | None


def perplexity_ratio(
    tokens: Mapping[str, int],
    before: Mapping[str, float],
    after: Sequence[Mapping[str, float]],
    *,
    seed: int = 0,
) -> Perplexity:
    """Change of perplexity over the same documents.

    Args:
        tokens: Document → number of predicted tokens.
        before: Document → sum of the tokens' natural log probabilities without the intervention.
        after: The same with it; one mapping for a mask, one a seed for a random control.
        seed: Of the bootstrap draws.

    Raises:
        ValueError: There are no documents, or not the same ones everywhere.
    """
    names = sorted(tokens)
    if not names or not after or any(run.keys() != tokens.keys() for run in (before, *after)):
        raise ValueError("perplexities pair only over the same documents")
    n = np.array([tokens[name] for name in names], float)
    old = np.array([before[name] for name in names])
    # [seeds, documents]
    new = np.array([[run[name] for name in names] for run in after])
    rise = old - new
    return Perplexity(
        documents=len(names),
        tokens=int(n.sum()),
        before=exp(-old.sum() / n.sum()),
        after=exp(-new.mean(0).sum() / n.sum()),
        ratio=exp(rise.mean(0).sum() / n.sum()),
        interval=_interval(n, rise, seed),
    )


def _interval(tokens: NDArray[np.float64], rise: NDArray[np.float64], seed: int) -> Interval | None:
    seeds, documents = rise.shape
    if documents < 2 or 1 < seeds < LEAST_SEEDS:
        return None
    generator = np.random.default_rng(seed)
    logs = ratio_draws(rise, tokens, generator)
    weights = np.ones((1, DRAWS)) if seeds == 1 else multiplicities(seeds, DRAWS, generator) / seeds
    logs = (logs * weights).sum(0)
    units = documents if seeds == 1 else min(documents, seeds)
    found = percentile_interval(logs, units=units)
    return None if found is None else Interval(exp(found.low), exp(found.high))
