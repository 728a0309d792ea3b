"""Units: counts match the weights, and captured responses match an independent forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from interventions.errors import UserError
from interventions.units import KINDS, Site, capture, layout_of
from tests.tiny import MODEL_TYPES, tiny_model

IDS = torch.tensor([[1, 5, 77, 200, 41, 9], [1, 8, 8, 130, 250, 3]])


@pytest.fixture(scope="module", params=MODEL_TYPES)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return tiny_model(request.param)


def by_hand(model: nn.Module, layer: int) -> dict[str, Tensor]:
    """The responses of one layer, from the inputs of its sublayers and the raw weights, family by family."""
    seen: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    prefix = next(
        name for name in modules if name.endswith(f".{layer}") and ("layers" in name or ".h." in name)
    )
    handles = []

    def keep_input(short: str) -> None:
        hook = modules[f"{prefix}.{short}"].register_forward_pre_hook(
            lambda _, args: seen.__setitem__(short, args[0].clone())
        )
        handles.append(hook)

    for name in [name for name in modules if name.startswith(prefix + ".")]:
        if isinstance(modules[name], nn.Linear) or type(modules[name]).__name__ == "Conv1D":
            keep_input(name.removeprefix(prefix + "."))
    with torch.no_grad():
        model(IDS)
    for handle in handles:
        handle.remove()

    def out(short: str) -> Tensor:
        module = modules[f"{prefix}.{short}"]
        weight = module.weight if isinstance(module, nn.Linear) else module.weight.T
        result = seen[short] @ weight.T
        return result if module.bias is None else result + module.bias

    config, type_ = model.config, model.config.model_type
    heads = config.num_attention_heads
    found: dict[str, Tensor] = {}
    if type_ in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2"):
        found = {k: out(f"self_attn.{k}_proj") for k in "qkv"}
        found |= {"gate": out("mlp.gate_proj"), "up": out("mlp.up_proj"), "act": seen["mlp.down_proj"]}
        found |= {
            "down": out("mlp.down_proj"),
            "attn": seen["self_attn.o_proj"],
            "attn_out": out("self_attn.o_proj"),
        }
    elif type_ == "phi3":
        gate, up = out("mlp.gate_up_proj").chunk(2, -1)
        query = config.num_attention_heads * config.hidden_size // heads
        key = config.num_key_value_heads * config.hidden_size // heads
        q, k, v = out("self_attn.qkv_proj").split([query, key, key], -1)
        found = {"gate": gate, "up": up, "act": seen["mlp.down_proj"], "down": out("mlp.down_proj")}
        found |= {
            "q": q,
            "k": k,
            "v": v,
            "attn": seen["self_attn.o_proj"],
            "attn_out": out("self_attn.o_proj"),
        }
    elif type_ == "gpt2":
        q, k, v = out("attn.c_attn").chunk(3, -1)
        found = {"up": out("mlp.c_fc"), "act": seen["mlp.c_proj"], "down": out("mlp.c_proj")}
        found |= {"q": q, "k": k, "v": v, "attn": seen["attn.c_proj"], "attn_out": out("attn.c_proj")}
    elif type_ in ("gpt_neox", "bloom"):
        attention = "attention" if type_ == "gpt_neox" else "self_attention"
        fused = out(f"{attention}.query_key_value")
        # [batch, seq, heads, 3, head_dim]: each head's query, key and value side by side.
        fused = fused.view(*fused.shape[:2], heads, 3, -1)
        found = {kind: fused[..., part, :].flatten(-2) for part, kind in enumerate("qkv")}
        found |= {
            "up": out("mlp.dense_h_to_4h"),
            "act": seen["mlp.dense_4h_to_h"],
            "down": out("mlp.dense_4h_to_h"),
        }
        found |= {"attn": seen[f"{attention}.dense"], "attn_out": out(f"{attention}.dense")}
    elif type_ == "opt":
        found = {k: out(f"self_attn.{k}_proj") for k in "qkv"}
        found |= {"up": out("fc1"), "act": seen["fc2"], "down": out("fc2")}
        found = {kind: value.view(*IDS.shape, -1) for kind, value in found.items()}
        found |= {"attn": seen["self_attn.out_proj"], "attn_out": out("self_attn.out_proj")}
    return found


def test_responses_equal_an_independent_forward_pass(model: nn.Module) -> None:
    layout = layout_of(model)
    with torch.no_grad(), capture(model, layout.sites()) as values:
        model(IDS)
    assert list(values) != [] and set(values) == set(layout.sites())
    for layer in range(layout.n_layers):
        expected = by_hand(model, layer)
        assert set(expected) == set(layout.kinds)
        for kind, response in expected.items():
            got = values[Site(layer, kind)]
            assert got.shape == (*IDS.shape, layout.size(kind)), (layer, kind)
            torch.testing.assert_close(got, response, atol=1e-5, rtol=1e-5)


def test_counts_match_the_weights(model: nn.Module) -> None:
    """Every row of every linear map of a layer is a unit of exactly one output kind."""
    layout = layout_of(model)
    outputs = 0
    for name, module in model.named_modules():
        if name == "lm_head" or not hasattr(module, "weight") or module.weight.ndim != 2:
            continue
        if isinstance(module, nn.Linear):
            outputs += module.weight.shape[0]
        elif type(module).__name__ == "Conv1D":
            outputs += module.weight.shape[1]
    assert layout.count(set(layout.kinds) - {"act", "attn"}) == outputs
    assert layout.kinds == tuple(kind for kind in KINDS if kind in layout.kinds)


def test_the_papers_count_for_a_7b_model() -> None:
    from transformers import LlamaConfig

    layout = layout_of(
        LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32)
    )
    assert layout.count(("gate", "up", "down")) == 32 * (2 * 11008 + 4096) == 835_584


def test_grouped_query_attention_has_fewer_key_and_value_units() -> None:
    layout = layout_of(tiny_model("llama"))
    assert layout.size("q") == layout.size("attn") == 32
    assert layout.size("k") == layout.size("v") == 16


def test_hooks_are_gone_after_the_block_and_after_an_exception() -> None:
    model = tiny_model("opt")
    with pytest.raises(RuntimeError), capture(model, layout_of(model).sites()):
        raise RuntimeError
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_sites_are_written_and_read_back() -> None:
    assert str(Site(12, "act")) == "12.act" and Site.parse("12.act") == Site(12, "act")
    for bad in ("act", "12", "12.foo", "-1.act", "01.act", "12.act ", ""):
        with pytest.raises(UserError, match="not a site"):
            Site.parse(bad)


def test_unknown_and_unsupported_architectures_are_refused_by_name() -> None:
    from transformers import GPTNeoConfig, MixtralConfig, T5Config

    with pytest.raises(UserError, match="t5 is an encoder-decoder"):
        layout_of(T5Config())
    with pytest.raises(UserError, match="mixtral is a mixture-of-experts"):
        layout_of(MixtralConfig())
    with pytest.raises(UserError, match="unknown architecture 'gpt_neo'"):
        layout_of(GPTNeoConfig())
    with pytest.raises(UserError, match="gpt2 has no unit kind 'gate'"):
        layout_of(tiny_model("gpt2")).size("gate")
    with pytest.raises(UserError, match="no layer 3"), capture(tiny_model("llama"), [Site(3, "act")]):
        pass


def test_layers_that_share_a_module_are_refused() -> None:
    model = tiny_model("llama")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    with pytest.raises(UserError, match="layers 0 and 1 share one"), capture(model, [Site(0, "act")]):
        pass
