"""Attention taken apart at one readout: heads, positions, and units at each position.

Unit (j, k) of query head j writes `sum_p alpha_j(p) value(p, k)` times its column of the output projection;
its coefficient at position p is `alpha_j(p) value(p, k)`. Under grouped-query attention query head j reads KV
head `j // (n_heads / n_kv_heads)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interventions.attribution.stream import Stream, Write
from interventions.errors import UserError
from interventions.units import Site, UnitLayout, base_model, capture, layout_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Attention:
    """What every head reads at one position of one row.

    Attributes:
        weights: `[L, heads, T]`, attention from the position to all positions (0 to later ones).
        values: `[L, T, kv_heads, head_dim]`, the value vectors.
    """

    weights: Tensor
    values: Tensor

    def coefficients(self) -> Tensor:
        """`[L, heads * head_dim, T]`: coefficients by position; they sum to the activation."""
        groups = self.weights.shape[1] // self.values.shape[2]
        values = self.values.repeat_interleave(groups, dim=2)
        return torch.einsum("lht,lthk->lhkt", self.weights, values).flatten(1, 2)


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Compute attention in the form that hands out its weights, then go back to the former one."""
    before = model.config._attn_implementation
    try:
        if before != "eager":
            model.set_attn_implementation("eager")
        yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)


def read_attention(model: PreTrainedModel, input_ids: Tensor, position: int = -1) -> Attention:
    """Attention weights and values of a single row.

    Args:
        model: The model.
        input_ids: `[1, T]`.
        position: The position that attends.

    Raises:
        UserError: The model does not hand out its attention weights.
    """
    inner: Any = base_model(model)
    layout = layout_of(model)
    sites = [Site(layer, "v") for layer in range(layout.n_layers)]
    with torch.no_grad(), eager_attention(inner), capture(inner, sites) as captured:
        output = inner.base_model(input_ids=input_ids, use_cache=False, output_attentions=True)
    weights = getattr(output, "attentions", None)
    if not weights or any(layer is None for layer in weights):
        raise UserError(f"{layout.model_type} does not hand out its attention weights")
    shape = (input_ids.shape[1], layout.n_kv_heads, layout.head_dim)
    return Attention(
        weights=torch.stack([layer[0, :, position].detach() for layer in weights]),
        values=torch.stack([captured[site][0].reshape(shape).detach() for site in sites]),
    )


def head_outputs(stream: Stream, writes: Sequence[Write], layout: UnitLayout) -> Tensor:
    """What every head writes to the stream at its R places, `[L, R, heads, d]`.

    Args:
        stream: The stream.
        writes: The attention's writes, a layer each.
        layout: The model's layout.
    """
    outputs = []
    for layer, write in enumerate(writes):
        own = stream.coefficients("attn", layer, write.vectors.dtype).unflatten(-1, (layout.n_heads, -1))
        outputs.append(torch.einsum("rhk,hkd->rhd", own, write.vectors.unflatten(0, (layout.n_heads, -1))))
    return torch.stack(outputs)


def value_unit(layout: UnitLayout, units: Tensor) -> Tensor:
    """The `v` unit that each `attn` unit reads: the same dimension of the KV head of its query head."""
    head, dimension = units // layout.head_dim, units % layout.head_dim
    return head // (layout.n_heads // layout.n_kv_heads) * layout.head_dim + dimension
