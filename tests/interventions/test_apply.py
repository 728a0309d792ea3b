"""Interventions through hooks: each mode and position against an independent calculation by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from interventions.apply import MODES, POSITIONS, Intervention, intervene, with_mask
from interventions.errors import UserError
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.units import Site, base_model, capture, layout_of, module_of
from tests.interventions.making import random_mask
from tests.tiny import MODEL_TYPES, tiny_model

IDS = torch.tensor([[1, 5, 77, 200, 41, 9, 30], [1, 8, 8, 130, 250, 3, 4]])
CONTEXT = 4
STATISTICS = ("mean", "percentile-95", "samples")
ROWS = {
    "context": torch.arange(IDS.shape[1]).expand(IDS.shape) < CONTEXT,
    "last_context": torch.arange(IDS.shape[1]).expand(IDS.shape) == CONTEXT - 1,
    "continuation": torch.arange(IDS.shape[1]).expand(IDS.shape) >= CONTEXT,
}


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


@contextmanager
def edited(model: nn.Module, site: Site, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the responses of one site by hand: plain module code, [batch, seq, units] in canonical order.

    The fused layouts are spelt out here once more, independently of the table.
    """
    config, kind = model.config, site.kind
    heads = getattr(config, "num_attention_heads", None)
    module, slot = module_of(model, site)

    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        shape = tensor.shape
        whole = tensor.view(*IDS.shape, -1)
        if config.model_type in ("gpt_neox", "bloom") and kind in "qkv":
            part = whole.view(*IDS.shape, heads, 3, -1)[..., "qkv".index(kind), :]
            part.copy_(edit(part.flatten(-2)).view_as(part))
        elif config.model_type == "gpt2" and kind in "qkv":
            part = whole.chunk(3, -1)["qkv".index(kind)]
            part.copy_(edit(part.clone()))
        elif config.model_type == "phi3" and kind in ("gate", "up"):
            part = whole.chunk(2, -1)[("gate", "up").index(kind)]
            part.copy_(edit(part.clone()))
        elif config.model_type == "phi3" and kind in "qkv":
            part = whole.split([32, 16, 16], -1)["qkv".index(kind)]
            part.copy_(edit(part.clone()))
        else:
            whole.copy_(edit(whole.clone()))
        return tensor.view(shape)

    if slot.side == "input":
        hook = module.register_forward_pre_hook(lambda _, args: (change(args[0]),))
    else:
        hook = module.register_forward_hook(lambda _, __, output: change(output))
    try:
        yield
    finally:
        hook.remove()


def expected(model: nn.Module, one: Intervention) -> Tensor:
    """Logits under an intervention on one site, by hand."""
    ((site, units),) = one.mask.units.items()
    index = torch.as_tensor(units.astype(np.int64))

    def edit(response: Tensor) -> Tensor:
        new = response.clone()
        statistics = {name: torch.as_tensor(s[site]) for name, s in one.mask.references.items()}
        if one.mode == "zero":
            new[..., index] = 0
        elif one.mode == "scale":
            assert one.factor is not None
            new[..., index] *= one.factor
        elif one.mode == "mean":
            new[..., index] = statistics["mean"]
        elif one.mode == "constant":
            new[..., index] = one.value if one.value is not None else statistics["percentile-95"]
        elif one.mode == "resample":
            new[..., index] = statistics["samples"][np.random.default_rng(one.seed).integers(4)]
        return new if one.positions == "all" else torch.where(ROWS[one.positions][..., None], new, response)

    with edited(model, site, edit):
        return logits(model)


def on_site(mask: Mask, site: Site) -> Mask:
    statistics = {name: {site: by_site[site]} for name, by_site in mask.references.items()}
    return Mask({site: mask.units[site]}, mask.model, {}, statistics)


def variants(mask: Mask) -> list[Intervention]:
    return [
        Intervention(mask, "zero"),
        Intervention(mask, "scale", factor=-1.5),
        Intervention(mask, "mean"),
        Intervention(mask, "constant", value=0.7),
        Intervention(mask, "constant", percentile=95),
        Intervention(mask, "resample", seed=3),
    ]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_kind_and_mode_equals_a_change_by_hand(model_type: str) -> None:
    model = tiny_model(model_type)
    layout = layout_of(model)
    baseline = logits(model)
    every = random_mask(model, layout.kinds, references=STATISTICS)
    for number, kind in enumerate(layout.kinds):
        mask = on_site(every, Site(number % layout.n_layers, kind))
        for one in variants(mask):
            with intervene(model, one, how="hook"):
                got = logits(model)
            torch.testing.assert_close(got, expected(model, one), atol=1e-6, rtol=1e-6)
            assert not torch.equal(got, baseline), one
    assert torch.equal(logits(model), baseline)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "opt", "gpt_neox"])
@pytest.mark.parametrize("positions", ["context", "last_context", "continuation"])
def test_every_position_class_equals_a_change_by_hand(model_type: str, positions: str) -> None:
    model = tiny_model(model_type)
    every = random_mask(model, layout_of(model).kinds, references=STATISTICS)
    for kind in ("act", "attn", "down", "v"):
        for one in variants(on_site(every, Site(1, kind))):
            one = replace(one, positions=positions)  # type: ignore[arg-type]
            with intervene(model, one) as handle:
                handle.position_mask = ROWS[positions]
                got = logits(model)
                assert handle.hooked and not handle.folded
            torch.testing.assert_close(got, expected(model, one), atol=1e-6, rtol=1e-6)


def test_the_continuation_cannot_change_what_comes_before_it() -> None:
    model = tiny_model("llama")
    baseline = logits(model)
    one = Intervention(random_mask(model, ["act"]), positions="continuation")
    with intervene(model, one) as handle:
        handle.position_mask = ROWS["continuation"]
        got = logits(model)
    assert torch.equal(got[:, :CONTEXT], baseline[:, :CONTEXT])
    assert not torch.allclose(got[:, CONTEXT:], baseline[:, CONTEXT:])


def test_a_position_mask_must_be_there_and_fit() -> None:
    model = tiny_model("llama")
    with intervene(model, Intervention(random_mask(model, ["act"]), positions="context")) as handle:
        with pytest.raises(UserError, match="positions=context needs"):
            logits(model)
        handle.position_mask = torch.ones(2, 3, dtype=torch.bool)
        with pytest.raises(UserError, match="has shape"):
            logits(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "opt"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_marks_its_own_positions(model_type: str, positions: str, use_cache: bool) -> None:
    """Greedy generation under an intervention equals choosing each token from a full forward pass."""
    model = tiny_model(model_type)
    one = Intervention(random_mask(model, ["act"], each=20), "constant", value=2.0, positions=positions)  # type: ignore[arg-type]
    prompt = IDS[:, :CONTEXT]
    tokens = prompt
    steps = 5
    with intervene(model, one, how="hook") as handle:
        for _ in range(steps):
            position = torch.arange(tokens.shape[1]).expand(tokens.shape)
            handle.position_mask = {
                "context": position < CONTEXT,
                "last_context": position == CONTEXT - 1,
                "continuation": position >= CONTEXT,
            }
            with torch.no_grad():
                tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
        with handle.generating(CONTEXT):
            generated = base_model(model).generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=steps,
                min_new_tokens=steps,
                do_sample=False,
                use_cache=use_cache,
                eos_token_id=None,
            )
        assert handle.position_mask is None
    assert torch.equal(generated, tokens)


# ------------------------------------------------------------------------------------------------- options


def test_options_that_do_not_go_together_are_refused() -> None:
    mask = random_mask(tiny_model("llama"), ["act"], references=["mean", "percentile-90"])
    for options, message in (
        ({"mode": "remove"}, "unknown mode 'remove'; one of zero, scale"),
        ({"positions": "subject"}, "unknown positions 'subject'"),
        ({"mode": "scale"}, "needs factor="),
        ({"mode": "zero", "factor": 2.0}, "factor= belongs to mode scale"),
        ({"mode": "constant"}, "exactly one of value= and percentile="),
        ({"mode": "constant", "value": 1.0, "percentile": 90.0}, "exactly one"),
        ({"mode": "constant", "percentile": 95.0}, "'percentile-95', which .*it has: mean, percentile-90"),
        ({"mode": "resample"}, "'samples', which the mask does not carry"),
        ({"mode": "scale", "factor": float("nan")}, "finite"),
    ):
        with pytest.raises(UserError, match=message):
            Intervention(mask, **options)  # type: ignore[arg-type]
    assert set(MODES) == {"zero", "scale", "mean", "constant", "resample"}


def test_statistics_of_the_positions_come_before_general_ones() -> None:
    model = tiny_model("llama")
    mask = random_mask(model, ["act"], references=["mean", "mean@context"])
    site = Site(0, "act")
    assert Intervention(mask, "mean").replacements(site) is mask.references["mean"][site]
    at_context = Intervention(mask, "mean", positions="context")
    assert at_context.replacements(site) is mask.references["mean@context"][site]


def test_resampling_takes_every_unit_from_one_prompt_drawn_by_seed() -> None:
    model = tiny_model("llama")
    mask = random_mask(model, ["act", "attn"], references=["samples"])
    rows = set()
    for seed in range(30):
        one = Intervention(mask, "resample", seed=seed)
        found = {
            next(r for r in range(4) if np.array_equal(samples[r], one.replacements(site)))  # type: ignore[arg-type]
            for site, samples in mask.references["samples"].items()
        }
        assert len(found) == 1
        rows |= found
    assert rows == {0, 1, 2, 3}


def test_ids_name_what_is_done_and_nothing_else() -> None:
    model = tiny_model("llama")
    mask = random_mask(model, ["act"], references=["samples"])
    renamed = Mask(mask.units, replace(mask.model, name="elsewhere"), {"other": 1}, mask.references)
    assert Intervention(mask).id == Intervention(renamed).id
    assert Intervention(mask, seed=1).id == Intervention(mask).id
    different = {
        one.id
        for one in (
            Intervention(mask),
            Intervention(mask, positions="context"),
            Intervention(mask, "scale", factor=0.5),
            Intervention(mask, "scale", factor=0.25),
            Intervention(mask, "resample"),
            Intervention(mask, "resample", seed=1),
            Intervention(random_mask(model, ["act"], seed=1)),
            with_mask(Intervention(mask, "constant", value=1), mask),
        )
    }
    assert len(different) == 8
    assert Intervention(mask).id.startswith("zero-")


# --------------------------------------------------------------------------------------- several at once


def parts(model: nn.Module, kind: str = "act") -> tuple[Mask, Mask]:
    """Two masks that share one unit of each layer."""
    identity = ModelId.of(model)
    sites = layout_of(model).sites([kind])
    first = {site: np.array([1, 5, 9]) for site in sites}
    second = {site: np.array([9, 12]) for site in sites}
    return Mask(first, identity), Mask(second, identity)


@pytest.mark.parametrize("how", ["hook", "auto"])
def test_interventions_on_different_units_act_together(how: str) -> None:
    model = tiny_model("llama")
    act, attn = random_mask(model, ["act"]), random_mask(model, ["attn"])
    one, two = Intervention(act), Intervention(attn, "constant", value=0.5)
    with intervene(model, one, two, how=how) as handle:  # type: ignore[arg-type]
        together = logits(model)
        assert (handle.folded, handle.hooked) == ((3, 3) if how == "auto" else (0, 6))
    with intervene(model, two, how="hook"), intervene(model, one, how="hook"):
        nested = logits(model)
    torch.testing.assert_close(together, nested, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("how", ["hook", "auto"])
@pytest.mark.parametrize("kind", ["act", "up", "down", "v"])
def test_the_last_intervention_wins_a_shared_unit_and_says_so(how: str, kind: str) -> None:
    model = tiny_model("llama")
    first, second = parts(model, kind)
    for one, two in (
        (Intervention(first), Intervention(second, "scale", factor=2.0)),
        (Intervention(first, "scale", factor=2.0), Intervention(second, "scale", factor=3.0)),
        (Intervention(first, "constant", value=1.0), Intervention(second)),
    ):
        warned = pytest.warns(UserWarning, match="3 units are named by two interventions")
        with warned, intervene(model, one, two, how=how):  # type: ignore[arg-type]
            got = logits(model)
        left = {site: np.array([1, 5]) for site in first.units}
        apart = replace(one, mask=Mask(left, first.model))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with intervene(model, apart, two, how=how):  # type: ignore[arg-type]
                torch.testing.assert_close(got, logits(model), atol=1e-6, rtol=1e-6)


def test_a_later_part_of_the_input_wins_only_there() -> None:
    """Zero everywhere, then scale at the last context token: there the original response is scaled."""
    model = tiny_model("llama")
    site, index = Site(1, "act"), torch.tensor([3, 7])
    mask = Mask({site: index.numpy()}, ModelId.of(model))

    def edit(response: Tensor) -> Tensor:
        new = response.clone()
        new[..., index] = 0
        new[:, CONTEXT - 1, index] = 2 * response[:, CONTEXT - 1, index]
        return new

    with edited(model, site, edit):
        by_hand = logits(model)
    later = Intervention(mask, "scale", factor=2.0, positions="last_context")
    with pytest.warns(UserWarning, match="2 units"), intervene(model, Intervention(mask), later) as handle:
        assert handle.folded == 0
        handle.position_mask = ROWS["last_context"]
        torch.testing.assert_close(logits(model), by_hand, atol=1e-6, rtol=1e-6)


def test_context_and_continuation_do_not_compete() -> None:
    model = tiny_model("llama")
    mask = random_mask(model, ["act"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = [Intervention(mask, positions="context"), Intervention(mask, positions="continuation")]
        with intervene(model, *split) as handle:
            handle.position_mask = ROWS
            both = logits(model)
    with intervene(model, Intervention(mask)):
        torch.testing.assert_close(both, logits(model), atol=1e-6, rtol=1e-6)


# --------------------------------------------------------------------------------------- being clean


@pytest.mark.parametrize("how", ["hook", "auto"])
def test_nothing_changes_with_an_empty_mask_or_none(how: str) -> None:
    model = tiny_model("llama")
    baseline = logits(model)
    empty = Intervention(Mask({}, ModelId.of(model)))
    with intervene(model, empty, how=how):  # type: ignore[arg-type]
        assert torch.equal(logits(model), baseline)
    with intervene(model, how=how):  # type: ignore[arg-type]
        assert torch.equal(logits(model), baseline)


@pytest.mark.parametrize("how", ["hook", "fold", "auto"])
def test_the_model_is_put_back_after_an_exception(how: str) -> None:
    model = tiny_model("gpt2")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    one = Intervention(random_mask(model, layout_of(model).kinds))
    with pytest.raises(RuntimeError), intervene(model, one, how=how):  # type: ignore[arg-type]
        logits(model)
        raise RuntimeError
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_gradients_flow_through_hooks_and_inputs_are_left_alone() -> None:
    model = tiny_model("llama")
    one = Intervention(random_mask(model, ["act", "gate"]))
    with intervene(model, one, how="hook"), capture(model, [Site(1, "act")]) as values:
        model(IDS).logits.sum().backward()
    assert model.model.embed_tokens.weight.grad is not None
    assert (values[Site(1, "act")][..., one.mask.units[Site(1, "act")]] == 0).all()


@pytest.mark.parametrize("how", ["hook", "fold"])
@pytest.mark.parametrize("model_type", ["llama", "bloom"])
def test_capture_sees_what_the_model_goes_on_with(how: str, model_type: str) -> None:
    model = tiny_model(model_type)
    layout = layout_of(model)
    one = Intervention(random_mask(model, layout.kinds))
    with capture(model, layout.sites()) as before, intervene(model, one, how=how):  # type: ignore[arg-type]
        logits(model)
        seen = {site: values.clone() for site, values in before.items()}
    with intervene(model, one, how=how), capture(model, layout.sites()) as after:  # type: ignore[arg-type]
        logits(model)
    for site, units in one.mask.units.items():
        assert (after[site][..., units] == 0).all() and torch.equal(after[site], seen[site])


# --------------------------------------------------------------------------------- the right model only


def test_a_mask_of_another_model_is_refused_with_both_named() -> None:
    model = tiny_model("llama")
    tuned = tiny_model("llama", seed=1)
    other = tiny_model("llama", intermediate_size=64)
    mask = random_mask(tuned, ["act"])
    one = Intervention(Mask(mask.units, replace(mask.model, name="tuned")))
    prints = [ModelId.of(which).fingerprint[:12] for which in (tuned, model)]
    message = f"other weights: it was made for tuned .*{prints[0]}.*this model is .*{prints[1]}.*--force"
    with pytest.raises(UserError, match=message), intervene(model, one):
        pass
    with intervene(model, one, force=True) as handle:
        assert handle.forced
    with intervene(tuned, one) as handle:
        assert not handle.forced
    for force in (False, True):
        foreign = Intervention(random_mask(other, ["act"]))
        with pytest.raises(UserError, match=r"d_ff 64.*d_ff 48"), intervene(model, foreign, force=force):
            pass


def test_interventions_nest() -> None:
    model = tiny_model("llama")
    baseline = logits(model)
    act, attn = Intervention(random_mask(model, ["act"])), Intervention(random_mask(model, ["attn"]))
    with intervene(model, act, attn):
        both = logits(model)
    with intervene(model, act):
        outer = logits(model)
        with intervene(model, attn):
            torch.testing.assert_close(logits(model), both, atol=1e-6, rtol=1e-6)
        assert torch.equal(logits(model), outer)
        again = Intervention(act.mask, "constant", value=1.0)
        with pytest.raises(UserError, match="enclosing block already changes"), intervene(model, again):
            pass
        assert torch.equal(logits(model), outer)
    assert torch.equal(logits(model), baseline)
    with intervene(model, act):
        pass


def test_bf16_models_take_every_mode() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    mask = random_mask(model, ["act", "attn", "down"], references=STATISTICS)
    for one in variants(mask):
        with intervene(model, one, how="hook"), capture(model, [Site(0, "act")]) as values:
            assert logits(model).dtype == torch.bfloat16
        assert values[Site(0, "act")].dtype == torch.bfloat16


def test_offloaded_models_are_hooked_and_need_no_change_of_weights(tmp_path: object) -> None:
    from accelerate import disk_offload

    model = tiny_model("llama")
    one = Intervention(random_mask(model, ["act", "up", "v"]))
    with intervene(model, one):
        wanted = logits(model)
    offloaded = disk_offload(tiny_model("llama"), str(tmp_path), execution_device=torch.device("cpu"))
    with intervene(offloaded, one) as handle:
        assert handle.folded == 0
        torch.testing.assert_close(logits(offloaded), wanted, atol=1e-6, rtol=1e-6)
    with pytest.raises(UserError, match="is not loaded"), intervene(offloaded, one, how="fold"):
        pass


class Packed(nn.Module):
    """A linear map whose weight is kept in 8 bits, as quantised models keep theirs."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.scale = linear.weight.detach().abs().max() / 127
        whole = (linear.weight.detach() / self.scale).round().to(torch.int8)
        self.weight = nn.Parameter(whole, requires_grad=False)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).T


def test_quantised_models_are_hooked_and_fit_their_own_masks() -> None:
    def packed() -> nn.Module:
        model = tiny_model("llama")
        for layer in model.model.layers:
            for name in ("gate_proj", "up_proj", "down_proj"):
                setattr(layer.mlp, name, Packed(getattr(layer.mlp, name)))
        return model

    model = packed()
    assert not ModelId.of(model).fits(ModelId.of(tiny_model("llama")))
    mask = random_mask(packed(), ["act", "attn"])
    with intervene(model, Intervention(mask)) as handle, capture(model, [Site(2, "act")]) as values:
        assert (handle.folded, handle.hooked) == (3, 3)
        logits(model)
    assert (values[Site(2, "act")][..., mask.units[Site(2, "act")]] == 0).all()
    refused = pytest.raises(UserError, match="not a plain linear")
    with refused, intervene(model, Intervention(mask), how="fold"):
        pass


@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_models_take_folded_masks_and_refuse_hooks_that_they_would_ignore(in_place: bool) -> None:
    inner = tiny_model("llama")
    model: nn.Module = inner
    if in_place:
        inner.compile(backend="eager")
    else:
        model = torch.compile(inner, backend="eager")  # type: ignore[assignment]
    baseline = logits(model)
    one = Intervention(random_mask(model, ["act"]))
    with intervene(tiny_model("llama"), one) as handle:
        wanted = logits(handle.model)
    with intervene(model, one):
        torch.testing.assert_close(logits(model), wanted, atol=1e-6, rtol=1e-6)
    assert torch.equal(logits(model), baseline)
    refused = pytest.raises(UserError, match="is compiled")
    with refused, intervene(model, one, how="hook"):
        pass
    refused = pytest.raises(UserError, match="is compiled")
    with refused, capture(model, [Site(0, "act")]):
        pass


def test_a_mask_that_the_model_ran_past_is_an_error() -> None:
    """A fused kernel that takes the weight but does not call the module would leave a hook unused."""
    model = tiny_model("llama")
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda x: nn.functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x) @ mlp.down_proj.weight.T
    one = Intervention(random_mask(model, ["act"]))
    with pytest.raises(UserError, match=r"did not act: .* of 1\.act"), intervene(model, one, how="hook"):
        logits(model)
    with intervene(model, one, how="hook") as handle:
        assert handle.forward_passes == 0
    with intervene(model, one) as handle:
        logits(model)
        assert handle.folded == 3 and handle.forward_passes == 0
    with intervene(tiny_model("llama"), one, how="hook") as handle:
        logits(handle.model)
        assert handle.forward_passes == 1
