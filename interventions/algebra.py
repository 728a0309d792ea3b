"""Set algebra of masks; provenance and reference statistics survive every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.mask import Indices, Mask, layout_for
from interventions.model_id import ModelId
from interventions.scores import Floats
from interventions.units import Site, UnitLayout


def same_model(masks: Sequence[Mask]) -> ModelId:
    """The model that all masks are of.

    Raises:
        UserError: They are of two models.
    """
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
    model = same_model(masks)
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
    layout = layout_for(mask, layout)
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
    same_model([first, second])
    both = first.units.keys() & second.units.keys()
    return sum(np.intersect1d(first.units[s], second.units[s], assume_unique=True).size for s in both)
