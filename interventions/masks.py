"""Masks: sets of units with provenance; top-k of scores, set algebra, and matched random controls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interventions import artifact
from interventions.errors import UserError
from interventions.model_id import ModelId
from interventions.scores import (
    Floats,
    References,
    Scores,
    check_fields,
    check_reference_name,
    is_samples,
    join_tensors,
    split_tensors,
)
from interventions.units import KINDS, Site, UnitLayout, site_order

Indices = NDArray[np.int32]
Side = Literal["top", "bottom", "both", "absolute"]
SIDES: tuple[Side, ...] = ("top", "bottom", "both", "absolute")

# Kinds that name one FFN neuron three ways: switching any of them off is one intervention.
FFN_NEURON = ("gate", "up", "act")
DECILES = 10


@dataclass(frozen=True, eq=False)
class Mask:
    """A set of units of one model.

    Attributes:
        units: Site → int32, sorted, unique indices. Sites without units are left out.
        model: The model the units belong to.
        provenance: How the mask came to be (plain JSON values); every operation keeps its inputs'.
        references: Reference statistics of the mask's own units, name → site → float32 [n], or
            [samples, n] for `samples`, so that a mask works without its scores.

    Raises:
        UserError: Indices out of range, negative, duplicate, unsorted or not integers.
    """

    units: Mapping[Site, Indices]
    model: ModelId
    provenance: dict[str, Any] = field(default_factory=dict)
    references: References = field(default_factory=dict)

    def __post_init__(self) -> None:
        units = {}
        for site in sorted(self.units, key=site_order):
            array = _checked_indices(self.model, site, self.units[site])
            if array.size:
                units[site] = array
        object.__setattr__(self, "units", units)
        references: dict[str, dict[Site, Floats]] = {}
        for name in sorted(self.references):
            check_reference_name(name)
            by_site = {site: self.references[name][site] for site in units if site in self.references[name]}
            references[name] = {site: np.asarray(array, np.float32) for site, array in by_site.items()}
            for site, statistic in references[name].items():
                if statistic.ndim != 1 + is_samples(name) or statistic.shape[-1] != units[site].size:
                    raise UserError(
                        f"reference {name!r} of {site} does not have one value for each unit"
                    )
                if not np.isfinite(statistic).all():
                    raise UserError(f"reference {name!r} of {site} holds NaN or an infinity")
        object.__setattr__(self, "references", references)

    def __len__(self) -> int:
        return sum(array.size for array in self.units.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """SHA-256 of units, references and the model's weights; provenance and names do not count."""
        weights = {"weights": [self.model.layout_hash, self.model.fingerprint]}
        return artifact.content_digest(weights, self._tensors())

    def layers(self) -> NDArray[np.int64]:
        """Units in each layer, [layers] (up to the last used layer when the layout is not known)."""
        last = 1 + max((site.layer for site in self.units), default=-1)
        counts = np.zeros(self.model.layout.n_layers if self.model.layout else last, dtype=np.int64)
        for site, array in self.units.items():
            counts[site.layer] += array.size
        return counts

    def kinds(self) -> dict[str, int]:
        """Units of each kind that occurs, in the order of `KINDS`."""
        counts = {kind: sum(a.size for site, a in self.units.items() if site.kind == kind) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}

    def ffn_neurons(self) -> int:
        """Distinct FFN neurons: `gate`, `up` and `act` units of one layer and index are one."""
        by_layer: dict[int, list[Indices]] = {}
        for site, array in self.units.items():
            if site.kind in FFN_NEURON:
                by_layer.setdefault(site.layer, []).append(array)
        return sum(np.unique(np.concatenate(arrays)).size for arrays in by_layer.values())

    def save(self, path: str | Path) -> None:
        """Write the mask as one safetensors file; equal masks of equal provenance give equal bytes."""
        header = {
            "model": self.model.to_dict(),
            "provenance": self.provenance,
            "versions": artifact.package_versions(),
        }
        artifact.save(path, what="mask", header=header, tensors=self._tensors())

    @classmethod
    def load(cls, path: str | Path) -> Mask:
        """Read a mask file.

        Raises:
            UserError: Missing, damaged or foreign file, or contents that are no mask.
        """
        loaded = artifact.load(path, what="mask")
        try:
            check_fields(loaded.header, {"provenance": dict})
            units, references = split_tensors(loaded.tensors)
            for site, array in units.items():
                if array.dtype != np.int32:
                    raise UserError(f"the units of {site} are {array.dtype}, not int32")
            return cls(
                units, ModelId.from_dict(loaded.header.get("model")), loaded.header["provenance"], references
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return join_tensors(self.units, self.references)


def _checked_indices(model: ModelId, site: Site, indices: Any) -> Indices:
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise UserError(f"the units of {site} must be a list of integers")
    if model.layout is not None:
        model.layout.check(site)
    if not array.size:
        return np.zeros(0, np.int32)
    steps = np.diff(array)
    if (steps == 0).any():
        raise UserError(f"the mask lists a unit of {site} twice")
    if (steps < 0).any():
        raise UserError(f"the units of {site} are not sorted")
    size = model.layout.size(site.kind) if model.layout else 2**31
    if array[0] < 0 or array[-1] >= size:
        bad = array[0] if array[0] < 0 else array[-1]
        raise UserError(f"the mask names unit {bad} of {site}, which has units 0 to {size - 1}")
    return array.astype(np.int32)


# ---------------------------------------------------------------------------------------- from scores


@dataclass(frozen=True)
class _Flat:
    """The scores of one concept as one vector over the chosen sites."""

    sites: list[Site]
    starts: NDArray[np.int64]  # [sites + 1]
    values: Floats  # [units of all sites]

    @classmethod
    def of(cls, scores: Scores, concept: str, kinds: Iterable[str] | None) -> _Flat:
        row = scores.row(concept)
        if kinds is not None:
            kinds = tuple(kinds)
            have = {site.kind for site in row}
            for kind in kinds:
                if kind not in have:
                    listed = ", ".join(k for k in KINDS if k in have)
                    raise UserError(f"the scores have no {kind!r} units; they have {listed}")
        sites = [site for site in row if kinds is None or site.kind in kinds]
        starts = np.cumsum([0, *(row[site].size for site in sites)])
        values = np.concatenate([row[site] for site in sites]) if sites else np.zeros(0, np.float32)
        return cls(sites, starts, values)

    def mask_units(self, chosen: NDArray[np.int64]) -> dict[Site, Indices]:
        """Site → indices for sorted positions in the vector."""
        cuts = np.searchsorted(chosen, self.starts)
        return {
            site: (chosen[low:high] - start).astype(np.int32)
            for site, start, low, high in zip(self.sites, self.starts, cuts, cuts[1:], strict=False)
            if high > low
        }


def _first(values: Floats, k: int) -> tuple[NDArray[np.int64], int]:
    """Positions of the k largest values, ascending; equal ones at the edge in order of position.

    Returns:
        The positions, and how many values tie with the k-th.
    """
    if k == 0:
        return np.zeros(0, np.int64), 0
    edge = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > edge)
    tied = np.flatnonzero(values == edge)
    return np.sort(np.concatenate([above, tied[: k - above.size]])), int(tied.size)


def _oriented(values: Floats, side: str) -> Floats:
    """Values whose largest are the wanted ones."""
    if side not in SIDES:
        raise UserError(f"unknown side {side!r}; one of {', '.join(SIDES)}")
    return {"top": values, "bottom": -values, "absolute": np.abs(values), "both": values}[side]


def _check_k(k: int, available: int, *, what: str = "k") -> None:
    if k < 0:
        raise UserError(f"{what} must not be negative, got {k}")
    if k > available:
        raise UserError(f"{what} = {k} is more than the {available} units that were scored")


def _from_scores(
    scores: Scores, concept: str, flat: _Flat, chosen: NDArray[np.int64], provenance: Mapping[str, Any]
) -> Mask:
    units = flat.mask_units(chosen)
    full = {
        "concept": concept,
        "method": scores.method,
        "parameters": scores.parameters,
        "data_hash": scores.data_hash,
        "scores": scores.digest,
        "kinds": [kind for kind in KINDS if any(site.kind == kind for site in flat.sites)],
        **provenance,
    }
    return Mask(units, scores.model, full, gather_references(scores, concept, units))


def gather_references(
    scores: Scores, concept: str, units: Mapping[Site, Indices]
) -> dict[str, dict[Site, Floats]]:
    """The scores' reference statistics at the given units."""
    gathered: dict[str, dict[Site, Floats]] = {}
    for name in scores.references:
        by_site = scores.reference(name, concept)
        gathered[name] = {site: by_site[site][..., index] for site, index in units.items() if site in by_site}
    return gathered


def top_k(
    scores: Scores, concept: str, k: int, *, side: Side = "top", kinds: Iterable[str] | None = None
) -> Mask:
    """The k units with the highest scores for `concept`.

    Units that tie at rank k are taken layer by layer, in the order of kinds and indices; how many tie is in
    the provenance as `ties`.

    Args:
        scores: Scores of any method.
        concept: One of their concepts.
        k: How many units; 0 gives a mask that does nothing.
        side: "top"; "bottom" for the lowest scores; "both" for the top ⌈k/2⌉ and the bottom ⌊k/2⌋;
            "absolute" for the largest magnitudes.
        kinds: Only these unit kinds.

    Raises:
        UserError: Unknown concept, kind or side, or k larger than the number of units.
    """
    flat = _Flat.of(scores, concept, kinds)
    _check_k(k, flat.values.size)
    values = _oriented(flat.values, side)
    if side == "both":
        upper, ties = _first(values, k - k // 2)
        rest = values.copy()
        # What the upper half took cannot be in the lower half.
        rest[upper] = np.inf
        lower, more = _first(-rest, k // 2)
        chosen, ties = np.sort(np.concatenate([upper, lower])), max(ties, more)
    else:
        chosen, ties = _first(values, k)
    return _from_scores(
        scores, concept, flat, chosen, {"operation": "top_k", "k": k, "side": side, "ties": ties}
    )


def threshold(
    scores: Scores, concept: str, value: float, *, side: Side = "top", kinds: Iterable[str] | None = None
) -> Mask:
    """The units whose score is at least `value` (at most, for "bottom"; in magnitude, for "absolute").

    Raises:
        UserError: As `top_k`; `value` is not finite; or side "both", which has no threshold.
    """
    if side == "both":
        raise UserError("a threshold needs one side: top, bottom or absolute")
    if not np.isfinite(value):
        raise UserError(f"the threshold must be a number, got {value}")
    flat = _Flat.of(scores, concept, kinds)
    values = _oriented(flat.values, side)
    chosen = np.flatnonzero(values >= (-value if side == "bottom" else value))
    return _from_scores(
        scores, concept, flat, chosen, {"operation": "threshold", "value": float(value), "side": side}
    )


def per_layer_top_k(
    scores: Scores, concept: str, k: int, *, side: Side = "top", kinds: Iterable[str] | None = None
) -> Mask:
    """The k units with the highest scores in each layer.

    Raises:
        UserError: As `top_k`; k is larger than a layer.
    """
    if side == "both":
        raise UserError("per-layer selection needs one side: top, bottom or absolute")
    flat = _Flat.of(scores, concept, kinds)
    values = _oriented(flat.values, side)
    layer_of = np.repeat([site.layer for site in flat.sites], np.diff(flat.starts))
    parts = []
    for layer in np.unique(layer_of):
        positions = np.flatnonzero(layer_of == layer)
        _check_k(k, positions.size, what=f"k for layer {layer}")
        parts.append(positions[_first(values[positions], k)[0]])
    chosen = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
    return _from_scores(scores, concept, flat, chosen, {"operation": "per_layer_top_k", "k": k, "side": side})


def band(
    scores: Scores,
    concept: str,
    low: int,
    high: int,
    *,
    side: Side = "top",
    kinds: Iterable[str] | None = None,
) -> Mask:
    """The units of ranks (low, high]: those of the top `high` that are not in the top `low`.

    Raises:
        UserError: As `top_k`; or low > high.
    """
    if low > high:
        raise UserError(f"the rank band ({low}, {high}] is empty; give the lower rank first")
    outer = top_k(scores, concept, high, side=side, kinds=kinds)
    inner = top_k(scores, concept, low, side=side, kinds=kinds)
    provenance = {**outer.provenance, "operation": "band", "k": high - low, "band": [low, high]}
    return _rebuilt(outer, difference(outer, inner), provenance)


def budget(layout: UnitLayout, fraction: float) -> int:
    """How many units a fraction of the model's distinct `act` neurons is (at least one, unless 0).

    Raises:
        UserError: `fraction` is not within 0 … 1.
    """
    if not 0 <= fraction <= 1:
        raise UserError(f"a fraction of units lies between 0 and 1, got {fraction}")
    return max(1, round(fraction * layout.n_layers * layout.d_ff)) if fraction else 0


# ---------------------------------------------------------------------------------------- set algebra


def _rebuilt(source: Mask, units_of: Mask, provenance: dict[str, Any]) -> Mask:
    return Mask(units_of.units, source.model, provenance, units_of.references)


def _same_model(masks: Sequence[Mask]) -> ModelId:
    first = masks[0].model
    for mask in masks[1:]:
        if not first.fits(mask.model):
            raise UserError(
                f"these masks are of two models: {first.describe()} and {mask.model.describe()}; "
                "make both from scores of one model"
            )
    return first


def _combined(
    operation: str,
    masks: Sequence[Mask],
    combine: Callable[[Indices, Indices], NDArray[Any]],
    *,
    sites: Callable[[set[Site], set[Site]], set[Site]],
) -> Mask:
    if not masks:
        raise UserError(f"{operation} needs at least one mask")
    model = _same_model(masks)
    empty = np.zeros(0, np.int32)
    units = dict(masks[0].units)
    for mask in masks[1:]:
        wanted = sites(set(units), set(mask.units))
        units = {
            site: combine(units.get(site, empty), mask.units.get(site, empty)).astype(np.int32)
            for site in wanted
        }
    provenance = {"operation": operation, "masks": [mask.provenance for mask in masks]}
    return Mask(units, model, provenance, _merged_references(masks, units))


def _merged_references(masks: Sequence[Mask], units: Mapping[Site, Indices]) -> dict[str, dict[Site, Floats]]:
    """References of `units`, each from the first mask that holds the unit; those known for all units."""
    merged: dict[str, dict[Site, Floats]] = {}
    for name in {name for mask in masks for name in mask.references}:
        by_site: dict[Site, Floats] = {}
        for site, wanted in units.items():
            values = _lookup(name, site, wanted, masks)
            if values is None:
                break
            by_site[site] = values
        else:
            merged[name] = by_site
    return merged


def _lookup(name: str, site: Site, wanted: Indices, masks: Sequence[Mask]) -> Floats | None:
    found: Floats | None = None
    missing = np.ones(wanted.size, bool)
    for mask in masks:
        source = mask.references.get(name, {}).get(site)
        if source is None:
            continue
        have = mask.units[site]
        here = missing & np.isin(wanted, have)
        if found is None:
            found = np.zeros((*source.shape[:-1], wanted.size), np.float32)
        if found.shape[:-1] != source.shape[:-1]:
            return None
        found[..., here] = source[..., np.searchsorted(have, wanted[here])]
        missing &= ~here
    return None if missing.any() else found


def union(*masks: Mask) -> Mask:
    """Units in any of the masks.

    Raises:
        UserError: The masks are of two models.
    """
    return _combined("union", masks, np.union1d, sites=set.union)


def intersection(*masks: Mask) -> Mask:
    """Units in all of the masks.

    Raises:
        UserError: The masks are of two models.
    """
    return _combined("intersection", masks, np.intersect1d, sites=set.intersection)


def difference(first: Mask, *others: Mask) -> Mask:
    """Units of `first` that are in none of `others`.

    Raises:
        UserError: The masks are of two models.
    """
    return _combined("difference", [first, *others], np.setdiff1d, sites=lambda a, b: a)


def complement(mask: Mask, layout: UnitLayout | None = None, *, kinds: Iterable[str] | None = None) -> Mask:
    """All units but the mask's: applying it keeps only the mask's units (a sufficiency test).

    Args:
        mask: The units to keep.
        layout: Of the model; by default the one the mask carries.
        kinds: The kinds to take the complement in; by default those that the mask has.

    Raises:
        UserError: No layout, a kind that the model lacks, or an empty mask without `kinds`.
    """
    layout = _layout(mask, layout)
    chosen = tuple(kinds) if kinds is not None else tuple(mask.kinds())
    if not chosen:
        raise UserError("the complement of an empty mask needs the unit kinds that it is taken in")
    empty = np.zeros(0, np.int32)
    units = {
        site: np.setdiff1d(np.arange(layout.size(site.kind), dtype=np.int32), mask.units.get(site, empty))
        for site in layout.sites(chosen)
    }
    return Mask(
        units, mask.model, {"operation": "complement", "kinds": list(chosen), "masks": [mask.provenance]}
    )


def jaccard(first: Mask, second: Mask) -> float:
    """Shared units over all units of the two masks; 1 for two empty masks.

    Raises:
        UserError: The masks are of two models.
    """
    shared = overlap(first, second)
    total = len(first) + len(second) - shared
    return shared / total if total else 1.0


def overlap(first: Mask, second: Mask) -> int:
    """How many units two masks share.

    Raises:
        UserError: The masks are of two models.
    """
    _same_model([first, second])
    both = first.units.keys() & second.units.keys()
    return sum(np.intersect1d(first.units[s], second.units[s], assume_unique=True).size for s in both)


def _layout(mask: Mask, layout: UnitLayout | None) -> UnitLayout:
    found = layout or mask.model.layout
    if found is None:
        raise UserError("this mask does not carry the model's layout; give the model")
    return found


# ---------------------------------------------------------------------------------------- random controls


def random_like(
    mask: Mask,
    layout: UnitLayout | None = None,
    *,
    seed: int,
    disjoint: bool = False,
    contribution: Mapping[Site, Floats] | None = None,
    scores: Scores | None = None,
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

    Raises:
        UserError: No layout; too few units left to be disjoint; `contribution` lacks a site.
    """
    layout = _layout(mask, layout)
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
        references = gather_references(scores, str(mask.provenance.get("concept")), units)
    return Mask(units, mask.model, provenance, references)


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
    _check_k(k, int(sizes.sum()))
    counts = _apportion(weights, k, sizes)
    generator = np.random.default_rng(seed)
    units = {
        site: np.sort(generator.choice(size, count, replace=False)).astype(np.int32)
        for site, size, count in zip(sites, sizes, counts, strict=True)
    }
    shares = {str(site): float(w) for site, w in zip(sites, weights / weights.sum(), strict=True)}
    return Mask(units, model, {"operation": "random", "seed": seed, "k": k, "histogram": shares})


def _apportion(weights: NDArray[np.float64], k: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """k split in proportion to weights, no part above its size; largest remainders get what is left."""
    counts = np.zeros(weights.size, np.int64)
    while (left := k - int(counts.sum())) > 0:
        open_ = counts < sizes
        share = np.where(open_, weights, 0.0)
        share = left * share / share.sum() if share.sum() else np.where(open_, left / open_.sum(), 0.0)
        whole = np.minimum(np.floor(share).astype(np.int64), sizes - counts)
        if whole.sum() == 0:
            order = np.lexsort((np.arange(weights.size), -share))
            order = order[open_[order]][:left]
            whole[order] = 1
        counts += whole
    return counts
