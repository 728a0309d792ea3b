"""How far a top k depends on the choices behind it: ties, balancing, and the wording of the prompts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from interventions import stability
from interventions.statistical.contrasts import Contrast, thinned
from interventions.statistical.run import Run, Values, flat

if TYPE_CHECKING:
    from interventions.prompts import Prompt

# Share of k from which on ties at rank k are worth a warning; two units that tie are not.
MANY_TIES = 0.05


def ties(name: str, values: Values, concepts: Sequence[str], k: int) -> dict[str, int]:
    """Units that tie at rank k, by concept; warns when they are many."""
    found = {concept: stability.ties_at(flat(values, number), k) for number, concept in enumerate(concepts)}
    worst = max(found, key=lambda concept: found[concept])
    if found[worst] > max(2, MANY_TIES * k):
        warnings.warn(
            f"{name}: {found[worst]} units tie at rank {k} for {worst}; which of them a mask takes is "
            "arbitrary: use zero-shot prompts, more facts, or another k",
            stacklevel=3,
        )
    return found


def balance_change(
    run: Run,
    values: Values,
    plain: Sequence[Contrast],
    balanced: Sequence[Contrast],
    concepts: Sequence[str],
    k: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """How much balancing the prompts changes the top k.

    Returns:
        "jaccard": concept → Jaccard index of the top k with balancing and without it. "jaccard_as_many": the same
        between prompts drawn at random, as many as balancing left, and all; only what the first is lower by
        is due to balancing.
    """
    before = run.scores(plain)
    fewer = run.scores(thinned(plain, balanced, concepts, seed))

    def jaccard(first: Values, number: int) -> float:
        tops = (stability.top_k(flat(one, number), k) for one in (first, before))
        return round(stability.jaccard(*tops), 6)

    return {
        "jaccard": {concept: jaccard(values, number) for number, concept in enumerate(concepts)},
        "jaccard_as_many": {concept: jaccard(fewer, number) for number, concept in enumerate(concepts)},
    }


def template_overlap(
    run: Run, contrasts: Sequence[Contrast], prompts: Sequence[Prompt], concepts: Sequence[str], k: int
) -> dict[str, Any]:
    """How much of the top k is the same when units are scored from each template's prompts alone.

    Returns:
        "expected": share of k that two random sets of k units have in common; "shared": pair of templates,
        joined by "+" → concept → share of k in both tops, None where a template has too few prompts of it.
    """
    names = list(dict.fromkeys(prompt.template for prompt in prompts))
    tops: dict[str, dict[int, np.ndarray]] = {}
    for name in names:
        keep = np.array([prompt.template == name for prompt in prompts])
        least = run.statistic.least
        alone = [contrast.among(keep, least) for contrast in contrasts]
        # A statistic that compares concepts needs two of them.
        enough = 2 if run.statistic.finish is not None else 1
        alone = [contrast for contrast in alone if contrast.concepts and contrast.n_labels >= enough]
        values = run.scores(alone) if alone else {}
        scored = [number for contrast in alone for number in contrast.concepts]
        tops[name] = {number: stability.top_k(flat(values, number), k) for number in scored}
    total = sum(run.responses.size(site) for site in run.responses.sites)
    size = min(k, total)
    shared: dict[str, dict[str, float | None]] = {}
    for first, second in combinations(names, 2):
        shared[f"{first}+{second}"] = {
            concept: round(len(np.intersect1d(tops[first][number], tops[second][number])) / size, 6)
            if number in tops[first] and number in tops[second]
            else None
            for number, concept in enumerate(concepts)
        }
    return {"expected": round(size / total, 6), "shared": shared}
