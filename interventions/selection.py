"""Choosing units by score: top k, thresholds, per layer, rank bands, and budgets as fractions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interventions.algebra import difference
from interventions.errors import UserError
from interventions.mask import Indices, Mask
from interventions.scores import Floats, Scores
from interventions.units import KINDS, Site, UnitLayout

Side = Literal["top", "bottom", "both", "absolute"]
SIDES: tuple[Side, ...] = ("top", "bottom", "both", "absolute")


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


def check_k(k: int, available: int, *, what: str = "k") -> None:
    """Raise `UserError` unless 0 <= k <= available."""
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
    check_k(k, flat.values.size)
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
        check_k(k, positions.size, what=f"k for layer {layer}")
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
    units = difference(outer, inner)
    return Mask(units.units, outer.model, provenance, units.references)


def budget(layout: UnitLayout, fraction: float) -> int:
    """How many units a fraction of the model's distinct `act` neurons is (at least one, unless 0).

    Raises:
        UserError: `fraction` is not within 0 … 1.
    """
    if not 0 <= fraction <= 1:
        raise UserError(f"a fraction of units lies between 0 and 1, got {fraction}")
    return max(1, round(fraction * layout.n_layers * layout.d_ff)) if fraction else 0
