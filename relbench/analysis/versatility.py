"""Versatility: units that several relations, or one relation in several languages, have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from relbench.analysis.cells import Cell, CellIndex
from relbench.analysis.overlap import Chosen, Overlap, overlap_of
from relbench.analysis.runs import Runs, family, language_of, relation_of
from relbench.treatments import TOP_K, Treatment


@dataclass(frozen=True)
class SharedUnits:
    """Two relations' masks of one method, size and language.

    Attributes:
        first, second: The masks.
        overlap: Units that they share; None without the masks' units.
        loss_of_second: What the first mask does to the second's relation; None when it was not asked.
        loss_of_first: What the second mask does to the first's relation.
    """

    first: Treatment
    second: Treatment
    overlap: Overlap | None
    loss_of_second: Cell | None
    loss_of_first: Cell | None


def shared_units(runs: Runs, cells: CellIndex, chosen: Mapping[str, Chosen]) -> list[SharedUnits]:
    """Every pair of relations among the top-k masks of one method, size and language.

    Args:
        runs: Paired samples.
        cells: Headline cells.
        chosen: Mask (treatment) → its units; pairs without both have no overlap.
    """
    groups: dict[tuple[object, ...], list[Treatment]] = {}
    for mask in runs.masks:
        if mask.selection == TOP_K:
            key = (*family(mask), mask.fraction, mask.k, language_of(str(mask.concept)))
            groups.setdefault(key, []).append(mask)
    return [
        SharedUnits(
            first=first,
            second=second,
            overlap=_overlap(first, second, chosen),
            loss_of_second=cells.get((first.id, str(second.concept))),
            loss_of_first=cells.get((second.id, str(first.concept))),
        )
        for members in groups.values()
        for first, second in combinations(members, 2)
    ]


@dataclass(frozen=True)
class Transfer:
    """A relation's mask found in one language, judged on the relation in another.

    Attributes:
        treatment: The mask.
        own: What it does in its own language; None when that was not asked.
        other: What it does in the other language.
        native: What the mask found in that language does there; None without one.
        overlap: Units that both masks share; None without the second mask or the masks' units.
    """

    treatment: Treatment
    own: Cell | None
    other: Cell
    native: Cell | None
    overlap: Overlap | None


def transfers(runs: Runs, cells: CellIndex, chosen: Mapping[str, Chosen]) -> list[Transfer]:
    """Every top-k mask on its relation in every other language; arguments as of `shared_units`."""
    masks = {
        (*family(mask), mask.fraction, mask.k, mask.concept): mask
        for mask in runs.masks
        if mask.selection == TOP_K
    }
    found = []
    for (*size, concept), mask in masks.items():
        for evaluated in _elsewhere(str(concept), runs.pairs[mask.id]):
            other = cells.get((mask.id, evaluated))
            if other is None:
                continue
            native = masks.get((*size, evaluated))
            found.append(
                Transfer(
                    treatment=mask,
                    own=cells.get((mask.id, str(concept))),
                    other=other,
                    native=cells.get((native.id, evaluated)) if native else None,
                    overlap=_overlap(mask, native, chosen) if native else None,
                )
            )
    return found


def _elsewhere(concept: str, evaluated: Iterable[str]) -> list[str]:
    return [c for c in evaluated if relation_of(c) == relation_of(concept) and c != concept]


def _overlap(first: Treatment, second: Treatment, chosen: Mapping[str, Chosen]) -> Overlap | None:
    if first.id not in chosen or second.id not in chosen:
        return None
    return overlap_of(chosen[first.id], chosen[second.id])
