"""Which model a mask or scores file belongs to: its layout and a fingerprint of its weights, not its path."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interventions.errors import UserError
from interventions.families import family_of
from interventions.files import sha256_json
from interventions.units import UnitLayout, base_model, config_of, decoder_layers, follow, layout_of

if TYPE_CHECKING:
    import torch
    from torch import nn

# Values sampled from each weight, evenly spaced over it.
_SAMPLES = 64
# Least normal fp16 number: below it an fp16 copy of a bf16 weight is no longer exact.
_TINY = 2.0**-14


@dataclass(frozen=True)
class ModelId:
    """Identity of a model.

    Attributes:
        name: Hub name, or the folder's name for a local checkpoint. For messages only.
        revision: Resolved commit of the hub, "" for a local checkpoint. For messages only.
        layout_hash: SHA-256 of the layout.
        fingerprint: SHA-256 over samples of the weights.
        layout: The layout itself, so that masks can be checked and combined without the model.
    """

    name: str
    revision: str
    layout_hash: str
    fingerprint: str
    layout: UnitLayout | None = None

    @classmethod
    def of(cls, model: Any, *, name: str | None = None, revision: str | None = None) -> ModelId:
        """The identity of a loaded model (text part; wrappers are looked through).

        The fingerprint is the same for a bf16 or fp16 checkpoint loaded in fp32, bf16 or fp16, and for an
        fp32 checkpoint loaded in fp32 or bf16. A 4-bit or 8-bit model has another one.

        Args:
            model: A transformers causal LM.
            name: In place of the name that the config carries.
            revision: In place of the commit that the config carries.

        Raises:
            UserError: Unknown architecture, or a mask is folded into the weights at the moment.
        """
        from interventions.fold import is_folded

        if is_folded(model):
            raise UserError(
                "a mask is folded into the model's weights; take the model's identity before or after"
            )
        layout = layout_of(model)
        return cls(
            name=_name(model) if name is None else name,
            revision=str(getattr(base_model(model).config, "_commit_hash", None) or "")
            if revision is None
            else revision,
            layout_hash=hash_layout(layout),
            fingerprint=_fingerprint(model),
            layout=layout,
        )

    def fits(self, other: ModelId) -> bool:
        """Whether both name the same weights, wherever they were loaded from."""
        return self.layout_fits(other) and self.fingerprint == other.fingerprint

    def layout_fits(self, other: ModelId) -> bool:
        """Whether both have the same units (a fine-tune of the same architecture, say)."""
        return self.layout_hash == other.layout_hash

    def describe(self) -> str:
        """For messages: name, revision, layout and the first digits of the fingerprint."""
        revision = f"@{self.revision[:8]}" if self.revision else ""
        layout = f"{self.layout.describe()}, " if self.layout else ""
        return f"{self.name}{revision} ({layout}weights {self.fingerprint[:12]})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        layout = None
        if self.layout is not None:
            layout = {**vars(self.layout), "kinds": list(self.layout.kinds)}
        return {
            "name": self.name,
            "revision": self.revision,
            "layout_hash": self.layout_hash,
            "fingerprint": self.fingerprint,
            "layout": layout,
        }

    @classmethod
    def from_dict(cls, value: Any) -> ModelId:
        """The identity that `to_dict` wrote.

        Raises:
            UserError: A field is missing, of the wrong type, or the layout does not match its hash.
        """
        fields = ("name", "revision", "layout_hash", "fingerprint")
        if not isinstance(value, dict) or not all(isinstance(value.get(field), str) for field in fields):
            raise UserError("the model identity in the file is not complete")
        layout = None
        if value.get("layout") is not None:
            layout = _layout_from(value["layout"])
            if hash_layout(layout) != value["layout_hash"]:
                raise UserError("the model layout in the file does not match its hash")
        name, revision, layout_hash, fingerprint = (value[field] for field in fields)
        return cls(name, revision, layout_hash, fingerprint, layout)


def hash_layout(layout: UnitLayout) -> str:
    """SHA-256 of a layout's fields."""
    return sha256_json({**vars(layout), "kinds": list(layout.kinds)})


def _layout_from(value: Any) -> UnitLayout:
    numbers = ("n_layers", "d_model", "d_ff", "n_heads", "n_kv_heads", "head_dim")
    ok = (
        isinstance(value, dict)
        and set(value) == {"model_type", "kinds", *numbers}
        and isinstance(value["model_type"], str)
        and all(type(value[n]) is int and 0 < value[n] < 2**31 for n in numbers)
        and isinstance(value["kinds"], list)
        and all(isinstance(kind, str) for kind in value["kinds"])
    )
    if not ok:
        raise UserError("the model layout in the file is not complete")
    return UnitLayout(**{**value, "kinds": tuple(value["kinds"])})


def _name(model: Any) -> str:
    name = (
        str(getattr(base_model(model).config, "_name_or_path", "") or "") or type(base_model(model)).__name__
    )
    # A path says nothing to another user, and would make files differ between machines.
    return os.path.basename(os.path.normpath(name)) if os.path.exists(name) else name


def _fingerprint(model: Any) -> str:
    """SHA-256 over samples of every layer's unit-bearing weights, the embedding and the final norm."""
    root, family = base_model(model), family_of(config_of(model))
    paths = sorted({slot.module for slot in family.slots.values()})
    modules = [follow(root, family.embedding), follow(root, family.final_norm)]
    modules += [follow(layer, path) for layer in decoder_layers(model) for path in paths]
    digest = hashlib.sha256()
    for module in modules:
        digest.update(_samples(module))
    return digest.hexdigest()


def hash_weights(model: Any) -> str:
    """SHA-256 over samples of every parameter and buffer, adapters included, small ones whole.

    Stricter than the fingerprint, which leaves masks usable beside an adapter: for what is kept of a model's
    behaviour. Offloaded parameters count by name and shape alone.
    """
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode() + str(tuple(tensor.shape)).encode())
        if not tensor.is_meta:
            digest.update(_picked(tensor))
    return digest.hexdigest()


def _samples(module: nn.Module) -> bytes:
    weight = weight_data(module)
    if weight is None or weight.numel() == 0:
        return b"none"
    return _picked(weight)


def _picked(weight: torch.Tensor) -> bytes:
    import torch

    flat = weight.detach().reshape(-1)
    # float64 would round differently from device to device for huge weights; integers do not.
    index = torch.arange(_SAMPLES, device=flat.device) * (flat.numel() - 1) // (_SAMPLES - 1)
    picked = flat[index]
    if picked.is_floating_point():
        rounded = picked.to(torch.bfloat16).float()
        picked = torch.where(rounded.abs() < _TINY, 0.0, rounded)
    return str(tuple(weight.shape)).encode() + picked.cpu().numpy().tobytes()


def weight_data(module: nn.Module) -> torch.Tensor | None:
    """A module's weight with its values, also when accelerate offloads them; None if it has none."""
    # PEFT wraps a layer and keeps the weight inside.
    module = getattr(module, "base_layer", module)
    weight: torch.Tensor | None = getattr(module, "weight", None)
    if weight is not None and weight.is_meta:
        hook = getattr(module, "_hf_hook", None)
        weights_map = getattr(hook, "weights_map", None)
        if weights_map is None:
            raise UserError("the model's weights are not loaded (meta tensors)")
        return weights_map["weight"]  # type: ignore[no-any-return]
    return weight
