"""Folding: the same numbers as hooks, restored bit for bit, refused where it would be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from interventions.algebra import difference
from interventions.apply import Intervention, intervene
from interventions.controls import random_from_histogram
from interventions.errors import UserError
from interventions.fold import Fold, is_folded
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.units import Site, layout_of
from tests.interventions.making import random_mask
from tests.tiny import MODEL_TYPES, tiny_model

IDS = torch.tensor([[1, 5, 77, 200, 41, 9, 30], [1, 8, 8, 130, 250, 3, 4]])


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    after = model.state_dict()
    # Bits, not values: -0.0 is not 0.0 here.
    return all(torch.equal(before[n].view(torch.int32), after[n].view(torch.int32)) for n in before)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_fold_equals_hook_for_every_kind(model_type: str) -> None:
    model = tiny_model(model_type)
    before = state(model)
    for kind in layout_of(model).kinds:
        mask = random_mask(model, [kind])
        for one in (Intervention(mask), Intervention(mask, "scale", factor=-0.5)):
            with intervene(model, one, how="hook") as handle:
                assert handle.hooked and not handle.folded
                hooked = logits(model)
                assert same(model, before)
            with intervene(model, one, how="fold") as handle:
                assert handle.folded and not handle.hooked
                torch.testing.assert_close(logits(model), hooked, atol=1e-6, rtol=1e-6)
                assert not same(model, before)
            assert same(model, before) and not is_folded(model)


def test_all_kinds_at_once_are_restored_bit_for_bit_also_when_nested() -> None:
    model = tiny_model("phi3")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[:, ::2] *= -0.0
    before = state(model)
    first, second = (random_mask(model, layout_of(model).kinds, seed=seed) for seed in (0, 1))
    one, two = Intervention(first), Intervention(difference(second, first))
    with intervene(model, one, how="fold"):
        half = state(model)
        with pytest.raises(RuntimeError), intervene(model, two, how="fold"):
            raise RuntimeError
        assert same(model, half)
    assert same(model, before)


def test_bf16_is_restored_bit_for_bit() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    before = state(model)
    with intervene(model, Intervention(random_mask(model, layout_of(model).kinds), "scale", factor=0.3)):
        pass
    after = model.state_dict()
    assert all(torch.equal(before[n].view(torch.int16), after[n].view(torch.int16)) for n in before)


def test_tied_embeddings_are_left_alone() -> None:
    model = tiny_model("gemma3_text")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    before = state(model)
    with intervene(model, Intervention(random_mask(model, ["act", "down"])), how="fold"):
        assert torch.equal(model.lm_head.weight, before["lm_head.weight"])
    assert same(model, before)


def test_weights_shared_between_layers_are_hooked_and_not_folded() -> None:
    """Two layers with one weight tensor: zeroing a column for one would zero it for the other."""
    model = tiny_model("llama")
    layers = model.model.layers
    layers[1].mlp.down_proj.weight = layers[0].mlp.down_proj.weight
    before = state(model)
    one = Intervention(random_mask(model, ["act"]))
    with pytest.raises(UserError, match="shares its weight"), intervene(model, one, how="fold"):
        pass
    assert same(model, before)
    with intervene(model, one, how="hook"):
        hooked = logits(model)
    with intervene(model, one) as handle:
        assert (handle.hooked, handle.folded) == (2, 1)
        torch.testing.assert_close(logits(model), hooked, atol=1e-6, rtol=1e-6)
    assert same(model, before)


def test_overlapping_views_of_one_buffer_count_as_shared() -> None:
    model = tiny_model("llama")
    buffer = torch.randn(40, 48)
    mlps = [layer.mlp for layer in model.model.layers]
    mlps[0].down_proj.weight = nn.Parameter(buffer[:32])
    mlps[1].down_proj.weight = nn.Parameter(buffer[8:])
    fold = Fold(model)
    assert "shares" in str(fold.obstacle(Site(0, "act"))) and "shares" in str(fold.obstacle(Site(1, "act")))
    assert fold.obstacle(Site(2, "act")) is None and fold.obstacle(Site(0, "up")) is None


def test_what_cannot_be_folded_is_refused_and_nothing_is_left_behind() -> None:
    model = tiny_model("llama")
    before = state(model)
    mask = random_mask(model, ["act"], references=["mean"])
    for one, message in (
        (Intervention(mask, "mean"), "mode mean replaces"),
        (Intervention(mask, "constant", value=1.0), "mode constant replaces"),
        (Intervention(mask, positions="context"), "positions=context"),
    ):
        first = Intervention(random_mask(model, ["attn"]))
        with pytest.raises(UserError, match=message), intervene(model, first, one, how="fold"):
            pass
        assert same(model, before) and not is_folded(model)


def test_an_output_units_bias_goes_with_it() -> None:
    model = tiny_model("gpt2")
    mask = Mask(
        {Site(0, "up"): random_mask(model, ["up"]).units[Site(0, "up")]}, random_mask(model, []).model
    )
    units = mask.units[Site(0, "up")].tolist()
    up = model.transformer.h[0].mlp.c_fc
    with intervene(model, Intervention(mask), how="fold"):
        assert (up.weight[:, units] == 0).all() and (up.bias[units] == 0).all()
        assert (up.weight != 0).sum() == up.weight.numel() - 32 * len(units)


@pytest.mark.model
def test_the_embedded_model_agrees_both_ways_and_is_left_as_it_was(embedded_model_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(embedded_model_path, dtype=torch.float32).eval()
    layout = layout_of(model)
    identity = ModelId.of(model)
    mask = random_from_histogram(dict.fromkeys(layout.sites(), 1.0), 5000, layout, identity, seed=0)
    ids = torch.randint(10, 1000, (2, 12), generator=torch.Generator().manual_seed(0))

    def last() -> torch.Tensor:
        with torch.no_grad():
            return model(ids, logits_to_keep=1).logits

    baseline = last()
    with intervene(model, Intervention(mask), how="hook"):
        hooked = last()
    with intervene(model, Intervention(mask), how="fold"):
        folded = last()
    torch.testing.assert_close(folded, hooked, atol=2e-4, rtol=1e-5)
    assert (hooked - baseline).abs().max() > 1
    assert torch.equal(last(), baseline) and ModelId.of(model) == identity
