"""Log-probability increase against float64 brute force: exact, first-order, and the pruned top K."""

from __future__ import annotations

import pytest
import torch

from interventions.attribution import importance
from interventions.attribution.attention import read_attention
from interventions.attribution.lens import lens_of
from interventions.attribution.readouts import Readouts
from interventions.attribution.stream import read_stream, writes_of
from tests.interventions.brute import Brute
from tests.tiny import tiny_model

IDS = torch.tensor([[1, 17, 203, 44, 90, 8, 131], [1, 5, 66, 7, 250, 33, 0]])
READOUTS = Readouts(torch.tensor([0, 0, 1]), torch.tensor([5, 6, 4]), torch.tensor([131, 77, 33]))
FAMILIES = [
    ("llama", {}),
    ("gpt2", {}),
    ("gpt_neox", {}),
    ("gemma3_text", {}),
    ("olmo2", {}),
    ("gemma2", {"final_logit_softcapping": 3.0}),
]


@pytest.fixture(params=FAMILIES, ids=lambda family: family[0])
def case(request):
    """A tiny model in double precision, its lens and its stream at three readouts."""
    name, options = request.param
    model = tiny_model(name, **options).double()
    return model, lens_of(model), read_stream(model, IDS, READOUTS)


@pytest.mark.parametrize("kind", ["act", "attn"])
def test_scores_equal_brute_force(case, kind):
    model, lens, stream = case
    writes = writes_of(model, kind)
    exact = importance.exact(lens, stream, writes, kind, READOUTS.targets)
    first = importance.first_order(lens, stream, writes, kind, READOUTS.targets)
    for readout, target in enumerate(READOUTS.targets.tolist()):
        brute = Brute(model, lens, stream, writes, kind, readout, target)
        torch.testing.assert_close(exact[:, readout], brute.each(brute.increase), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(first[:, readout], brute.each(brute.first_order), rtol=1e-9, atol=1e-11)
    if lens.softcap is None:
        assert bool((first >= exact - 1e-12).all()), "the first-order score bounds the exact one"


@pytest.mark.parametrize("kind", ["act", "attn"])
@pytest.mark.parametrize("k", [1, 7, 10_000])
def test_pruned_top_is_the_full_top(case, kind, k):
    model, lens, stream = case
    writes = writes_of(model, kind)
    full = importance.exact(lens, stream, writes, kind, READOUTS.targets)
    for readout, top in enumerate(importance.top(lens, stream, writes, kind, READOUTS.targets, k)):
        values = full[:, readout].flatten()
        best = values.topk(min(k, len(values)))
        torch.testing.assert_close(top.values, best.values)
        width = full.shape[-1]
        assert (top.layers * width + top.units).tolist() == best.indices.tolist()


def test_pruning_leaves_most_units_unevaluated():
    model = tiny_model("llama", intermediate_size=2000)
    lens, stream = lens_of(model), read_stream(model, IDS, READOUTS)
    tops = importance.top(lens, stream, writes_of(model, "act"), "act", READOUTS.targets, 20)
    assert all(top.evaluated < 600 for top in tops)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_single_precision_is_close_to_double(name):
    single, double = tiny_model(name), tiny_model(name).double()
    found = [
        importance.exact(
            lens_of(m), read_stream(m, IDS, READOUTS), writes_of(m, "act"), "act", READOUTS.targets
        )
        for m in (single, double)
    ]
    scale = found[1].abs().amax()
    assert float((found[0] - found[1]).abs().amax() / scale) < 1e-5


def test_small_budgets_change_nothing(case):
    model, lens, stream = case
    writes = writes_of(model, "act")
    for score in (importance.exact, importance.first_order):
        whole = score(lens, stream, writes, "act", READOUTS.targets)
        pieces = score(lens, stream, writes, "act", READOUTS.targets, budget=1)
        torch.testing.assert_close(pieces, whole)
    tops = [importance.top(lens, stream, writes, "act", READOUTS.targets, 9, budget=b) for b in (1, 2**28)]
    for small, large in zip(*tops, strict=True):
        torch.testing.assert_close(small.values, large.values)


def test_layers_and_heads_are_scored_as_vectors(case):
    _, lens, stream = case
    scale, states = lens.scale(stream.final), stream.before("attn")[1]
    base = lens.base(states, scale, READOUTS.targets)
    rows = torch.arange(3)
    found = importance.of_vectors(lens, base, stream.attention[1], rows, scale, READOUTS.targets)
    after = lens.base(states + stream.attention[1], scale, READOUTS.targets).log_prob
    torch.testing.assert_close(found, after - base.log_prob)


def test_attention_units_by_position(case):
    """Pairs of unit and position, against brute force."""
    model, lens, _ = case
    last = Readouts(torch.tensor([0]), torch.tensor([6]), torch.tensor([77]))
    stream, writes = read_stream(model, IDS[:1], last), writes_of(model, "attn")
    coefficients = read_attention(model, IDS[:1]).coefficients().double()
    found = importance.top_by_position(
        lens, stream, writes, coefficients, last.targets[0], 10**6, budget=10**6
    )
    brute = Brute(model, lens, stream, writes, "attn", 0, 77)
    assert len(found.values) == coefficients.numel()
    scale = stream.post_scale["attn"][:, 0] if "attn" in stream.post_scale else torch.ones(3)
    for index in range(0, len(found.values), 97):
        layer, unit, position = (int(x[index]) for x in (found.layers, found.units, found.positions))
        write = coefficients[layer, unit, position] / scale[layer] * writes[layer].vectors[unit]
        before = brute.state(layer)
        expected = brute.log_prob(before + write) - brute.log_prob(before)
        torch.testing.assert_close(found.values[index], expected, rtol=1e-9, atol=1e-11)
    few = importance.top_by_position(lens, stream, writes, coefficients, last.targets[0], 9)
    torch.testing.assert_close(few.values, found.values[:9])
    assert lens.softcap is not None or few.evaluated < coefficients.numel()
