"""Query neurons: the lower units that switch value neurons on.

A value neuron j at position p reads the stream through its subkey: the row of the map that computes its
coefficient (attention: of W_v; FFN: of gate or up), times the gain of the norm that feeds it. A lower unit n
that writes along it scores `Q_n = sum_j Imp_j m_n(p_j) (v_n . k_j)`, the plain inner product of arXiv
2312.12141.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interventions.attribution.attention import value_unit
from interventions.attribution.norms import norm_gain
from interventions.attribution.stream import Stream, Write, output_weight
from interventions.errors import UserError
from interventions.families import family_of
from interventions.units import Site, config_of, decoder_layers, follow, layout_of, module_of, raw_indices

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Keys:
    """Subkeys of J value neurons of one kind.

    Attributes:
        kind: "attn" or "act": which sublayer the value neurons belong to.
        layers: `[J]`.
        positions: `[J]`, where each reads the stream.
        vectors: `[J, d]`, subkeys with the norm's gain.
        importance: `[J]`, the value neurons' scores.
    """

    kind: str
    layers: Tensor
    positions: Tensor
    vectors: Tensor
    importance: Tensor


@dataclass(frozen=True)
class Shares:
    """How scores were normalised: inner products over `h . k`, whose size was kept above `floor * |h| |k|`.

    Attributes:
        floor: The relative floor.
        floored: How many of the value neurons it was used for.
    """

    floor: float
    floored: int


@dataclass(frozen=True)
class QueryScores:
    """Query scores of one prompt.

    Attributes:
        units: `[L, d_ff]`, of the FFN units.
        attention, ffn: `[L]`, of whole sublayers.
        shares: How they were normalised; None when they are plain inner products.
    """

    units: Tensor
    attention: Tensor
    ffn: Tensor
    shares: Shares | None


def subkeys(model: PreTrainedModel, layer: int, part: str, units: Tensor, dtype: torch.dtype) -> Tensor:
    """Subkeys `[n, d]` of one layer's units: rows of a map, times the gain of the norm that feeds it.

    Args:
        model: The model.
        layer: The layer.
        part: "v", "gate" or "up": the map that computes the coefficients.
        units: `[n]`, canonical indices of that kind.
        dtype: Of the result.

    Raises:
        UserError: The family has no such part.
    """
    config = config_of(model)
    family = family_of(config)
    module, slot = module_of(model, Site(layer, part))
    raw = raw_indices(layout_of(model), slot, part)
    columns = output_weight(module)
    index = torch.arange(columns.shape[1])[raw] if isinstance(raw, slice) else torch.as_tensor(raw)
    rows = columns[:, index.to(units.device)[units].to(columns.device)].T.to(dtype)
    norm_path = family.attention_norm if part == "v" else family.ffn_norm
    if norm_path is None:
        return rows
    rows = rows * norm_gain(follow(decoder_layers(model)[layer], norm_path), family.norm_offset).to(dtype)
    return rows - rows.mean(-1, keepdim=True) if family.norm == "layer" else rows


def keys_of(
    model: PreTrainedModel,
    kind: str,
    layers: Tensor,
    units: Tensor,
    positions: Tensor,
    importance: Tensor,
    *,
    part: str | None = None,
) -> Keys:
    """Subkeys of value neurons.

    Args:
        model: The model.
        kind: "attn" or "act".
        layers, units, positions, importance: `[J]` each: the value neurons, where they read, and their
            scores.
        part: For "act" units "gate" or "up"; None for "v" with attention and for "up" in ungated families.

    Raises:
        UserError: A gated family without a choice of part.
    """
    layout = layout_of(model)
    if kind == "attn":
        part, units = "v", value_unit(layout, units)
    elif part is None:
        if "gate" in layout.kinds:
            raise UserError("FFN value neurons of a gated family have two subkeys; choose part gate or up")
        part = "up"
    vectors = torch.empty(len(layers), layout.d_model, dtype=importance.dtype, device=importance.device)
    for layer in layers.unique().tolist():
        here = layers == layer
        vectors[here] = subkeys(model, layer, part, units[here], importance.dtype).to(vectors.device)
    return Keys(kind, layers, positions, vectors, importance)


def query_scores(
    stream: Stream, writes: Sequence[Write], keys: Keys, *, share_floor: float | None = None
) -> QueryScores:
    """Query scores of all FFN units and sublayers below the value neurons.

    Args:
        stream: At all positions of the prompt (`read_stream` without readouts).
        writes: The FFN's writes, a layer each.
        keys: The value neurons.
        share_floor: None for plain inner products; a number divides each value neuron's by `h . k`, kept in
            size above this times `|h| |k|`.

    Returns:
        Scores; 0 for units and sublayers that are not below any of the value neurons.
    """
    dtype = keys.vectors.dtype
    weight, shares = keys.importance, None
    if share_floor is not None:
        state = stream.before(keys.kind)[keys.layers, keys.positions].to(dtype)
        whole = (state * keys.vectors).sum(-1)
        least = share_floor * state.norm(dim=-1) * keys.vectors.norm(dim=-1)
        shares = Shares(share_floor, int((whole.abs() < least).sum()))
        weight = weight / torch.where(whole.abs() < least, torch.where(whole < 0, -least, least), whole)
    layer_numbers = torch.arange(stream.n_layers, device=keys.layers.device)[:, None]
    below = layer_numbers < keys.layers
    # A sequential layer's FFN also reads what attention of the same layer has added.
    same = keys.kind == "act" and not stream.parallel
    below_attention = layer_numbers <= keys.layers if same else below
    units = []
    for layer, write in enumerate(writes):
        along = write.vectors.to(dtype) @ keys.vectors.T
        coefficients = stream.coefficients("act", layer, dtype)[keys.positions]
        units.append(torch.einsum("nj,jn,j->n", along, coefficients, weight * below[layer]))
    attention = torch.einsum("ljd,jd->lj", stream.attention[:, keys.positions].to(dtype), keys.vectors)
    ffn = torch.einsum("ljd,jd->lj", stream.ffn[:, keys.positions].to(dtype), keys.vectors)
    return QueryScores(
        units=torch.stack(units),
        attention=(attention * below_attention) @ weight,
        ffn=(ffn * below) @ weight,
        shares=shares,
    )
