"""Attention by position and query neurons: sums and subkeys against what the model itself computes."""

from __future__ import annotations

import pytest
import torch

from interventions.attribution.attention import read_attention, value_unit
from interventions.attribution.norms import norm_eps
from interventions.attribution.queries import keys_of, query_scores, subkeys
from interventions.attribution.stream import read_stream, writes_of
from interventions.errors import UserError
from interventions.families import family_of
from interventions.units import Site, capture, decoder_layers, follow, layout_of, module_of, raw_indices
from tests.tiny import MODEL_TYPES, tiny_model

IDS = torch.tensor([[1, 17, 203, 44, 90, 8, 131]])
# Norms and softmaxes of several families work in float32 whatever the model.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
each_family = pytest.mark.parametrize("model_type", MODEL_TYPES)


@each_family
def test_coefficients_by_position_sum_to_the_attention_units(model_type):
    model = tiny_model(model_type).double()
    before = model.config._attn_implementation
    stream, attention = read_stream(model, IDS), read_attention(model, IDS)
    found = attention.coefficients().sum(-1)
    torch.testing.assert_close(found, torch.stack([layer[-1] for layer in stream.units["attn"]]), **CLOSE)
    assert model.config._attn_implementation == before


def test_grouped_query_heads_read_their_kv_head():
    layout = layout_of(tiny_model("llama"))
    units = torch.arange(layout.size("attn"))
    values = value_unit(layout, units)
    assert values.tolist() == [*range(8), *range(8), *range(8, 16), *range(8, 16)]


@each_family
@pytest.mark.parametrize("part", ["v", "gate", "up"])
def test_subkeys_compute_the_maps_outputs(model_type, part):
    """`h . k` over the scale of the norm that feeds the map, plus biases, is what the map puts out."""
    model = tiny_model(model_type).double()
    layout, family = layout_of(model), family_of(model.config)
    if part not in layout.kinds:
        with pytest.raises(UserError):
            subkeys(model, 1, part, torch.tensor([0]), torch.float64)
        return
    stream = read_stream(model, IDS)
    with torch.no_grad(), capture(model, [Site(1, part)]) as captured:
        model(IDS)
    state = stream.before("attn" if part == "v" else "act")[1]
    keys = subkeys(model, 1, part, torch.arange(layout.size(part)), torch.float64)
    found = state @ keys.T
    path = family.attention_norm if part == "v" else family.ffn_norm
    module, slot = module_of(model, Site(1, part))
    raw = raw_indices(layout, slot, part)
    if path is not None:
        norm = follow(decoder_layers(model)[1], path)
        centred = state - state.mean(-1, keepdim=True) if family.norm == "layer" else state
        found = found / (centred.square().mean(-1, keepdim=True) + norm_eps(norm)).sqrt()
        if family.norm == "layer":
            weight = module.weight if isinstance(module, torch.nn.Linear) else module.weight.T
            found = found + (weight @ norm.bias)[raw]
    if getattr(module, "bias", None) is not None:
        found = found + module.bias[raw]
    torch.testing.assert_close(found, captured[Site(1, part)][0], **CLOSE)


@each_family
@pytest.mark.parametrize("kind", ["attn", "act"])
def test_query_scores_sum_to_the_subkeys_inner_product(model_type, kind):
    """Embedding, lower attention and lower FFN units and biases together make all of `h . k`."""
    model = tiny_model(model_type).double()
    stream, writes = read_stream(model, IDS), writes_of(model, "act")
    part = None if kind == "attn" or "gate" not in layout_of(model).kinds else "gate"
    layers, units, positions = torch.tensor([2]), torch.tensor([5]), torch.tensor([3])
    keys = keys_of(model, kind, layers, units, positions, torch.tensor([0.7], dtype=torch.float64), part=part)
    scores = query_scores(stream, writes, keys)
    key = keys.vectors[0]
    total = stream.inputs[0, 3] @ key * 0.7 + scores.attention.sum() + scores.ffn.sum()
    torch.testing.assert_close(total, 0.7 * stream.before(kind)[2, 3] @ key, **CLOSE)
    for layer in range(3):
        bias = torch.zeros((), dtype=torch.float64)
        if writes[layer].bias is not None and layer < 2:
            bias = 0.7 * (writes[layer].bias * stream.bias_scale("act", layer)).broadcast_to(7, -1)[3] @ key
        torch.testing.assert_close(scores.units[layer].sum() + bias, scores.ffn[layer], **CLOSE)
    assert not scores.units[2].any()


def test_query_scores_of_several_value_neurons_add_up():
    model = tiny_model("llama").double()
    stream, writes = read_stream(model, IDS), writes_of(model, "act")
    layers, units = torch.tensor([1, 2, 2]), torch.tensor([3, 9, 30])
    positions, importance = torch.tensor([0, 4, 6]), torch.tensor([0.5, -0.2, 1.0], dtype=torch.float64)
    together = query_scores(stream, writes, keys_of(model, "attn", layers, units, positions, importance))
    apart = [
        query_scores(
            stream,
            writes,
            keys_of(
                model,
                "attn",
                layers[j : j + 1],
                units[j : j + 1],
                positions[j : j + 1],
                importance[j : j + 1],
            ),
        ).units
        for j in range(3)
    ]
    torch.testing.assert_close(together.units, torch.stack(apart).sum(0))


def test_shares_sum_to_less_than_one_and_report_their_floor():
    model = tiny_model("llama").double()
    stream, writes = read_stream(model, IDS), writes_of(model, "act")
    one = torch.ones(1, dtype=torch.float64)
    keys = keys_of(model, "attn", torch.tensor([2]), torch.tensor([4]), torch.tensor([6]), one)
    scores = query_scores(stream, writes, keys, share_floor=0.0)
    embedding = stream.inputs[0, 6] @ keys.vectors[0] / (stream.inputs[2, 6] @ keys.vectors[0])
    torch.testing.assert_close(
        embedding + scores.attention.sum() + scores.ffn.sum(), torch.tensor(1.0).double()
    )
    assert scores.shares.floored == 0
    assert query_scores(stream, writes, keys, share_floor=2.0).shares.floored == 1


def test_gated_value_neurons_need_a_part():
    model = tiny_model("llama")
    one = torch.tensor([1])
    with pytest.raises(UserError, match="gate or up"):
        keys_of(model, "act", one, one, one, torch.ones(1))
