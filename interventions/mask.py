"""A mask: a set of units of one model, with provenance, in a file that other models refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions import artifact
from interventions.errors import UserError
from interventions.model_id import ModelId
from interventions.scores import (
    Floats,
    References,
    check_fields,
    check_reference_name,
    is_samples,
    join_tensors,
    split_tensors,
)
from interventions.units import KINDS, Site, UnitLayout, site_order

Indices = NDArray[np.int32]

# Kinds that name one FFN neuron three ways: switching any of them off is one intervention.
FFN_NEURON = ("gate", "up", "act")


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
                    raise UserError(f"reference {name!r} of {site} does not have one value for each unit")
                if not np.isfinite(statistic).all():
                    raise UserError(f"reference {name!r} of {site} holds NaN or an infinity")
        object.__setattr__(self, "references", references)

    def __len__(self) -> int:
        return sum(array.size for array in self.units.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
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


def layout_for(mask: Mask, layout: UnitLayout | None = None) -> UnitLayout:
    """The given layout, or the one the mask carries.

    Raises:
        UserError: There is neither.
    """
    found = layout or mask.model.layout
    if found is None:
        raise UserError("this mask does not carry the model's layout; give the model")
    return found
