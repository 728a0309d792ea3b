"""Gradient attributions against finite differences, completeness and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interventions.attribution import gradients
from interventions.attribution.lens import lens_of
from interventions.attribution.readouts import Readouts
from interventions.errors import UserError
from interventions.families import family_of
from interventions.methods import get_method
from interventions.prefix import Prefix
from interventions.units import decoder_layers, follow
from tests.interventions.test_attribution import PROMPTS, whole
from tests.tiny import tiny_model, tiny_tokenizer

IDS = torch.tensor([[1, 17, 203, 44, 90, 8, 131]])
LAST = Readouts(torch.tensor([0]), torch.tensor([6]), torch.tensor([77]))
FAMILIES = ["llama", "gpt2", "gpt_neox", "opt", "bloom", "gemma2", "olmo2"]


def log_prob(model, change=None, ids=IDS, target=77) -> float:
    """log p(target) with one unit's activation at the last position put through `change`."""
    handle = None
    if change is not None:
        module, unit, function = change

        def hook(_, args):
            value = args[0].clone()
            flat = value.view(-1, value.shape[-1])
            flat[-1, unit] = function(flat[-1, unit])
            return (value,)

        handle = module.register_forward_pre_hook(hook)
    with torch.no_grad():
        found = model(ids).logits[0, -1].log_softmax(-1)[target].item()
    if handle is not None:
        handle.remove()
    return found


def projection(model, layer, kind="act"):
    return follow(decoder_layers(model)[layer], family_of(model.config).slots[kind].module)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_gradient_is_that_of_finite_differences(model_type):
    model = tiny_model(model_type).double()
    found = gradients.unit_gradients(model, lens_of(model), IDS, LAST, ("act",))
    # Norms that work in float32 inside need a larger step.
    step = 1e-2
    for layer, unit in ((0, 3), (1, 40), (2, 17)):
        up, low = (
            log_prob(model, (projection(model, layer), unit, lambda v, s=s: v + s)) for s in (step, -step)
        )
        slope = found.slopes["act"][layer, 0, -1, unit].item()
        assert slope == pytest.approx((up - low) / (2 * step), rel=2e-3, abs=2e-4)


def test_weights_get_no_gradient_and_keep_wanting_one():
    model = tiny_model("llama")
    gradients.unit_gradients(model, lens_of(model), IDS, LAST, ("act", "attn"))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_pre_hooks for m in model.modules())


# Where a norm follows the sublayer, nearly all of the integral lies next to 0, out of a Riemann sum's reach.
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox", "opt", "bloom"])
@pytest.mark.parametrize("kind", ["act", "attn"])
def test_integrated_gradients_of_a_layer_sum_to_what_switching_it_off_takes(model_type, kind):
    model = tiny_model(model_type).double()
    found = gradients.integrated_gradients(
        model, lens_of(model), IDS[0].tolist(), 77, (kind,), steps=1000, rows=750
    )[kind]
    for layer in range(3):
        module = projection(model, layer, kind)
        off = np.exp(log_prob(model, (module, slice(None), lambda v: v * 0)))
        assert found[layer].sum().item() == pytest.approx(np.exp(log_prob(model)) - off, rel=0.03, abs=1e-5)


def test_integrated_gradients_do_not_depend_on_rows_or_prefix():
    model = tiny_model("gemma3_text")
    ids = IDS[0].tolist()
    lens = lens_of(model)
    whole_run = gradients.integrated_gradients(model, lens, ids, 77, ("act",), steps=5)["act"]
    pieces = gradients.integrated_gradients(
        model, lens, ids, 77, ("act",), steps=5, rows=4, prefix=Prefix(model, ids[:3])
    )["act"]
    torch.testing.assert_close(pieces, whole_run, rtol=1e-4, atol=1e-8)


def test_patching_everywhere_is_the_sum_over_positions():
    model, other = tiny_model("llama").double(), torch.tensor([[1, 99, 203, 5, 90, 8, 12]])
    lens = lens_of(model)
    found = gradients.attribution_patching_everywhere(model, lens, IDS, LAST, other, ("act",))["act"]
    clean = gradients.unit_gradients(model, lens, IDS, LAST, ("act",))
    corrupt = gradients.unit_values(model, other, ("act",))["act"]
    by_position = (clean.values["act"] - corrupt) * clean.slopes["act"]
    torch.testing.assert_close(found[:, 0], sum(by_position[:, 0, p] for p in range(7)))
    with pytest.raises(UserError, match="equal length"):
        gradients.attribution_patching_everywhere(model, lens, IDS, LAST, other[:, 1:], ("act",))


def score(name, model, prompts=PROMPTS, **options):
    return get_method(name).score(
        model,
        tiny_tokenizer(),
        prompts,
        ("cap", "lang"),
        kinds=("act",),
        seed=3,
        options=options,
        progress=False,
    )


@pytest.mark.parametrize("name", ["gradient-activation", "integrated-gradients", "attribution-patching"])
def test_methods_do_not_depend_on_batches(name):
    model = tiny_model("llama")
    options = {"steps": 3} if name == "integrated-gradients" else {}
    found = [whole(score(name, model, batch_size=size, **options)) for size in (1, 8)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-6)
    assert np.abs(found[0]).max() > 0


def test_gradient_activation_sums_over_the_answers_tokens():
    """Against scaling a unit at the answer's readouts."""
    model, tokenizer = tiny_model("llama").double(), tiny_tokenizer()
    item = PROMPTS[1]
    found = get_method("gradient-activation").score(
        model,
        tokenizer,
        [item],
        ("cap",),
        kinds=("act",),
        seed=0,
        options={"contrast": "none"},
        progress=False,
    )
    context, ids = tokenizer.encode(item.text), tokenizer.encode(item.text + item.answer)

    def answer_log_prob(factor: float) -> float:
        def hook(_, args):
            value = args[0].clone()
            value[:, len(context) - 1 :, 5] *= factor
            return (value,)

        handle = projection(model, 1).register_forward_pre_hook(hook)
        with torch.no_grad():
            log_probs = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        handle.remove()
        return sum(log_probs[p - 1, ids[p]].item() for p in range(len(context), len(ids)))

    slope = (answer_log_prob(1.05) - answer_log_prob(0.95)) / 0.1
    values = [found.values[site] for site in found.values if site.layer == 1]
    assert values[0][0, 5] == pytest.approx(slope, rel=1e-2)


def test_patching_draws_by_seed_and_reports_prompts_without_counterfactual():
    model = tiny_model("llama")
    first, again = score("attribution-patching", model), score("attribution-patching", model)
    np.testing.assert_array_equal(whole(first), whole(again))
    assert first.parameters["prompts_without_counterfactual"] == 0
    with pytest.raises(UserError, match="of equal length"):
        score("attribution-patching", model, counterfactual_positions="all")
