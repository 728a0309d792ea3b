"""Scoring methods over mask sizes: target loss against off-target loss.

The headline of a method is its off-target loss where the target loss reaches 50 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relbench.analysis.intervals import percentile_interval
from relbench.analysis.offtarget import Scheme, basis
from relbench.analysis.resampling import DRAWS, Array, Losses, Resample, losses_of
from relbench.analysis.runs import Runs, language_of, relation_of
from relbench.tables import Interval
from relbench.treatments import RANDOM, TOP_K, Treatment

AT = 0.5

# In the place of a language: masks of all languages together.
ALL_LANGUAGES = "all"


@dataclass(frozen=True)
class Point:
    """All masks of one size under one method.

    Attributes:
        fraction: Share of the distinct `act` neurons; None for a size that was given as a number of units.
        k: Number of units.
        target, target_interval: Mean target loss.
        off_target, off_target_interval: Mean over masks of their mean off-target loss.
    """

    fraction: float | None
    k: int
    target: float
    target_interval: Interval | None
    off_target: float
    off_target_interval: Interval | None


@dataclass(frozen=True)
class Curve:
    """One scoring method over all mask sizes.

    Intervals are bootstraps that draw subjects and relations anew; with random masks, seeds too.

    Attributes:
        method, mode, positions: What was scored, and what the masks did.
        language: Whose masks: a language's, or `ALL_LANGUAGES`.
        basis: The off-target group that it rests on.
        targets: Testable concepts with masks of every size and off-target relations of the basis.
        relations: The targets' and those of their off-target concepts, in the order in which they are drawn.
        points: By size, smallest first.
        off_target_at_half: Off-target loss where target loss reaches 50 %; None when it does not.
        off_target_at_half_interval: Its interval; a bound is infinite where 50 % was not reached.
        reached: Share of the bootstrap draws that reach 50 %.
        k_at_half: Number of units there, interpolated on the logarithm; None when 50 % is not reached, or
            already by the smallest size.
        mean_selectivity, mean_selectivity_interval: Target − off-target loss, mean over the sizes.
        drawn_selectivity: Its bootstrap draws [draws], the same draws for curves of one sweep with the same
            `relations`; NaN where a draw left nothing to judge.
    """

    method: str
    mode: str
    positions: str
    language: str
    basis: str
    targets: tuple[str, ...]
    relations: tuple[str, ...]
    points: tuple[Point, ...]
    off_target_at_half: float | None
    off_target_at_half_interval: Interval | None
    reached: float
    k_at_half: float | None
    mean_selectivity: float
    mean_selectivity_interval: Interval | None
    drawn_selectivity: NDArray[np.float64] = field(repr=False, compare=False)


class AtHalf(NamedTuple):
    """Where curves cross 50 % target loss, each [draws].

    Attributes:
        off_target: Off-target loss there; infinite where it is not reached.
        step: Number of the size that reaches it.
        weight: How far between the size before and that one, in (0, 1].
    """

    off_target: NDArray[np.float64]
    step: NDArray[np.int64]
    weight: NDArray[np.float64]


def at_half(target: NDArray[Any], off_target: NDArray[Any]) -> AtHalf:
    """Off-target loss where the target loss first reaches 50 %, by straight lines between sizes.

    A line between two sizes in the loss–loss plane is the same as interpolating both losses on the logarithm
    of the size. A mask of no units loses nothing, so curves start at 0, 0.

    Args:
        target, off_target: [sizes, draws].
    """
    origin = np.zeros((1, target.shape[1]))
    x, y = np.vstack([origin, target]), np.vstack([origin, off_target])
    above = x >= AT
    step = above.argmax(0)
    column = np.arange(x.shape[1])
    reached = above.any(0)
    before, after = np.maximum(step - 1, 0), step
    rise = np.where(reached, x[after, column] - x[before, column], 1)
    weight = (AT - x[before, column]) / rise
    found = y[before, column] + weight * (y[after, column] - y[before, column])
    return AtHalf(np.where(reached, found, np.inf), step - 1, weight)


def curves(runs: Runs, scheme: Scheme, *, draws: int = DRAWS, seed: int = 0) -> list[Curve]:
    """The curve of every scoring method, and of the random masks, in the sweep's order.

    Where relations are masked in several languages, the curve over all of them is followed by one for the
    masks of each language. Methods without a testable target that has a testable off-target relation have
    none. Random masks are judged on the concepts that other masks were made for, when there are any.

    Args:
        runs: Paired samples.
        scheme: Testable relations and off-target groups.
        draws: Bootstrap draws.
        seed: Of the draws.
    """
    concepts = [concept for concept in runs.concepts if concept in scheme.testable]
    resample = Resample(losses_of(runs, concepts), draws=draws, seed=seed)
    families: dict[tuple[str, str, str], list[Treatment]] = {}
    for treatment in runs.treatments:
        if treatment.selection == TOP_K and treatment.k:
            key = (treatment.method, treatment.mode, treatment.positions)
            families.setdefault(key, []).append(treatment)
    found = (
        _curve(key, language, members, runs, scheme, resample)
        for key, members in families.items()
        for language in _scopes(runs)
    )
    return [curve for curve in found if curve is not None]


def _scopes(runs: Runs) -> list[str]:
    languages = list(dict.fromkeys(language_of(str(mask.concept)) for mask in runs.masks))
    return [ALL_LANGUAGES, *(languages if len(languages) > 1 else ())]


class _Size(NamedTuple):
    k: int
    fraction: float | None


class _Target(NamedTuple):
    """A masked concept, what it is judged beside, and for each size its masks (of random ones one a seed)."""

    concept: str
    others: tuple[str, ...]
    masks: tuple[tuple[str, ...], ...]


class _Means(NamedTuple):
    """Mean target and off-target losses, each [sizes, draws]."""

    target: NDArray[np.float64]
    off_target: NDArray[np.float64]


def _curve(
    key: tuple[str, str, str],
    language: str,
    treatments: Sequence[Treatment],
    runs: Runs,
    scheme: Scheme,
    resample: Resample,
) -> Curve | None:
    sizes = sorted({_Size(t.k or 0, t.fraction) for t in treatments}, key=lambda size: size.k)
    concepts = tuple(resample.losses.evaluated)
    groups = {concept: scheme.groups(key[0], concept, concepts) for concept in concepts}
    masked = {t.id: t.concept for t in runs.masks}
    by_concept = {
        concept: tuple(
            tuple(t.id for t in treatments if (t.k, t.fraction) == size and _is_for(t, concept, masked))
            for size in sizes
        )
        for concept in concepts
        if language in (ALL_LANGUAGES, language_of(concept))
    }
    complete = [concept for concept, masks in by_concept.items() if all(masks)]
    rests_on = basis({group for concept in complete for group in groups[concept]})
    if rests_on is None:
        return None
    targets = [
        _Target(concept, others, by_concept[concept])
        for concept in complete
        if (others := _met(groups[concept].get(rests_on, ()), by_concept[concept], resample.losses))
    ]
    if not targets:
        return None
    return _summary(key, language, rests_on, targets, sizes, resample)


def _met(others: Sequence[str], masks: Sequence[Sequence[str]], losses: Losses) -> tuple[str, ...]:
    """The concepts that every mask was evaluated on."""
    needed = {mask for of_size in masks for mask in of_size}
    return tuple(other for other in others if needed <= losses.evaluated[other].lost.keys())


def _is_for(treatment: Treatment, concept: str, masked: Mapping[str, str | None]) -> bool:
    """Whether `concept` is a target of the treatment: its own; of a pooled random mask all that are masked."""
    if treatment.method != RANDOM:
        return treatment.concept == concept
    if treatment.matched_to is not None:
        return masked.get(treatment.matched_to) == concept
    return not masked or concept in masked.values()


def _observed(targets: Sequence[_Target], n_sizes: int, losses: Losses) -> _Means:
    def loss(concept: str, masks: Sequence[str]) -> float:
        return float(np.mean([losses.evaluated[concept].loss(mask) for mask in masks]))

    on = np.array([[loss(t.concept, t.masks[i]) for t in targets] for i in range(n_sizes)])
    off = np.array(
        [[np.mean([loss(o, t.masks[i]) for o in t.others]) for t in targets] for i in range(n_sizes)]
    )
    return _Means(on.mean(1)[:, None], off.mean(1)[:, None])


def _drawn(targets: Sequence[_Target], n_sizes: int, names: Sequence[str], resample: Resample) -> _Means:
    """Means in every draw; a relation drawn twice counts twice, as target and as off-target.

    A draw that leaves nothing to judge is NaN.
    """
    often = dict(zip(names, resample.draws_of(len(names), "relations"), strict=True))
    seeds = max(len(masks) for t in targets for masks in t.masks)
    seed_counts = resample.draws_of(seeds, "seeds") if seeds > 1 else None
    means = np.zeros((2, n_sizes, resample.draws))
    for size in range(n_sizes):
        weights = np.zeros(resample.draws)
        for members in _by_language(targets):
            drawn = _losses(members, size, resample, seed_counts)
            for target in members:
                own = target.masks[size]
                others = np.stack([often[relation_of(other)] for other in target.others])
                total = others.sum(0)
                off = np.einsum("jd,jd->d", others, np.stack([drawn[own, o] for o in target.others]))
                # A draw without any of the target's off-target relations leaves the target out.
                weight = often[relation_of(target.concept)] * (total > 0)
                means[0, size] += weight * drawn[own, target.concept]
                means[1, size] += weight * off / np.maximum(total, 1)
                weights += weight
        means[:, size] /= np.where(weights > 0, weights, np.nan)
    return _Means(*means)


def _losses(
    targets: Sequence[_Target], size: int, resample: Resample, seed_counts: Array | None
) -> dict[tuple[tuple[str, ...], str], Array]:
    """Draws [draws] by masks and evaluated concept; of several seeds their mean, seeds drawn too."""
    needed: dict[str, dict[tuple[str, ...], None]] = {}
    for target in targets:
        for concept in (target.concept, *target.others):
            needed.setdefault(concept, {})[target.masks[size]] = None
    found: dict[tuple[tuple[str, ...], str], Array] = {}
    for concept, sets in needed.items():
        rows = iter(resample.loss(concept, [mask for masks in sets for mask in masks]))
        for masks in sets:
            drawn = np.stack([next(rows) for _ in masks])
            if seed_counts is None:
                found[masks, concept] = drawn[0]
            else:
                often = seed_counts[: len(masks)]
                found[masks, concept] = (drawn * often).sum(0) / np.maximum(often.sum(0), 1)
    return found


def _by_language(targets: Iterable[_Target]) -> Iterable[list[_Target]]:
    languages: dict[str, list[_Target]] = {}
    for target in targets:
        languages.setdefault(language_of(target.concept), []).append(target)
    return languages.values()


def _summary(
    key: tuple[str, str, str],
    language: str,
    rests_on: str,
    targets: Sequence[_Target],
    sizes: Sequence[_Size],
    resample: Resample,
) -> Curve:
    names = tuple(dict.fromkeys(relation_of(c) for t in targets for c in (t.concept, *t.others)))
    observed = _observed(targets, len(sizes), resample.losses)
    every = _drawn(targets, len(sizes), names, resample)
    kept = ~np.isnan([every.target, every.off_target]).any((0, 1))
    drawn = _Means(every.target[:, kept], every.off_target[:, kept])
    seeds = max(len(masks) for t in targets for masks in t.masks)
    units = min(len(names), seeds) if key[0] == RANDOM else len(names)
    half, halves = at_half(*observed), at_half(*drawn)
    reached = bool(np.isfinite(half.off_target[0]))
    return Curve(
        method=key[0],
        mode=key[1],
        positions=key[2],
        language=language,
        basis=rests_on,
        targets=tuple(t.concept for t in targets),
        relations=names,
        points=tuple(
            Point(
                fraction=size.fraction,
                k=size.k,
                target=float(observed.target[i, 0]),
                target_interval=percentile_interval(drawn.target[i], units=units),
                off_target=float(observed.off_target[i, 0]),
                off_target_interval=percentile_interval(drawn.off_target[i], units=units),
            )
            for i, size in enumerate(sizes)
        ),
        off_target_at_half=float(half.off_target[0]) if reached else None,
        off_target_at_half_interval=percentile_interval(halves.off_target, units=units),
        reached=float(np.isfinite(halves.off_target).mean()),
        k_at_half=_size(half, sizes) if reached else None,
        mean_selectivity=float((observed.target - observed.off_target).mean()),
        mean_selectivity_interval=percentile_interval((drawn.target - drawn.off_target).mean(0), units=units),
        drawn_selectivity=(every.target - every.off_target).mean(0),
    )


def _size(half: AtHalf, sizes: Sequence[_Size]) -> float | None:
    step, weight = int(half.step[0]), float(half.weight[0])
    if step == 0:
        return None
    before, after = log(sizes[step - 1].k), log(sizes[step].k)
    return exp(before + weight * (after - before))
