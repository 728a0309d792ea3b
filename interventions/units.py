"""Units: one neuron each, an index into a site; how many a model has, and reading them in a forward pass.

Indices are canonical, never raw offsets of a fused weight: `gate`, `up`, `act` run over d_ff; `down` and
`attn_out` over d_model; `q` and `attn` head-major over query heads; `k` and `v` head-major over KV heads.
`act` and `attn` are inputs of the down and the attention output projection; the rest are raw outputs of
linear maps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.families import Dims, Family, Slot, family_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

KINDS = ("gate", "up", "act", "down", "q", "k", "v", "attn", "attn_out")

_SITE = re.compile(r"(0|[1-9][0-9]{0,5})\.([a-z_]+)")


class Site(NamedTuple):
    """A place in the model that holds units: a layer and a kind. `str(Site(12, "act")) == "12.act"`."""

    layer: int
    kind: str

    def __str__(self) -> str:
        return f"{self.layer}.{self.kind}"

    @classmethod
    def parse(cls, text: str) -> Site:
        """The site that `str` wrote.

        Raises:
            UserError: `text` is no site.
        """
        match = _SITE.fullmatch(text)
        if match is None or match[2] not in KINDS:
            raise UserError(
                f"{text!r} is not a site; write <layer>.<kind>, the kind one of {', '.join(KINDS)}"
            )
        return cls(int(match[1]), match[2])


def site_order(site: Site) -> tuple[int, int]:
    """Sort key: layer by layer, kinds in the order of `KINDS`."""
    return site.layer, KINDS.index(site.kind)


@dataclass(frozen=True)
class UnitLayout:
    """How many units of each kind a model has.

    Attributes:
        model_type: The architecture's name in transformers.
        n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim: Sizes.
        kinds: The kinds this family has, in the order of `KINDS`.
    """

    model_type: str
    n_layers: int
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kinds: tuple[str, ...]

    def size(self, kind: str) -> int:
        """Units of `kind` in one layer.

        Raises:
            UserError: The family has no such kind.
        """
        if kind not in self.kinds:
            have = ", ".join(self.kinds)
            raise UserError(f"{self.model_type} has no unit kind {kind!r}; it has {have}")
        if kind in ("gate", "up", "act"):
            return self.d_ff
        if kind in ("down", "attn_out"):
            return self.d_model
        return self.head_dim * (self.n_heads if kind in ("q", "attn") else self.n_kv_heads)

    def sites(self, kinds: Iterable[str] | None = None) -> list[Site]:
        """The sites of `kinds` (all kinds by default), layer by layer, kinds in the order of `KINDS`."""
        chosen = self.kinds if kinds is None else tuple(kinds)
        for kind in chosen:
            self.size(kind)
        return [Site(layer, kind) for layer in range(self.n_layers) for kind in KINDS if kind in chosen]

    def count(self, kinds: Iterable[str] | None = None) -> int:
        """Units of `kinds` in the whole model."""
        return self.n_layers * sum(self.size(kind) for kind in set(self.kinds if kinds is None else kinds))

    def check(self, site: Site) -> None:
        """Raise `UserError` unless the model has `site`."""
        self.size(site.kind)
        if not 0 <= site.layer < self.n_layers:
            raise UserError(f"there is no layer {site.layer}: the model has layers 0 to {self.n_layers - 1}")

    def describe(self) -> str:
        """A few words for messages: "llama, 30 layers, d_model 576, d_ff 1536, 9/3 heads of 64"."""
        return (
            f"{self.model_type}, {self.n_layers} layers, d_model {self.d_model}, d_ff {self.d_ff}, "
            f"{self.n_heads}/{self.n_kv_heads} heads of {self.head_dim}"
        )


def base_model(model: Any) -> nn.Module:
    """The transformers model inside torch.compile, data-parallel and PEFT wrappers."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            model = model.module
        elif hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
            model = model.get_base_model()
        else:
            return model  # type: ignore[no-any-return]


def config_of(model_or_config: Any) -> Any:
    """The text config of a model or config."""
    config = model_or_config
    if not hasattr(config, "model_type"):
        config = base_model(model_or_config).config
    text = getattr(config, "get_text_config", None)
    # For an encoder-decoder, get_text_config() may pick one half; the refusal needs the whole.
    return text() if text is not None and not getattr(config, "is_encoder_decoder", False) else config


def _field(config: Any, names: Sequence[str]) -> int | None:
    return next((int(value) for name in names if (value := getattr(config, name, None)) is not None), None)


def layout_of(model_or_config: Any) -> UnitLayout:
    """The unit layout of a transformers causal LM or of its config.

    Raises:
        UserError: Unknown, mixture-of-experts or encoder-decoder architecture, or a config that lacks a size.
    """
    config = config_of(model_or_config)
    family = family_of(config)
    dims: Dims = family.dims
    n_layers, d_model = _field(config, dims.n_layers), _field(config, dims.d_model)
    n_heads = _field(config, dims.n_heads)
    d_ff = _field(config, dims.d_ff)
    if d_ff is None and dims.d_ff_multiple and d_model:
        d_ff = dims.d_ff_multiple * d_model
    if not (n_layers and d_model and n_heads and d_ff):
        raise UserError(f"the {family.model_type} config lacks a size (layers, width, heads or FFN width)")
    return UnitLayout(
        model_type=family.model_type,
        n_layers=n_layers,
        d_model=d_model,
        d_ff=d_ff,
        n_heads=n_heads,
        n_kv_heads=_field(config, dims.n_kv_heads) or n_heads,
        head_dim=_field(config, ("head_dim",)) or d_model // n_heads,
        kinds=tuple(kind for kind in KINDS if kind in family.slots),
    )


def raw_indices(layout: UnitLayout, slot: Slot, kind: str) -> NDArray[np.int64] | slice:
    """Where the units of `kind` sit on their side of the module, in canonical order.

    Returns:
        `slice(None)` when the module holds this kind alone, a slice when contiguous, else int64 indices.
    """
    if not slot.parts:
        return slice(None)
    if slot.interleaved:
        # Head by head, each head's parts in turn; such families have as many KV heads as query heads.
        head, dim = np.divmod(np.arange(layout.size(kind)), layout.head_dim)
        return (head * len(slot.parts) + slot.parts.index(kind)) * layout.head_dim + dim
    start = sum(layout.size(part) for part in slot.parts[: slot.parts.index(kind)])
    return slice(start, start + layout.size(kind))


def follow(root: Any, path: str) -> Any:
    """The attribute at a dotted path; `root` itself for the empty path.

    A multimodal model keeps its text part one step further down, as `language_model`.
    """
    for name in path.split(".") if path else ():
        if not hasattr(root, name) and hasattr(root, "language_model"):
            root = root.language_model
        root = getattr(root, name)
    return root


def decoder_layers(model: Any) -> Sequence[nn.Module]:
    """The decoder layers of a model, first to last."""
    model = base_model(model)
    return follow(model, family_of(config_of(model)).layers)  # type: ignore[no-any-return]


def module_of(model: Any, site: Site) -> tuple[nn.Module, Slot]:
    """The linear map that `site` belongs to, and where on it.

    Raises:
        UserError: The model has no such site, or two sites are one shared module.
    """
    layout_of(model).check(site)
    slot = family_of(config_of(model)).slots[site.kind]
    return follow(decoder_layers(model)[site.layer], slot.module), slot


def refuse_shared_modules(model: Any, sites: Iterable[Site]) -> None:
    """Raise `UserError` when two of the model's layers use one module object for some of `sites`' kinds."""
    layers = decoder_layers(model)
    slots = family_of(config_of(model)).slots
    for path in {slots[site.kind].module for site in sites}:
        owner: dict[int, int] = {}
        for index, layer in enumerate(layers):
            first = owner.setdefault(id(follow(layer, path)), index)
            if first != index:
                raise UserError(
                    f"layers {first} and {index} share one {path} module, so their units cannot be told apart"
                )


def is_compiled(model: Any) -> bool:
    """Whether torch.compile has been called on a model, as a wrapper or in place, or on a part of it."""
    return any(
        "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def refuse_compiled(model: Any) -> None:
    """Raise `UserError` for a compiled model, which ignores hooks that come or go after its compilation."""
    if is_compiled(model):
        raise UserError(
            "this model is compiled (torch.compile), so it would ignore hooks; pass the model as it was "
            "loaded, or a mask of mode zero or scale at all positions, which goes into the weights"
        )


class _Shape:
    """Remembers [batch, seq] of the layer that is running, for families that flatten the two."""

    def __init__(self) -> None:
        self.value: tuple[int, ...] = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        self.value = tuple(hidden.shape[:2])


@contextmanager
def capture(model: Any, sites: Iterable[Site]) -> Iterator[dict[Site, Tensor]]:
    """Read the units of `sites` in every forward pass of the block.

    Values are those that the model goes on with: under an intervention, the changed ones.

    Args:
        model: A transformers causal LM of a known family.
        sites: What to read.

    Yields:
        A dict that each forward pass refills: site → [batch, seq, units] in canonical order, on the device
        and in the dtype of the layer. Nothing is copied off the device; the graph is kept when grad is on.

    Raises:
        UserError: Unknown family, a site that the model lacks, or a compiled model.
    """
    import torch

    from interventions.fold import folded_factors

    refuse_compiled(model)
    sites = list(sites)
    layout = layout_of(model)
    family: Family = family_of(config_of(model))
    refuse_shared_modules(model, sites)
    values: dict[Site, Tensor] = {}
    shape = _Shape()
    handles: list[torch.utils.hooks.RemovableHandle] = []

    def store(site: Site, slot: Slot, tensor: Tensor) -> None:
        raw = raw_indices(layout, slot, site.kind)
        index = raw if isinstance(raw, slice) else torch.as_tensor(raw, device=tensor.device)
        picked = tensor[..., index]
        if slot.side == "input":
            # A mask folded into the weight leaves the weight's input as it was.
            for units, factor in folded_factors(model, site):
                units = units.to(picked.device)
                picked = picked.index_copy(-1, units, picked[..., units] * factor)
        values[site] = picked if picked.ndim == 3 else picked.reshape(*shape.value, picked.shape[-1])

    def attach(site: Site) -> None:
        module, slot = module_of(model, site)
        if slot.side == "input":
            handles.append(module.register_forward_pre_hook(lambda _, args: store(site, slot, args[0])))
        else:
            handles.append(module.register_forward_hook(lambda _, __, output: store(site, slot, output)))

    try:
        if family.flattens_ffn:
            for layer in decoder_layers(model):
                handles.append(layer.register_forward_pre_hook(shape, with_kwargs=True))
        for site in sites:
            attach(site)
        yield values
    finally:
        for handle in handles:
            handle.remove()
