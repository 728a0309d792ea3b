"""The compared scores against their formulas in float64, one unit at a time, and their pruned tops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from interventions.attribution import compared, importance
from interventions.attribution.lens import lens_of
from interventions.attribution.readouts import Readouts
from interventions.attribution.stream import read_stream, writes_of
from tests.interventions.brute import Brute
from tests.tiny import tiny_model

IDS = torch.tensor([[1, 17, 203, 44, 90, 8, 131]])
READOUTS = Readouts(torch.tensor([0, 0]), torch.tensor([5, 6]), torch.tensor([131, 77]))
FAMILIES = [("llama", {}), ("gpt2", {}), ("gemma3_text", {}), ("gemma2", {"final_logit_softcapping": 3.0})]


@pytest.fixture(params=FAMILIES, ids=lambda family: family[0])
def case(request):
    name, options = request.param
    model = tiny_model(name, **options).double()
    return lens_of(model), read_stream(model, IDS, READOUTS), writes_of(model, "act")


def brute_scores(lens, stream, writes, readout: int, target: int) -> dict[str, torch.Tensor]:
    brute = Brute(None, lens, stream, writes, "act", readout, target)
    nothing = torch.zeros_like(brute.state(0))

    def norm(layer: int, unit: int) -> torch.Tensor:
        return writes[layer].vectors[unit].norm()

    def size(layer: int, unit: int) -> torch.Tensor:
        value = stream.units["act"][layer][readout, unit].abs()
        return value / stream.post_scale["act"][layer, readout] if "act" in stream.post_scale else value

    def raw(layer: int, vector: torch.Tensor) -> torch.Tensor:
        plain = replace(lens, softcap=None, offset=None)
        return Brute(None, plain, stream, writes, "act", readout, target)._logits(vector)

    def rank(layer: int, unit: int) -> torch.Tensor:
        logits = raw(layer, writes[layer].vectors[unit])
        return 1.0 / (1 + (logits > logits[target]).sum())

    return {
        "log-probability-increase": brute.each(brute.first_order),
        "value-log-probability": brute.each(lambda i, n: brute.log_prob(nothing + brute.write(i, n))),
        "probability-increase": brute.each(
            lambda i, n: (
                brute.log_prob(brute.state(i) + brute.write(i, n)).exp()
                - brute.log_prob(brute.state(i)).exp()
            )
        ),
        "value-norm": brute.each(norm),
        "coefficient": brute.each(size),
        "coefficient-norm": brute.each(lambda i, n: size(i, n) * norm(i, n)),
        "direct-logit": brute.each(lambda i, n: raw(i, brute.write(i, n))[target]),
        "reciprocal-rank": brute.each(rank),
        "coefficient-rank": brute.each(lambda i, n: size(i, n) * rank(i, n)),
    }


def test_every_score_is_its_formula(case):
    lens, stream, writes = case
    ranks = compared.Ranks(lens, writes)
    for readout, target in enumerate(READOUTS.targets.tolist()):
        expected = brute_scores(lens, stream, writes, readout, target)
        assert expected.keys() == compared.STATIC.keys() | compared.RANKED.keys()
        for name, values in expected.items():
            if name in compared.RANKED:
                found = compared.RANKED[name](stream, "act", READOUTS.targets, ranks)
            else:
                found = compared.STATIC[name](lens, stream, writes, "act", READOUTS.targets)
            torch.testing.assert_close(found[:, readout], values.double(), rtol=1e-6, atol=1e-9, msg=name)


def test_small_budgets_change_nothing(case):
    lens, stream, writes = case
    for name, score in compared.STATIC.items():
        whole = score(lens, stream, writes, "act", READOUTS.targets)
        pieces = score(lens, stream, writes, "act", READOUTS.targets, budget=1)
        torch.testing.assert_close(pieces, whole, msg=name)
    ranks = [compared.Ranks(lens, writes, budget=budget).of(READOUTS.targets) for budget in (1, 2**28)]
    assert torch.equal(*ranks)


def test_pruned_tops_of_forms_b_and_c(case):
    lens, stream, writes = case
    nothing = torch.zeros_like(stream.inputs)
    alone = replace(stream, inputs=nothing, attention=nothing)
    full = {
        "b": importance.exact(lens, alone, writes, "act", READOUTS.targets),
        "c": compared.probability_increase(lens, stream, writes, "act", READOUTS.targets),
    }
    found = {
        "b": importance.top(lens, alone, writes, "act", READOUTS.targets, 12),
        "c": importance.top(lens, stream, writes, "act", READOUTS.targets, 12, probability=True),
    }
    for name, tops in found.items():
        for readout, top in enumerate(tops):
            torch.testing.assert_close(top.values, full[name][:, readout].flatten().topk(12).values)
