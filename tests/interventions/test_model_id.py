"""ModelId: equal for the same weights wherever they come from, different for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from interventions.apply import Intervention, intervene
from interventions.errors import UserError
from interventions.model_id import ModelId
from tests.interventions.making import random_mask
from tests.tiny import MODEL_TYPES, tiny_model


def test_path_and_dtype_of_loading_do_not_count(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True).to(torch.bfloat16)
    known = ModelId.of(model)
    for folder in ("one", "two"):
        model.save_pretrained(tmp_path / folder)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=dtype)
            again = ModelId.of(loaded)
            assert again.fits(known) and again.name == folder


def test_an_fp32_checkpoint_may_be_loaded_in_bf16(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    assert ModelId.of(model).fits(ModelId.of(tiny_model("gpt2").to(torch.bfloat16)))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_change_in_any_layer_changes_the_fingerprint(model_type: str) -> None:
    model = tiny_model(model_type)
    known = ModelId.of(model)
    assert known.fits(ModelId.of(tiny_model(model_type)))
    other = ModelId.of(tiny_model(model_type, seed=1))
    assert known.layout_fits(other) and not known.fits(other)
    with torch.no_grad():
        name, weight = [(n, p) for n, p in model.named_parameters() if p.ndim == 2 and ".1." in n][-1]
        weight.mul_(1.05)
    assert not known.fits(ModelId.of(model)), name


def test_layouts_differ_by_size_and_family() -> None:
    llama = ModelId.of(tiny_model("llama"))
    assert not llama.layout_fits(ModelId.of(tiny_model("llama", intermediate_size=64)))
    assert not llama.layout_fits(ModelId.of(tiny_model("mistral")))


def test_it_is_not_taken_while_a_mask_is_folded_in() -> None:
    model = tiny_model("llama")
    mask = random_mask(model, ["act"])
    with intervene(model, Intervention(mask), how="fold"), pytest.raises(UserError, match="folded into"):
        ModelId.of(model)
    assert ModelId.of(model).fits(ModelId.of(tiny_model("llama")))


def test_hooks_do_not_change_it() -> None:
    model = tiny_model("llama")
    with intervene(model, Intervention(random_mask(model, ["act"])), how="hook"):
        assert ModelId.of(model).fits(ModelId.of(tiny_model("llama")))


def test_it_is_written_and_read_back() -> None:
    known = ModelId.of(tiny_model("gemma3_text"), name="g", revision="abc")
    assert ModelId.from_dict(known.to_dict()) == known
    for change in ({"fingerprint": 3}, {"layout_hash": "0"}, {"layout": {}}, {"layout": []}, {"name": None}):
        with pytest.raises(UserError):
            ModelId.from_dict({**known.to_dict(), **change})
    with pytest.raises(UserError):
        ModelId.from_dict("no dict")


def test_offloaded_weights_are_read(tmp_path: Path) -> None:
    from accelerate import disk_offload

    model = tiny_model("llama")
    known = ModelId.of(model)
    offloaded = disk_offload(tiny_model("llama"), str(tmp_path), execution_device=torch.device("cpu"))
    assert next(offloaded.parameters()).is_meta
    assert ModelId.of(offloaded).fits(known)


def test_a_peft_adapter_around_the_model_does_not_count() -> None:
    from peft import IA3Config, get_peft_model

    model = tiny_model("llama")
    known = ModelId.of(model)
    config = IA3Config(target_modules=["down_proj"], feedforward_modules=["down_proj"])
    assert ModelId.of(get_peft_model(model, config)).fits(known)
