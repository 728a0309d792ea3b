"""Statistics of responses: how well each unit tells the prompts of a concept from the others.

Every statistic is a function of responses [prompts, units] (floats, finite) and integer labels [prompts]
that returns scores [concepts, units] in float32 on the device of the responses. For concept c the positives
are the prompts labelled c, the negatives all others; label -1 marks a prompt that is a negative only. Signs
are kept: a unit that is quieter on the concept has a low score (AP and AUROC below chance) or a negative one.
`STATISTICS` lists them by the name of their scoring method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from interventions.ranking import Ranked, ranked_scores

# Units a chunk of the moment statistics, which work in float64.
CHUNK_BYTES = 32 << 20


def _check(responses: Tensor, labels: Tensor, n_concepts: int, least: int = 1) -> list[int]:
    """Positives of each concept.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, or a concept with fewer than `least`
            positives or negatives.
    """
    if responses.ndim != 2 or labels.shape != responses.shape[:1]:
        raise ValueError(
            f"responses {tuple(responses.shape)} and labels {tuple(labels.shape)} do not fit: "
            "they are [prompts, units] and [prompts]"
        )
    if n_concepts < 1 or len(labels) == 0 or int(labels.min()) < -1 or int(labels.max()) >= n_concepts:
        raise ValueError(f"labels must lie in -1 … {n_concepts - 1}, and there must be prompts")
    counts: list[int] = torch.bincount(labels.long() + 1, minlength=n_concepts + 1)[1:].tolist()
    for concept, positives in enumerate(counts):
        if min(positives, len(labels) - positives) < least:
            raise ValueError(
                f"concept {concept} has {positives} positives and {len(labels) - positives} negatives; "
                f"at least {least} of each are needed"
            )
    return counts


def average_precision(responses: Tensor, labels: Tensor, n_concepts: int) -> Tensor:
    """Average precision of the response as a classifier of the concept's prompts, in (0, 1].

    AP = Σ_n (R_n − R_{n−1}) P_n over the distinct responses as thresholds, with ties as scikit-learn's
    `average_precision_score` handles them: equal responses are one threshold. Chance is the share of
    positives. Kojima et al. 2024 and the relation-specific neurons paper (arXiv 2502.17355) select by it.
    """
    counts = _check(responses, labels, n_concepts)

    def score(ranked: Ranked) -> Any:
        # Precision at a positive's threshold: positives at least as strong over prompts at least as strong.
        precision = ranked.within / ranked.last
        return _stack(
            [precision[:, group].sum(axis=1) / n for group, n in zip(ranked.groups, counts, strict=True)]
        )

    return ranked_scores(responses, labels, n_concepts, score)


def auroc(responses: Tensor, labels: Tensor, n_concepts: int) -> Tensor:
    """Area under the ROC curve: P(positive > negative) + ½ P(equal), from the Mann-Whitney U statistic.

    0.5 is chance, below it the unit is quieter on the concept. Equals scikit-learn's `roc_auc_score`.
    """
    counts = _check(responses, labels, n_concepts)

    def score(ranked: Ranked) -> Any:
        twice = ranked.first + ranked.last
        columns = []
        for group, n in zip(ranked.groups, counts, strict=True):
            negatives = ranked.n_prompts - n
            ranks = twice[:, group].sum(axis=1) / 2
            columns.append((n * negatives + n * (n + 1) / 2 - ranks) / (n * negatives))
        return _stack(columns)

    return ranked_scores(responses, labels, n_concepts, score)


def mutual_information(responses: Tensor, labels: Tensor, n_concepts: int, *, bins: int = 10) -> Tensor:
    """Mutual information, in nats, of the response's quantile bin and "the prompt is of the concept".

    I = Σ_b Σ_y p(b, y) log(p(b, y) / (p(b) p(y))), the plug-in estimate over `bins` bins of equal
    occupancy; a tie group falls into one bin whole, by its middle rank. Never negative: it does not tell a
    louder unit from a quieter one.
    """
    if bins < 2:
        raise ValueError(f"mutual information needs at least 2 bins, not {bins}")
    counts = _check(responses, labels, n_concepts)

    def score(ranked: Ranked) -> Any:
        n = ranked.n_prompts
        twice = ranked.first + ranked.last  # twice the middle rank, in 2 … 2n
        rest = slice(ranked.groups[-1].stop, n)
        parts = [twice[:, group] for group in (*ranked.groups, rest)]
        below = [[0.0 * part.sum(axis=1) for part in parts]]
        for edge in range(1, bins + 1):
            # A rank r covers (r - 1, r] of n; the middle of that says in which bin it lies.
            limit = 2 * n * edge / bins + 1
            below.append([1.0 * (part <= limit).sum(axis=1) for part in parts])
        columns = [0.0 * below[0][0] for _ in counts]
        for lower, upper in pairwise(below):
            joint = [high - low for low, high in zip(lower, upper, strict=True)]
            occupancy = sum(joint)
            for concept, positives in enumerate(counts):
                hit, miss = joint[concept], occupancy - joint[concept]
                columns[concept] = (
                    columns[concept]
                    + _information(hit / n, occupancy * (positives / n / n))
                    + _information(miss / n, occupancy * ((n - positives) / n / n))
                )
        return _stack(columns)

    return ranked_scores(responses, labels, n_concepts, score)


def _information(joint: Any, independent: Any) -> Any:
    """joint · log(joint / independent), 0 where joint is 0; for NumPy and torch alike."""
    xp: Any = torch if isinstance(joint, Tensor) else np
    safe = xp.where(joint > 0, joint, 1.0)
    return joint * (xp.log(safe) - xp.log(xp.where(joint > 0, independent, 1.0)))


def _stack(columns: list[Any]) -> Any:
    return torch.stack(columns, dim=1) if isinstance(columns[0], Tensor) else np.stack(columns, axis=1)


class Moments(NamedTuple):
    """Means and sums of squared deviations of positives (1) and negatives (0), float64 [concepts, units]."""

    n1: Tensor
    n0: Tensor
    mean1: Tensor
    mean0: Tensor
    squares1: Tensor
    squares0: Tensor


def _by_moments(
    responses: Tensor, labels: Tensor, n_concepts: int, function: Callable[[Moments], Tensor], least: int = 1
) -> Tensor:
    """Scores from each side's mean and spread, chunk by chunk of units, in float64."""
    counts = _check(responses, labels, n_concepts, least)
    device = responses.device
    n_prompts, n_units = responses.shape
    member = (labels.to(device)[None, :] == torch.arange(n_concepts, device=device)[:, None]).double()
    n1 = torch.tensor(counts, dtype=torch.float64, device=device)[:, None]
    n0 = n_prompts - n1
    out = torch.empty(n_concepts, n_units, dtype=torch.float32, device=device)
    step = max(1, CHUNK_BYTES // (16 * n_prompts))
    for start in range(0, n_units, step):
        block = responses[:, start : start + step].double()
        # Centring first keeps the sums of squares from cancelling.
        centre = block.mean(dim=0)
        block = block - centre
        sum1 = member @ block
        sum0 = block.sum(dim=0) - sum1
        block = block.square_()
        square1 = member @ block
        square0 = block.sum(dim=0) - square1
        mean1, mean0 = sum1 / n1, sum0 / n0
        moments = Moments(
            n1,
            n0,
            mean1 + centre,
            mean0 + centre,
            (square1 - n1 * mean1.square()).clamp_min(0),
            (square0 - n0 * mean0.square()).clamp_min(0),
        )
        out[:, start : start + step] = function(moments).float()
    return out


def _ratio(difference: Tensor, scale: Tensor) -> Tensor:
    """difference / scale, 0 where a constant unit leaves no scale."""
    return torch.where(scale > 0, difference / torch.where(scale > 0, scale, 1.0), 0.0)


def mean_difference(responses: Tensor, labels: Tensor, n_concepts: int) -> Tensor:
    """Mean response to the concept's prompts minus the mean response to the others."""
    return _by_moments(responses, labels, n_concepts, lambda m: m.mean1 - m.mean0)


def cohens_d(responses: Tensor, labels: Tensor, n_concepts: int) -> Tensor:
    """Cohen's d: the mean difference over the pooled standard deviation (Cohen 1988, §2.5).

    0 for a constant unit.
    """

    def score(m: Moments) -> Tensor:
        pooled = ((m.squares1 + m.squares0) / (m.n1 + m.n0 - 2)).sqrt()
        return _ratio(m.mean1 - m.mean0, pooled)

    return _by_moments(responses, labels, n_concepts, score, least=2)


def welch_t(responses: Tensor, labels: Tensor, n_concepts: int) -> Tensor:
    """Welch's t (1947): the mean difference over its standard error, each side with its own variance.

    0 for a constant unit.
    """

    def score(m: Moments) -> Tensor:
        error = m.squares1 / (m.n1 * (m.n1 - 1)) + m.squares0 / (m.n0 * (m.n0 - 1))
        return _ratio(m.mean1 - m.mean0, error.sqrt())

    return _by_moments(responses, labels, n_concepts, score, least=2)


def point_biserial(responses: Tensor, labels: Tensor, n_concepts: int) -> Tensor:
    """Pearson's correlation of the response and the 0/1 label; 0 for a constant unit."""

    def score(m: Moments) -> Tensor:
        n = m.n1 + m.n0
        difference = m.mean1 - m.mean0
        between = m.n1 * m.n0 / n
        total = m.squares1 + m.squares0 + between * difference.square()
        return _ratio(difference * between.sqrt(), total.sqrt())

    return _by_moments(responses, labels, n_concepts, score)


def lape(responses: Tensor, labels: Tensor, n_concepts: int, *, activity_quantile: float = 0.95) -> Tensor:
    """Language activation probability entropy (Tang et al. 2024), made a score for each concept.

    `responses` are shares of a prompt's tokens on which the unit is positive (pooling "positive-share").
    With p_c their mean over the concept's prompts and q = p / Σ_c p_c, a unit's entropy is
    H = −Σ_c q_c log q_c. Its score is log C − H for the concepts on which it is active, p_c at or above the
    `activity_quantile` of all p_c of all units given, and 0 for the others. Prompts of label -1 are left out.
    The quantile is taken over the units given, so hand over all of them.

    Raises:
        ValueError: Fewer than 2 concepts, between which there is no entropy.
    """
    return lape_scores(
        activation_probability(responses, labels, n_concepts), activity_quantile=activity_quantile
    )


def activation_probability(responses: Tensor, labels: Tensor, n_concepts: int) -> Tensor:
    """Mean response of each concept's prompts, [concepts, units]: p_c of `lape`."""
    return _by_moments(responses, labels, n_concepts, lambda m: m.mean1)


def lape_scores(probability: Tensor, *, activity_quantile: float = 0.95) -> Tensor:
    """`lape` from the activation probabilities [concepts, units] of all units."""
    n_concepts = len(probability)
    if n_concepts < 2:
        raise ValueError("activation probability entropy needs at least 2 concepts to compare")
    if not 0 <= activity_quantile <= 1:
        raise ValueError(f"activity_quantile {activity_quantile} does not lie in 0 … 1")
    # The mean of zeros may have been rounded to just below zero.
    probability = probability.double().clamp_min(0)
    share = probability / probability.sum(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    entropy = -torch.special.xlogy(share, share).sum(dim=0)
    # torch.quantile refuses more than 16 million values.
    ordered = probability.flatten().sort().values
    threshold = ordered[min(len(ordered) - 1, math.ceil(activity_quantile * len(ordered)))]
    active = (probability >= threshold) & (probability > 0)
    return torch.where(active, math.log(n_concepts) - entropy, 0.0).float()


def probe(
    responses: Tensor, labels: Tensor, n_concepts: int, *, strength: float = 1.0, seed: int = 0
) -> Tensor:
    """Weight of each unit in an L1-regularised logistic classifier of the concept against the rest.

    Units are standardised; classes are balanced by weight; scikit-learn's liblinear solver. The weights of
    the units given compete with each other. Gurnee et al. 2023 use sparse probes this way. The costly
    reference: hours where the others take seconds.

    Args:
        responses, labels, n_concepts: As for every statistic.
        strength: scikit-learn's `C`, the inverse of the penalty.
        seed: Of the solver's shuffling.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    _check(responses, labels, n_concepts)
    block = responses.double().cpu().numpy()
    spread = block.std(axis=0)
    block = (block - block.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    truth = labels.cpu().numpy()
    weights = np.empty((n_concepts, block.shape[1]), dtype=np.float32)
    for concept in range(n_concepts):
        classifier = LogisticRegression(
            l1_ratio=1.0, C=strength, solver="liblinear", class_weight="balanced", random_state=seed
        )
        with warnings.catch_warnings():
            # The order of the weights is settled long before the solver's tolerance is met.
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(block, truth == concept)
        weights[concept] = classifier.coef_[0]
    return torch.from_numpy(weights).to(responses.device)


def random(n_concepts: int, n_units: int, generator: torch.Generator) -> Tensor:
    """Uniform scores in [0, 1) that look at nothing: the control of every table."""
    return torch.rand(n_concepts, n_units, generator=generator, device=generator.device)


@dataclass(frozen=True)
class Statistic:
    """A statistic as a scoring method runs it.

    Attributes:
        function: (responses, labels, n_concepts, **options) → scores [concepts, units].
        pooling: The pooling it is defined on.
        least: Positives and negatives it needs at least.
        options: Its own options with their defaults.
        whole: Its units compete, so a site may not be split into blocks.
        finish: Turns the scores of all units together into the final ones, given the options.
    """

    function: Callable[..., Tensor]
    pooling: str = "mean"
    least: int = 1
    options: Mapping[str, object] = field(default_factory=dict)
    whole: bool = False
    finish: Callable[..., Tensor] | None = None


STATISTICS: dict[str, Statistic] = {
    "average-precision": Statistic(average_precision),
    "auroc": Statistic(auroc),
    "mean-difference": Statistic(mean_difference),
    "cohens-d": Statistic(cohens_d, least=2),
    "welch-t": Statistic(welch_t, least=2),
    "point-biserial": Statistic(point_biserial),
    "mutual-information": Statistic(mutual_information, options={"bins": 10}),
    "lape": Statistic(
        activation_probability,
        pooling="positive-share",
        options={"activity_quantile": 0.95},
        finish=lape_scores,
    ),
    "probe": Statistic(probe, options={"strength": 1.0, "seed": 0}, whole=True),
}
