"""The family table: every path leads to the module it names, and the residual form is the stated one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from interventions.apply import Intervention, intervene
from interventions.families import FAMILIES, family_of
from interventions.units import Site, base_model, capture, config_of, decoder_layers, follow, layout_of
from tests.interventions.making import random_mask
from tests.tiny import MODEL_TYPES, tiny_model

IDS = torch.tensor([[1, 5, 77, 200, 41, 9]])


def test_every_family_has_a_tiny_model() -> None:
    assert set(MODEL_TYPES) == set(FAMILIES)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_paths_lead_to_modules(model_type: str) -> None:
    model = tiny_model(model_type)
    family = family_of(model.config)
    assert follow(model, family.unembedding) is model.get_output_embeddings()
    assert follow(model, family.embedding) is model.get_input_embeddings()
    assert len(decoder_layers(model)) == layout_of(model).n_layers
    assert "norm" in type(follow(model, family.final_norm)).__name__.lower()
    for layer in decoder_layers(model):
        for path in (
            family.attention_norm,
            family.ffn_norm,
            family.post_attention_norm,
            family.post_ffn_norm,
        ):
            assert path is None or "norm" in type(follow(layer, path)).__name__.lower()
        for slot in family.slots.values():
            assert follow(layer, slot.module).weight.ndim == 2
        assert follow(layer, family.attention) is not None and follow(layer, family.ffn) is not None


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_norms_feed_the_sublayers_they_are_said_to_feed(model_type: str) -> None:
    """The input of `up` and `q` is the output of the FFN's and the attention's norm, or the stream itself."""
    model = tiny_model(model_type)
    family = family_of(model.config)
    layer = decoder_layers(model)[1]
    seen: dict[str, torch.Tensor] = {}

    def watch(name: str, module: nn.Module, *, output: bool) -> None:
        if output:
            module.register_forward_hook(lambda _, __, out: seen.__setitem__(name, out))
        else:
            module.register_forward_pre_hook(lambda _, args: seen.__setitem__(name, args[0]))

    for kind, norm in (("q", family.attention_norm), ("up", family.ffn_norm)):
        watch(kind, follow(layer, family.slots[kind].module), output=False)
        if norm is not None:
            watch(f"{kind} norm", follow(layer, norm), output=True)
    for kind, norm in (("attn_out", family.post_attention_norm), ("down", family.post_ffn_norm)):
        if norm is not None:
            watch(kind, follow(layer, family.slots[kind].module), output=True)
            watch(f"{kind} norm", follow(layer, norm), output=False)
    with torch.no_grad():
        model(IDS)
    pairs = [(name, f"{name} norm") for name in ("q", "up", "attn_out", "down") if f"{name} norm" in seen]
    for inner, norm in pairs:
        assert torch.equal(seen[inner].flatten(), seen[norm].flatten())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_gain_is_weight_plus_offset(model_type: str) -> None:
    model = tiny_model(model_type)
    family = family_of(model.config)
    norm = follow(model, family.final_norm)
    with torch.no_grad():
        norm.weight.fill_(-family.norm_offset)
        if getattr(norm, "bias", None) is not None:
            norm.bias.zero_()
        assert norm(torch.randn(2, model.config.hidden_size)).abs().max() == 0


@pytest.mark.parametrize("parallel", [True, False])
def test_parallel_residual_follows_the_config(parallel: bool) -> None:
    model = tiny_model("gpt_neox", use_parallel_residual=parallel)
    assert family_of(model.config).is_parallel(model.config) is parallel


def test_wrappers_are_looked_through() -> None:
    model = tiny_model("llama")
    wrapped = torch.compile(model, backend="eager")
    assert base_model(wrapped) is model and config_of(wrapped) is model.config
    assert layout_of(wrapped) == layout_of(model)


def test_the_text_part_of_a_multimodal_gemma_3_is_found() -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

    text = tiny_model("gemma3_text").config
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision = SiglipVisionConfig(**small, image_size=28).to_dict()
    with torch.random.fork_rng(devices=[]):
        config = Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)
        model = Gemma3ForConditionalGeneration(config).eval()
    layout = layout_of(model)
    assert layout == layout_of(tiny_model("gemma3_text"))
    one = Intervention(random_mask(model, ["act", "q"]))
    with torch.no_grad():
        baseline = model(IDS).logits
        results = []
        for how in ("hook", "fold"):
            with intervene(model, one, how=how), capture(model, [Site(2, "act")]) as values:  # type: ignore[arg-type]
                results.append(model(IDS).logits)
            assert values[Site(2, "act")].shape == (*IDS.shape, layout.d_ff)
        torch.testing.assert_close(*results, atol=1e-6, rtol=1e-6)
        assert not torch.equal(results[0], baseline) and torch.equal(model(IDS).logits, baseline)
