"""The residual stream of one forward pass, taken apart: what every sublayer and unit adds to it.

`h_l = h_(l-1) + A_l + F_l`. A unit writes its coefficient (its activation) times its row of the output
projection; where a norm follows the sublayer (Gemma 2 and 3, OLMo 2) the row is multiplied by that norm's
gain and the coefficient divided by the norm's scale, frozen at its true value, so that the sublayer's output
stays the plain sum of its units' writes and its bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interventions.attribution.norms import norm_eps, norm_gain
from interventions.attribution.readouts import Readouts
from interventions.errors import UserError
from interventions.families import family_of
from interventions.prefix import forward
from interventions.units import Site, base_model, config_of, decoder_layers, follow, refuse_shared_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WRITING_KINDS = ("attn", "act")
_OUTPUT_KIND = {"attn": "attn_out", "act": "down"}


@dataclass(frozen=True)
class Write:
    """How the units of one sublayer write to the residual stream.

    Attributes:
        vectors: `[units, d]`, what a coefficient of one writes: the output projection's columns, times the
            gain of the norm after the sublayer when there is one.
        bias: `[d]`, the projection's bias (times that gain); belongs to no unit. None when there is none.
        post_eps: Epsilon of the norm after the sublayer; None when there is no such norm.
    """

    vectors: Tensor
    bias: Tensor | None
    post_eps: float | None

    @cached_property
    def norms(self) -> Tensor:
        """`[units]`, norms of the vectors; at least float32."""
        half = self.vectors.dtype in (torch.float16, torch.bfloat16)
        norms: Tensor = (self.vectors.float() if half else self.vectors).norm(dim=-1)
        return norms


def output_weight(module: nn.Module) -> Tensor:
    """Weight `[inputs, outputs]` of a linear map: `nn.Linear` stores the transpose, GPT-2's `Conv1D` this.

    Raises:
        UserError: The map is wrapped by an adapter or its weight is quantised.
    """
    weight: Tensor | None = getattr(module, "weight", None)
    if isinstance(module, nn.Linear) and weight is not None and weight.is_floating_point():
        if weight.shape == (module.out_features, module.in_features):
            return weight.detach().T
    elif type(module).__name__ == "Conv1D" and isinstance(weight, Tensor):
        return weight.detach()
    raise UserError(
        f"attribution reads weights, and {type(module).__name__} has none that it can read: merge adapters "
        "into the model, and load it without quantisation"
    )


def writes_of(model: PreTrainedModel, kind: str, *, dtype: torch.dtype | None = None) -> list[Write]:
    """The writes of every layer's `kind` ("attn" or "act") units, first layer first.

    Args:
        model: A causal language model of a known family.
        kind: "attn" or "act": the kinds that write to the residual stream.
        dtype: Of the tensors; None keeps the model's. The weights are not copied when nothing changes them.

    Raises:
        UserError: The kind does not write to the stream, or the family is unknown.
    """
    if kind not in WRITING_KINDS:
        raise UserError(
            f"{kind!r} units do not write to the residual stream; attribution scores act and attn units"
        )
    family = family_of(config_of(model))
    post = family.post_attention_norm if kind == "attn" else family.post_ffn_norm
    slot = family.slots[kind]
    writes = []
    for layer in decoder_layers(model):
        module = follow(layer, slot.module)
        vectors, bias, eps = output_weight(module), getattr(module, "bias", None), None
        vectors = vectors if dtype is None else vectors.to(dtype)
        bias = None if bias is None else bias.detach().to(vectors.dtype)
        if post is not None:
            norm = follow(layer, post)
            gain, eps = norm_gain(norm, family.norm_offset).to(vectors.dtype), norm_eps(norm)
            vectors = vectors * gain
            bias = None if bias is None else bias * gain
        writes.append(Write(vectors, bias, eps))
    return writes


@dataclass(frozen=True)
class Stream:
    """The residual stream of a forward pass at R places (readouts, or all positions of one row).

    Attributes:
        inputs: `[L, R, d]`, the stream that enters each layer; `inputs[0]` is the embedding.
        attention: `[L, R, d]`, what each attention sublayer adds (after its post-norm).
        ffn: `[L, R, d]`, what each FFN adds.
        final: `[R, d]`, the stream after the last layer.
        units: For "attn" and "act" a list of `[R, units]` a layer: the activations.
        post_scale: For "attn" and "act": `[L, R]`, the frozen scale of the norm after the sublayer; absent
            when there is no such norm.
        parallel: Both sublayers read `inputs` (GPT-NeoX); otherwise the FFN reads what attention has added
            to.
    """

    inputs: Tensor
    attention: Tensor
    ffn: Tensor
    final: Tensor
    units: dict[str, list[Tensor]]
    post_scale: dict[str, Tensor]
    parallel: bool

    @property
    def n_layers(self) -> int:
        return self.inputs.shape[0]

    def before(self, kind: str) -> Tensor:
        """`[L, R, d]`: the stream that the sublayer of `kind` adds to, the `x` of the scores."""
        return self.inputs if kind == "attn" or self.parallel else self.inputs + self.attention

    def added(self, kind: str) -> Tensor:
        """`[L, R, d]`: what the sublayer of `kind` adds."""
        return self.attention if kind == "attn" else self.ffn

    def coefficients(self, kind: str, layer: int, dtype: torch.dtype) -> Tensor:
        """`[R, units]`: factors of `Write.vectors`: activations over the post-norm's scale."""
        values = self.units[kind][layer].to(dtype)
        scale = self.post_scale.get(kind)
        return values if scale is None else values / scale[layer][:, None].to(dtype)

    def last(self) -> Stream:
        """The stream at the last of its places alone."""
        return Stream(
            inputs=self.inputs[:, -1:],
            attention=self.attention[:, -1:],
            ffn=self.ffn[:, -1:],
            final=self.final[-1:],
            units={kind: [layer[-1:] for layer in layers] for kind, layers in self.units.items()},
            post_scale={kind: scale[:, -1:] for kind, scale in self.post_scale.items()},
            parallel=self.parallel,
        )

    def bias_scale(self, kind: str, layer: int) -> Tensor | float:
        """`[R, 1]`: factor of `Write.bias` in what is added."""
        scale = self.post_scale.get(kind)
        return 1.0 if scale is None else 1.0 / scale[layer][:, None]


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor: Tensor = args[0] if args else kwargs["hidden_states"]
    return tensor


@contextmanager
def recording(
    model: PreTrainedModel, pick: Callable[[Tensor], Tensor]
) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Record the stream's parts in each forward pass of the block; see `read_stream` for the whole.

    Args:
        model: The model.
        pick: From `[B, T, n]` values to those that are kept.

    Yields:
        (part, layer) → picked values; parts are "input", "attn", "act", "attn_raw", "act_raw", "attn_added",
        "act_added" and, at layer -1, "final".
    """
    model = base_model(model)  # type: ignore[assignment]
    family = family_of(config_of(model))
    layers = decoder_layers(model)
    refuse_shared_modules(
        model, [Site(layer, kind) for layer in range(len(layers)) for kind in WRITING_KINDS]
    )
    store: dict[tuple[str, int], Tensor] = {}
    shape: list[int] = []
    handles = []

    def keep(part: str, layer: int, tensor: Tensor) -> None:
        # OPT's FFN sees batch and sequence as one dimension.
        store[part, layer] = pick(tensor if tensor.ndim == 3 else tensor.reshape(*shape, tensor.shape[-1]))

    def on_input(part: str, index: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensor = _first(args, kwargs)
            if part == "input":
                shape[:] = tensor.shape[:2]
            keep(part, index, tensor)

        return hook

    def on_output(part: str, index: int) -> Callable[..., None]:
        return lambda module, args, output: keep(part, index, output)

    try:
        for index, layer in enumerate(layers):
            handles.append(layer.register_forward_pre_hook(on_input("input", index), with_kwargs=True))
            for kind, post in (("attn", family.post_attention_norm), ("act", family.post_ffn_norm)):
                module = follow(layer, family.slots[kind].module)
                handles.append(module.register_forward_pre_hook(on_input(kind, index), with_kwargs=True))
                raw = f"{kind}_added" if post is None else f"{kind}_raw"
                handles.append(module.register_forward_hook(on_output(raw, index)))
                if post is not None:
                    norm = follow(layer, post)
                    handles.append(norm.register_forward_hook(on_output(f"{kind}_added", index)))
        norm = follow(model, family.final_norm)
        handles.append(norm.register_forward_pre_hook(on_input("final", -1), with_kwargs=True))
        yield store
    finally:
        for handle in handles:
            handle.remove()


def read_stream(
    model: PreTrainedModel, input_ids: Tensor, readouts: Readouts | None = None, *, cache: Any = None
) -> Stream:
    """The residual stream at the readouts of a batch, or at every position of a single row.

    Args:
        model: The model; interventions in force show in what is read.
        input_ids: `[B, T]`.
        readouts: R places; None means all T positions of the only row.
        cache: Key-value cache of what comes before `input_ids`.

    Raises:
        UserError: Unknown family, or the model's values are not finite.
    """
    if readouts is None:
        rows = torch.zeros(input_ids.shape[1], dtype=torch.long, device=input_ids.device)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
    else:
        rows, positions = readouts.rows, readouts.positions

    def pick(values: Tensor) -> Tensor:
        return values[rows.to(values.device), positions.to(values.device)].detach()

    with torch.no_grad(), recording(model, pick) as store:
        forward(base_model(model), input_ids, cache)  # type: ignore[arg-type]
    return assemble(model, store)


def assemble(model: PreTrainedModel, store: dict[tuple[str, int], Tensor]) -> Stream:
    """A `Stream` from what `recording` kept.

    Raises:
        UserError: Values are not finite.
    """
    config = config_of(model)
    family = family_of(config)
    layers = decoder_layers(model)
    numbers = range(len(layers))
    final = store["final", -1]
    if not bool(torch.isfinite(final).all()):
        raise UserError(
            "the model's activations are not finite; load it in float32 or bfloat16, or check its weights"
        )

    def stack(part: str) -> Tensor:
        return torch.stack([store[part, layer].to(final.device) for layer in numbers])

    post_scale = {}
    for kind, post in (("attn", family.post_attention_norm), ("act", family.post_ffn_norm)):
        if post is not None:
            raw = stack(f"{kind}_raw")
            raw = raw.float() if raw.dtype in (torch.float16, torch.bfloat16) else raw
            eps = norm_eps(follow(layers[0], post))
            post_scale[kind] = (raw.square().mean(-1) + eps).sqrt()
    return Stream(
        inputs=stack("input"),
        attention=stack("attn_added"),
        ffn=stack("act_added"),
        final=final,
        units={kind: [store[kind, layer].to(final.device) for layer in numbers] for kind in WRITING_KINDS},
        post_scale=post_scale,
        parallel=family.is_parallel(config),
    )
