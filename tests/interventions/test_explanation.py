"""An explanation's numbers against the functions they come from, in every family, and its errors."""

from __future__ import annotations

import pytest
import torch

from interventions.attribution.explanation import explain
from interventions.attribution.lens import lens_of
from interventions.attribution.stream import read_stream
from interventions.errors import UserError
from tests.tiny import MODEL_TYPES, tiny_model, tiny_tokenizer

PROMPT = "The capital of Peru is"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_explanation_is_consistent_with_the_model(model_type):
    model, tokenizer = tiny_model(model_type), tiny_tokenizer()
    found = explain(model, tokenizer, PROMPT, top=5, value_neurons=7)
    with torch.no_grad():
        log_probs = model(torch.tensor([tokenizer.encode(PROMPT)])).logits[0, -1].log_softmax(-1)
    assert found.target.id == int(log_probs.argmax()) and found.target.rank == 1
    assert found.target.log_prob == pytest.approx(float(log_probs.max()), abs=1e-3)
    # Sublayer by sublayer the log probability goes from the embedding's to the model's.
    lens, layers = lens_of(model), found.layers
    assert layers[0].before == pytest.approx(found.embedding_log_prob, abs=1e-4)
    parallel = model_type == "gpt_neox"
    if not parallel:
        total = found.embedding_log_prob + sum(row.attention + row.ffn for row in layers)
        assert total == pytest.approx(found.target.log_prob, abs=2e-3)
    scores = [row.score for row in found.ffn_values]
    assert scores == sorted(scores, reverse=True) and len(scores) == 5
    assert len({(r.layer, r.unit, r.position) for r in found.attention_values}) == 5
    for row in found.attention_values:
        head_dim = 12 if model_type in ("qwen3", "gemma2", "gemma3_text") else 8
        assert row.unit == row.head * head_dim + row.dimension
        assert row.position_token == found.tokens[row.position]
    gated = model_type not in ("gpt2", "gpt_neox", "opt", "bloom")
    assert [q.through for q in found.queries] == ["attention", *(["gate"] if gated else []), "up"]
    # A unit's write, read by the lens, raises its promoted tokens and lowers its demoted ones.
    row = found.ffn_values[0]
    assert row.promotes[0].logit > 0 > row.demotes[0].logit
    assert lens.vocab_size == len(log_probs)


def test_a_head_with_one_position_is_that_position():
    tokenizer = tiny_tokenizer()
    tokenizer.add_bos_token = False
    tokenizer._tokenizer.post_processor = None
    found = explain(tiny_model("llama"), tokenizer, "x", top=4)
    assert len(found.tokens) == 1
    for head in found.heads:
        assert head.position_increase == pytest.approx(head.increase, abs=1e-5)


def test_answer_is_explained_when_given():
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    found = explain(model, tokenizer, PROMPT, answer="Lima")
    assert found.target.token == "L"
    stream, lens = read_stream(model, torch.tensor([tokenizer.encode(PROMPT)])), lens_of(model)
    logits = lens.logits(stream.final)[-1]
    assert found.target.rank == 1 + int((logits > logits[found.target.id]).sum())


def test_shares_report_their_floor():
    found = explain(tiny_model("llama"), tiny_tokenizer(), PROMPT, share_floor=0.01)
    assert all(table.shares is not None and table.shares.floor == 0.01 for table in found.queries)


@pytest.mark.parametrize(
    ("prompt", "answer", "message"),
    [
        ("", None, "no tokens"),
        ("x" * 600, None, "more than the model's 512"),
        ("The capital", "", "no tokens of its own"),
    ],
)
def test_errors_name_what_is_wrong(prompt, answer, message):
    with pytest.raises(UserError, match=message):
        explain(tiny_model("llama"), tiny_tokenizer(), prompt, answer=answer)
