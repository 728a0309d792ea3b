"""Scores: a float per unit for each concept, with the method that made them and the model they belong to."""

from __future__ import annotations

import re
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
from interventions.units import Site, site_order

Floats = NDArray[np.float32]
# reference name -> site -> values
References = Mapping[str, Mapping[Site, Floats]]

# The one reference with an extra axis: whole responses of other prompts, [samples, units].
SAMPLES = "samples"
_REFERENCE = re.compile(r"[a-z][a-z0-9_.@-]*")


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one method for several concepts.

    Attributes:
        values: Site → float32 [concepts, units]. No NaN; an infinity is allowed.
        concepts: Names of the rows, in order.
        model: The model that was scored.
        method: Name of the scoring method.
        parameters: What the method used (plain JSON values).
        data_hash: Hash of the prompts.
        seed: Of whatever the method drew.
        references: Reference statistics that interventions need, name → site → float32 [units], or
            [concepts, units] when they differ by concept; `samples` is [samples, units] or
            [concepts, samples, units]. Names in use: `mean`, `percentile-95` (any percentile), `samples`,
            each also for a position class as `mean@last_context`; `mean_abs` and `norm` (mean |m| and ‖v‖ of
            each unit) for matched random masks.

    Raises:
        UserError: NaN scores, wrong shapes or dtypes, duplicate concepts, or a bad reference name.
    """

    values: Mapping[Site, Floats]
    concepts: tuple[str, ...]
    model: ModelId
    method: str
    parameters: dict[str, Any] = field(default_factory=dict)
    data_hash: str = ""
    seed: int = 0
    references: References = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "concepts", tuple(self.concepts))
        if len(set(self.concepts)) != len(self.concepts) or not all(
            isinstance(c, str) for c in self.concepts
        ):
            raise UserError("the scores name a concept twice")
        values = {}
        for site in sorted(self.values, key=site_order):
            array = np.asarray(self.values[site], dtype=np.float32)
            check_size(self.model, site, array)
            if array.ndim != 2 or len(array) != len(self.concepts):
                raise UserError(
                    f"scores of {site} are {list(array.shape)}, not [{len(self.concepts)} concepts, units]"
                )
            if np.isnan(array).any():
                raise UserError(f"the scores of {site} hold NaN; score again, or leave that site out")
            values[site] = array
        object.__setattr__(self, "values", values)
        references = {}
        for name in sorted(self.references):
            check_reference_name(name)
            by_site = {}
            for site in sorted(self.references[name], key=site_order):
                array = np.asarray(self.references[name][site], dtype=np.float32)
                check_size(self.model, site, array)
                if site in values and array.shape[-1] != values[site].shape[-1]:
                    raise UserError(f"reference {name!r} of {site} does not have one value a unit")
                self._check_reference(name, site, array)
                by_site[site] = array
            references[name] = by_site
        object.__setattr__(self, "references", references)

    def _check_reference(self, name: str, site: Site, array: Floats) -> None:
        plain = 2 if is_samples(name) else 1
        by_concept = array.ndim == plain + 1 and len(array) == len(self.concepts)
        if not (array.ndim == plain or by_concept):
            raise UserError(f"reference {name!r} of {site} has shape {list(array.shape)}")
        if not np.isfinite(array).all():
            raise UserError(f"reference {name!r} of {site} holds NaN or an infinity")

    def index(self, concept: str) -> int:
        """Row of `concept`.

        Raises:
            UserError: It is not among the scores.
        """
        if concept not in self.concepts:
            raise UserError(f"no scores for concept {concept!r}; the file has {', '.join(self.concepts)}")
        return self.concepts.index(concept)

    def row(self, concept: str) -> dict[Site, Floats]:
        """The scores of one concept: site → float32 [units]."""
        index = self.index(concept)
        return {site: array[index] for site, array in self.values.items()}

    def reference(self, name: str, concept: str) -> dict[Site, Floats]:
        """One reference statistic for one concept: site → float32 [units], or [samples, units].

        Raises:
            UserError: The scores carry no such reference.
        """
        if name not in self.references:
            have = ", ".join(self.references) or "none"
            raise UserError(f"the scores carry no reference {name!r} (they have: {have})")
        plain = 2 if is_samples(name) else 1
        index = self.index(concept)
        by_site = self.references[name]
        return {site: array if array.ndim == plain else array[index] for site, array in by_site.items()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content: values, concepts, model weights, method, parameters, data and seed."""
        return artifact.content_digest(self._header(), self._tensors())

    def save(self, path: str | Path) -> None:
        """Write the scores as one safetensors file; equal scores give equal bytes."""
        header = {**self._header(), "model": self.model.to_dict(), "versions": artifact.package_versions()}
        artifact.save(path, what="scores", header=header, tensors=self._tensors())

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read a scores file.

        Raises:
            UserError: Missing, damaged or foreign file, or contents that are no scores.
        """
        loaded = artifact.load(path, what="scores")
        try:
            values, references = split_tensors(loaded.tensors)
            header = loaded.header
            check_fields(
                header, {"concepts": list, "method": str, "parameters": dict, "data_hash": str, "seed": int}
            )
            return cls(
                values=values,
                concepts=tuple(header["concepts"]),
                model=ModelId.from_dict(header.get("model")),
                method=header["method"],
                parameters=header["parameters"],
                data_hash=header["data_hash"],
                seed=header["seed"],
                references=references,
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def _header(self) -> dict[str, Any]:
        return {
            "concepts": list(self.concepts),
            "weights": [self.model.layout_hash, self.model.fingerprint],
            "method": self.method,
            "parameters": self.parameters,
            "data_hash": self.data_hash,
            "seed": self.seed,
        }

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return join_tensors(self.values, self.references)


def is_samples(name: str) -> bool:
    """Whether a reference holds whole samples (an extra axis before the units)."""
    return name.partition("@")[0] == SAMPLES


def check_reference_name(name: str) -> None:
    """Raise `UserError` unless `name` can name a reference statistic."""
    if not _REFERENCE.fullmatch(name):
        raise UserError(f"bad reference name {name!r}: use lower-case letters, digits and . _ @ -")


def check_size(model: ModelId, site: Site, array: NDArray[Any]) -> None:
    """Raise `UserError` unless `site` exists and the last axis of `array` runs over its units."""
    if model.layout is None:
        return
    model.layout.check(site)
    size = model.layout.size(site.kind)
    if array.ndim == 0 or array.shape[-1] != size:
        raise UserError(f"{site} has {size} units, not {array.shape[-1] if array.ndim else 'a single value'}")


def check_fields(header: Mapping[str, Any], types: Mapping[str, type]) -> None:
    """Raise `UserError` for a header field that is missing or of another type."""
    for name, kind in types.items():
        if type(header.get(name)) is not kind:
            raise UserError(f"the header's field {name!r} is missing or not of type {kind.__name__}")


def join_tensors(values: Mapping[Site, NDArray[Any]], references: References) -> dict[str, NDArray[Any]]:
    """Tensors by name: `<site>` for values, `<reference>/<site>` for references."""
    tensors = {str(site): np.asarray(array) for site, array in values.items()}
    for name, by_site in references.items():
        tensors |= {f"{name}/{site}": np.asarray(array) for site, array in by_site.items()}
    return tensors


def split_tensors(
    tensors: Mapping[str, NDArray[Any]],
) -> tuple[dict[Site, NDArray[Any]], dict[str, dict[Site, Floats]]]:
    """Undo `join_tensors`.

    Raises:
        UserError: A name that it does not write, or a reference that is not float32.
    """
    values: dict[Site, NDArray[Any]] = {}
    references: dict[str, dict[Site, Floats]] = {}
    for name, array in tensors.items():
        reference, slash, site = name.rpartition("/")
        if not slash:
            values[Site.parse(site)] = array
            continue
        check_reference_name(reference)
        if array.dtype != np.float32:
            raise UserError(f"reference tensor {name!r} is {array.dtype}, not float32")
        references.setdefault(reference, {})[Site.parse(site)] = array
    return values, references
