"""Random controls: masks of as many units in the same places, to compare a chosen mask with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.algebra import same_model
from interventions.errors import UserError
from interventions.mask import FFN_NEURON, Indices, Mask, layout_for
from interventions.model_id import ModelId
from interventions.scores import Floats, References, Scores
from interventions.selection import check_k, gather_references
from interventions.units import Site, UnitLayout, site_order

DECILES = 10


def random_like(
    mask: Mask,
    layout: UnitLayout | None = None,
    *,
    seed: int,
    disjoint: bool = False,
    contribution: Mapping[Site, Floats] | None = None,
    scores: Scores | None = None,
    concept: str | None = None,
) -> Mask:
    """Random units, as many in each site as the mask has there.

    Args:
        mask: The mask to match.
        layout: Of the model; by default the one the mask carries.
        seed: Equal seeds give equal masks.
        disjoint: Leave the mask's own units out of the draw.
        contribution: Site → [units], mean |m|·‖v‖ of every unit: draw also as many from each of its deciles
            within the site. Where a decile runs out of units, the nearest lower one with units gives them
            (then the nearest higher), and the provenance counts them as `spilled`.
        scores: To fill in the reference statistics of the drawn units, for modes other than zero and scale.
        concept: Whose statistics; by default the concept that the mask was made for.

    Raises:
        UserError: No layout; too few units left to be disjoint; `contribution` lacks a site.
    """
    layout = layout_for(mask, layout)
    generator = np.random.default_rng(seed)
    units: dict[Site, Indices] = {}
    spilled = 0
    for site, own in mask.units.items():
        size = layout.size(site.kind)
        pool = np.setdiff1d(np.arange(size), own) if disjoint else np.arange(size)
        if own.size > pool.size:
            raise UserError(
                f"{site} has {size} units and the mask {own.size} of them: a disjoint draw is impossible"
            )
        if contribution is None:
            chosen = generator.choice(pool, own.size, replace=False)
        else:
            deciles = _deciles(site, size, contribution)
            chosen, extra = _by_decile(generator, deciles, own, pool)
            spilled += extra
        units[site] = np.sort(chosen).astype(np.int32)
    provenance: dict[str, Any] = {
        "operation": "random",
        "seed": seed,
        "disjoint": disjoint,
        "masks": [mask.provenance],
    }
    if contribution is not None:
        provenance |= {"matched": "contribution", "spilled": spilled}
    references: References = {}
    if scores is not None:
        if not scores.model.fits(mask.model):
            raise UserError(
                f"the scores are of {scores.model.describe()}, the mask of {mask.model.describe()}"
            )
        references = gather_references(scores, concept_of(mask, concept), units)
    return Mask(units, mask.model, provenance, references)


def concept_of(mask: Mask, concept: str | None = None) -> str:
    """The given concept, or the one that the mask was made for.

    Raises:
        UserError: The mask was made of several, or of none.
    """
    found = concept or mask.provenance.get("concept")
    if not isinstance(found, str):
        raise UserError("this mask was not made for one concept; say whose statistics to use (concept)")
    return found


def contribution(
    scores: Scores, concept: str, *, norms: Mapping[Site, Floats] | None = None
) -> dict[Site, Floats]:
    """Mean |m|·‖v‖ of every unit that scores know it of: how much it writes to the stream on average.

    A `gate` or `up` unit has the value vector of its FFN neuron; a unit without one (`down`, `attn_out`, `q`,
    `k`, `v`) counts with norm 1.

    Args:
        scores: Scores with the reference `mean_abs`.
        concept: One of their concepts, for references that differ by concept.
        norms: ‖v‖ of `act` and `attn` units, as `removed.value_norms` reads them from the model; by default
            the scores' reference `norm`.

    Returns:
        Site → float32 [units].

    Raises:
        UserError: The scores lack the reference that is needed.
    """
    sizes = scores.reference("mean_abs", concept)
    known = scores.reference("norm", concept) if norms is None else norms
    found = {}
    for site, size in sizes.items():
        writer = Site(site.layer, "act") if site.kind in FFN_NEURON else site
        norm = known.get(site, known.get(writer))
        if norm is None and site.kind in (*FFN_NEURON, "attn"):
            raise UserError(f"the norms of the value vectors of {site} are not known; give the model")
        found[site] = size if norm is None else size * norm
    return found


def _deciles(site: Site, size: int, contribution: Mapping[Site, Floats]) -> NDArray[np.int64]:
    """Decile 0 … 9 of each unit of a site, by rank of its contribution."""
    values = contribution.get(site)
    if values is None or values.shape != (size,):
        raise UserError(
            f"no contribution (mean |m| and norm) of the units of {site}; score with these references"
        )
    ranks = np.empty(size, np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(size)
    return ranks * DECILES // size


def _by_decile(
    generator: np.random.Generator, deciles: NDArray[np.int64], own: Indices, pool: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    wanted = np.bincount(deciles[own], minlength=DECILES)
    shuffled = generator.permutation(pool)
    queues = [list(shuffled[deciles[shuffled] == d]) for d in range(DECILES)]
    chosen: list[int] = []
    spilled = 0
    for decile in range(DECILES - 1, -1, -1):
        nearest = [*range(decile, -1, -1), *range(decile + 1, DECILES)]
        need = int(wanted[decile])
        for source in nearest:
            taken, queues[source] = queues[source][:need], queues[source][need:]
            chosen += taken
            spilled += len(taken) if source != decile else 0
            need -= len(taken)
    return np.asarray(chosen, np.int64), spilled


def pooled_histogram(masks: Sequence[Mask]) -> dict[Site, float]:
    """Units in each site over all masks together, site → count.

    Raises:
        UserError: The masks are of two models.
    """
    same_model(masks)
    counts: dict[Site, float] = {}
    for mask in masks:
        for site, units in mask.units.items():
            counts[site] = counts.get(site, 0.0) + units.size
    return counts


def expected_overlap(first: Mask, second: Mask) -> float | None:
    """How many units two random masks with these masks' counts in each site share on average.

    The mean of a hypergeometric draw, n₁·n₂ / size, summed over sites; None when the layout is not known.
    """
    layout = first.model.layout
    if layout is None:
        return None
    both = first.units.keys() & second.units.keys()
    return sum(first.units[site].size * second.units[site].size / layout.size(site.kind) for site in both)


def random_from_histogram(
    histogram: Mapping[Site, float], k: int, layout: UnitLayout, model: ModelId, *, seed: int
) -> Mask:
    """k random units spread over sites in proportion to a histogram.

    Args:
        histogram: Site → weight (counts pooled over several masks, say); need not sum to 1.
        k: How many units.
        layout: Of the model.
        model: The model the mask is for.
        seed: Equal seeds give equal masks.

    Raises:
        UserError: The histogram is empty or negative, or k exceeds the units of its sites.
    """
    sites = sorted((site for site, weight in histogram.items() if weight != 0), key=site_order)
    weights = np.array([histogram[site] for site in sites], dtype=np.float64)
    sizes = np.array([layout.size(site.kind) for site in sites], dtype=np.int64)
    if not sites or (weights < 0).any() or not np.isfinite(weights).all():
        raise UserError("a histogram of units needs at least one site and no negative weight")
    check_k(k, int(sizes.sum()))
    counts = _apportion(weights, k, sizes)
    generator = np.random.default_rng(seed)
    units = {
        site: np.sort(generator.choice(size, count, replace=False)).astype(np.int32)
        for site, size, count in zip(sites, sizes, counts, strict=True)
    }
    shares = {str(site): float(w) for site, w in zip(sites, weights / weights.sum(), strict=True)}
    return Mask(units, model, {"operation": "random", "seed": seed, "k": k, "histogram": shares})


def _apportion(weights: NDArray[np.float64], k: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """k split in proportion to weights, no part above its size, by largest remainders."""
    counts = np.zeros(weights.size, np.int64)
    # Scaled so that tiny weights do not vanish in the division below.
    weights = weights / weights.max()
    free = np.ones(weights.size, bool)
    while True:
        left = k - int(counts.sum())
        shares = np.where(free, left * weights / weights[free].sum(), 0.0) if free.any() else 0 * weights
        full = free & (shares >= sizes)
        if not full.any():
            break
        counts[full] = sizes[full]
        free &= ~full
    whole = np.floor(shares).astype(np.int64)
    left -= int(whole.sum())
    order = np.lexsort((np.arange(weights.size), whole - shares))
    whole[order[free[order]][:left]] += 1
    return counts + whole
