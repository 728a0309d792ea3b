"""Folding zero and scale into the weights: exact, free at run time, and undone bit for bit.

Switching off an input of a linear map is zeroing a column of its weight; switching off an output is zeroing
a row and its bias entry. Scaling multiplies them. What is overwritten is kept and put back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.families import Slot
from interventions.units import Site, UnitLayout, base_model, layout_of, module_of, raw_indices

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from interventions.model_id import ModelId


@dataclass(frozen=True)
class _Edit:
    """Part of one parameter as it was: `saved` are the entries at `index` along `dim`."""

    parameter: Tensor
    dim: int
    index: Tensor
    saved: Tensor


@dataclass(frozen=True)
class _Factor:
    site: Site
    units: Tensor
    factor: float


class Fold:
    """Edits of one model's weights that can be undone.

    Args:
        model: A transformers causal LM.
        identity: The model's identity before any edit, which cannot be read from edited weights.
    """

    def __init__(self, model: Any, identity: ModelId | None = None) -> None:
        self._model = base_model(model)
        self._layout = layout_of(model)
        self._shared = _shared_parameters(self._model)
        self._edits: list[_Edit] = []
        self.factors: list[_Factor] = []
        self.identity = identity

    def obstacle(self, site: Site) -> str | None:
        """Why `site` cannot be folded, or None when it can."""
        found, slot = module_of(self._model, site)
        module = cast("nn.Linear", found)
        name = f"{slot.module} of layer {site.layer}"
        if out_dim(module) is None:
            return f"{name} is a {type(module).__name__}, not a plain linear layer"
        for parameter in (module.weight, module.bias if slot.side == "output" else None):
            if parameter is None:
                continue
            if parameter.is_meta:
                return f"{name} is not loaded (offloaded or meta weights)"
            if not parameter.is_floating_point():
                return f"{name} is quantised"
            if id(parameter) in self._shared:
                return f"{name} shares its weight with another module"
        return None

    def multiply(self, site: Site, units: NDArray[np.int32], factor: float) -> None:
        """Multiply the response of units by a factor (0 switches them off), in the weights.

        Raises:
            UserError: The site cannot be folded.
        """
        import torch

        if (reason := self.obstacle(site)) is not None:
            raise UserError(f"cannot fold a mask into the weights: {reason}; use hooks")
        found, slot = module_of(self._model, site)
        module = cast("nn.Linear", found)  # or Conv1D, which has the same attributes
        index = torch.as_tensor(
            raw_positions(self._layout, slot, site.kind, units), device=module.weight.device
        )
        rows = out_dim(module)
        assert rows is not None
        self._scale(module.weight, rows if slot.side == "output" else 1 - rows, index, factor)
        if slot.side == "output" and module.bias is not None:
            self._scale(module.bias, 0, index.to(module.bias.device), factor)
        self.factors.append(_Factor(site, torch.as_tensor(units.astype(np.int64)), factor))
        folds = _FOLDS.setdefault(self._model, [])
        if self not in folds:
            folds.append(self)

    def _scale(self, parameter: Tensor, dim: int, index: Tensor, factor: float) -> None:
        import torch

        with torch.no_grad():
            saved = parameter.index_select(dim, index)
            self._edits.append(_Edit(parameter, dim, index, saved))
            if factor == 0:
                parameter.index_fill_(dim, index, 0)
            else:
                parameter.index_copy_(dim, index, saved * factor)

    def restore(self) -> None:
        """Put every overwritten value back, last edit first."""
        import torch

        with torch.no_grad():
            while self._edits:
                edit = self._edits.pop()
                edit.parameter.index_copy_(edit.dim, edit.index, edit.saved)
        self.factors.clear()
        folds = _FOLDS.get(self._model, [])
        if self in folds:
            folds.remove(self)


_FOLDS: WeakKeyDictionary[nn.Module, list[Fold]] = WeakKeyDictionary()


def is_folded(model: Any) -> bool:
    """Whether a mask is folded into the model's weights at the moment."""
    return bool(_FOLDS.get(base_model(model)))


def folded_identity(model: Any) -> ModelId | None:
    """The identity that a folded model had before; None when nothing is folded in or it is not known."""
    folds = _FOLDS.get(base_model(model))
    return folds[0].identity if folds else None


def folded_factors(model: Any, site: Site) -> list[tuple[Tensor, float]]:
    """What is folded in at one site: (canonical unit indices, int64 [n]; factor) for each edit."""
    folds = _FOLDS.get(base_model(model), [])
    return [(f.units, f.factor) for fold in folds for f in fold.factors if f.site == site]


def out_dim(module: nn.Module) -> int | None:
    """The dimension of a linear map's weight that runs over its outputs; None for other modules."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    # Exact types: a quantised or adapter subclass keeps its weight in another form.
    return {nn.Linear: 0, Conv1D: 1}.get(type(module))


def raw_positions(layout: UnitLayout, slot: Slot, kind: str, units: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where canonical units sit on their side of the module."""
    raw = raw_indices(layout, slot, kind)
    wide = units.astype(np.int64)
    return wide + (raw.start or 0) if isinstance(raw, slice) else raw[wide]


def _shared_parameters(model: nn.Module) -> set[int]:
    """ids of parameters that share memory with a parameter of another module."""
    by_address: list[tuple[str, int, int, torch.nn.Parameter]] = []
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta or not parameter.numel():
            continue
        start = parameter.data_ptr()
        by_address.append((str(parameter.device), start, start + parameter.nbytes, parameter))
    by_address.sort(key=lambda entry: entry[:3])
    shared: set[int] = set()
    reach: tuple[str, int] = ("", 0)
    last: torch.nn.Parameter | None = None
    for device, start, end, parameter in by_address:
        if last is not None and device == reach[0] and start < reach[1]:
            shared |= {id(parameter), id(last)}
        if device != reach[0] or end > reach[1]:
            reach, last = (device, end), parameter
    return shared
