"""The lens equals the model, and the parts of the residual stream add up, in every family."""

from __future__ import annotations

import pytest
import torch

from interventions.attribution.lens import lens_of
from interventions.attribution.stream import read_stream, writes_of
from interventions.errors import UserError
from tests.tiny import MODEL_TYPES, tiny_model

IDS = torch.tensor([[1, 17, 203, 44, 90, 8, 131]])
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
VARIANTS = [(name, {}) for name in MODEL_TYPES] + [
    ("gpt_neox", {"use_parallel_residual": False}),
    ("llama", {"tie_word_embeddings": True, "mlp_bias": True, "attention_bias": True}),
    ("gemma2", {"final_logit_softcapping": 3.0}),
]
each_family = pytest.mark.parametrize(("model_type", "options"), VARIANTS)


@each_family
def test_lens_of_the_final_state_is_the_models_logits(model_type, options):
    model = tiny_model(model_type, **options)
    stream = read_stream(model, IDS)
    with torch.no_grad():
        expected = model(IDS).logits[0]
    torch.testing.assert_close(lens_of(model).logits(stream.final), expected, **CLOSE)


@each_family
@pytest.mark.parametrize("kind", ["attn", "act"])
def test_units_and_bias_sum_to_what_the_sublayer_adds(model_type, options, kind):
    model = tiny_model(model_type, **options)
    stream = read_stream(model, IDS)
    for layer, write in enumerate(writes_of(model, kind)):
        total = stream.coefficients(kind, layer, torch.float32) @ write.vectors
        if write.bias is not None:
            total = total + write.bias * stream.bias_scale(kind, layer)
        torch.testing.assert_close(total, stream.added(kind)[layer], **CLOSE)


@each_family
def test_all_contributions_sum_to_the_final_state(model_type, options):
    stream = read_stream(tiny_model(model_type, **options), IDS)
    total = stream.inputs[0] + stream.attention.sum(0) + stream.ffn.sum(0)
    torch.testing.assert_close(total, stream.final, **CLOSE)


@each_family
def test_lens_is_linear_under_a_frozen_scale(model_type, options):
    model = tiny_model(model_type, **options)
    stream, lens = read_stream(model, IDS), lens_of(model)
    scale = lens.scale(stream.final)
    parts = torch.cat([stream.inputs[:1], stream.attention, stream.ffn])
    total = sum(lens.linear(part, scale) for part in parts)
    total = total if lens.offset is None else total + lens.offset
    torch.testing.assert_close(lens.cap(total), lens.logits(stream.final), rtol=1e-3, atol=1e-4)


@each_family
def test_gradient_is_that_of_autograd(model_type, options):
    model = tiny_model(model_type, **options).double()
    stream, lens = read_stream(model, IDS), lens_of(model)
    states, scale = stream.inputs[1].clone().requires_grad_(), lens.scale(stream.final)
    targets = torch.arange(7) * 30
    lens.logits(states, scale).log_softmax(-1).gather(-1, targets[:, None]).sum().backward()
    base = lens.base(states.detach(), scale, targets)
    torch.testing.assert_close(lens.gradient(base, scale, targets), states.grad)


def test_half_precision_is_read_in_float32():
    model = tiny_model("llama").to(torch.bfloat16)
    lens = lens_of(model)
    assert lens.dtype == torch.float32
    assert lens.logits(read_stream(model, IDS).final).dtype == torch.float32


@pytest.mark.parametrize(
    ("model_type", "options", "word"),
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm"),
    ],
)
def test_models_without_a_lens_are_refused_by_name(model_type, options, word):
    with pytest.raises(UserError, match=word):
        lens_of(tiny_model(model_type, **options))


def test_activations_that_are_not_finite_are_named():
    model = tiny_model("llama")
    model.model.embed_tokens.weight.data[17] = float("inf")
    with pytest.raises(UserError, match="not finite"):
        read_stream(model, IDS)


def test_hooks_are_gone_after_reading():
    model = tiny_model("gemma2")
    read_stream(model, IDS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_adapters_and_quantised_weights_are_refused():
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["down_proj"]))
    with pytest.raises(UserError, match="merge adapters"):
        writes_of(adapted, "act")
    packed = tiny_model("llama")
    packed.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(torch.zeros(5, dtype=torch.uint8), False)
    with pytest.raises(UserError, match="without quantisation"):
        writes_of(packed, "act")
