"""The lens and the pruned search on the embedded models, whose sizes and norms no tiny model has."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from interventions.attribution import importance
from interventions.attribution.lens import lens_of
from interventions.attribution.readouts import Readouts
from interventions.attribution.stream import read_stream, writes_of

PROMPT, ANSWER = "The capital of Japan is", " Tokyo"


def check_sums(path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    stream, lens = read_stream(model, ids), lens_of(model)
    with torch.no_grad():
        logits = model(ids).logits[0]
    torch.testing.assert_close(lens.logits(stream.final), logits, rtol=1e-4, atol=1e-4)
    total = stream.inputs[0] + stream.attention.sum(0) + stream.ffn.sum(0)
    close = {"rtol": 1e-4, "atol": 1e-4 * float(stream.final.abs().max())}
    torch.testing.assert_close(total, stream.final, **close)
    for kind in ("attn", "act"):
        for layer, write in enumerate(writes_of(model, kind)):
            found = stream.coefficients(kind, layer, torch.float32) @ write.vectors
            close["atol"] = 1e-4 * max(1.0, float(stream.added(kind)[layer].abs().max()))
            torch.testing.assert_close(found, stream.added(kind)[layer], **close)


@pytest.mark.model
def test_contributions_sum_on_the_default_model(embedded_model_path):
    check_sums(embedded_model_path)


@pytest.mark.model
def test_contributions_sum_with_norms_after_the_sublayers(multilingual_model_path):
    check_sums(multilingual_model_path)


@pytest.mark.model
@pytest.mark.slow
def test_pruned_top_300_is_the_full_top_300(embedded_model_path):
    model = AutoModelForCausalLM.from_pretrained(embedded_model_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path)
    ids = tokenizer.encode(PROMPT)
    target = tokenizer.encode(PROMPT + ANSWER)[len(ids)]
    last = Readouts(torch.tensor([0]), torch.tensor([len(ids) - 1]), torch.tensor([target]))
    lens, writes = lens_of(model), writes_of(model, "act")
    stream = read_stream(model, torch.tensor([ids]), last)
    top = importance.top(lens, stream, writes, "act", last.targets, 300)[0]
    values = importance.exact(lens, stream, writes, "act", last.targets)[:, 0]
    best = values.flatten().topk(300).values
    torch.testing.assert_close(top.values, best, rtol=0, atol=2e-6)
    # The same set up to ties: every unit found is worth at least the 300th value.
    assert float((values[top.layers, top.units] - best[-1]).min()) > -1e-6
    assert len({*zip(top.layers.tolist(), top.units.tolist(), strict=True)}) == 300
    assert top.evaluated < 400
