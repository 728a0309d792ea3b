"""The attribution table on a tiny model: what is switched off, the statistics, and the files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from interventions.attribution.lens import lens_of
from interventions.attribution.readouts import encode
from interventions.errors import UserError
from interventions.prompts import Prompt
from relbench import attribution_table as module
from relbench.attribution_bench import INCREASE, Config
from relbench.attribution_prompts import Selection, TypedPrompt, typed_relations
from relbench.attribution_table import (
    Value,
    attribution_table,
    cell_text,
    markdown,
    mean_value,
    ratio_value,
    write_table,
)
from tests.tiny import tiny_model, tiny_tokenizer

CONFIG = Config(
    top=4,
    value_attention=6,
    value_ffn=5,
    query_neurons=20,
    value_neurons=5,
    head_share=0.2,
    shared_top=9,
    random_draws=2,
    rows=5,
)


def typed_prompts(tokenizer) -> Selection:
    chosen = []
    for kind, answers in (("capital", ("Oslo", "Rome", "Lima")), ("number", ("four", "six"))):
        for number, answer in enumerate(answers):
            text = f"The {kind} of thing {number} is"
            prompt = Prompt(
                text, f" {answer}", (f" {answer}",), f"{kind}@en", f"{kind}.{number}", text, f"x:{answer}"
            )
            chosen.append(TypedPrompt(kind, prompt, encode(tokenizer, text, answer, first_only=True)))
    looked_at, known = {"capital": 7, "number": 5, "month": 4}, {"capital": 3, "number": 2, "month": 0}
    return Selection(tuple(chosen), looked_at, known)


@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt_neox"])
def table(request):
    model, tokenizer = tiny_model(request.param), tiny_tokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "select_prompts", lambda *_, **__: typed_prompts(tokenizer))
        patch.setattr(module, "typed_relations", lambda names: {})
        return model, tokenizer, attribution_table(model, tokenizer, CONFIG, name="tiny", progress=False)


def test_original_outcomes_are_the_models(table):
    model, tokenizer, found = table
    for record, item in zip(found.prompts, typed_prompts(tokenizer).prompts, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([item.encoded.ids])).logits[0, -1]
        own = record["outcomes"]["original"]
        assert own["log_prob"] == pytest.approx(float(logits.log_softmax(-1)[item.target]), abs=1e-4)
        assert own["reciprocal_rank"] == pytest.approx(1 / float(1 + (logits > logits[item.target]).sum()))


def test_the_best_units_take_more_than_random_ones(table):
    _, _, found = table
    mean = {
        name: np.mean([record["outcomes"][name]["log_prob"] for record in found.prompts])
        for name in found.prompts[0]["outcomes"]
    }
    assert mean[INCREASE] < mean["random"]
    assert mean["value neurons"] < mean["random for value neurons"]


def test_sublayer_sums_span_embedding_to_prediction(table):
    model, tokenizer, found = table
    if model.config.model_type == "gpt_neox":
        return  # Parallel sublayers are not added one after the other.
    from interventions.attribution.stream import read_stream

    lens = lens_of(model)
    for record, item in zip(found.prompts, typed_prompts(tokenizer).prompts, strict=True):
        stream = read_stream(model, torch.tensor([item.encoded.ids])).last()
        first = lens.base(stream.inputs[0], lens.scale(stream.final), torch.tensor([item.target])).log_prob
        total = float(first) + record["attention"] + record["ffn"]
        assert total == pytest.approx(record["outcomes"]["original"]["log_prob"], abs=2e-3)


def test_sections_have_every_score_and_type(table):
    _, _, found = table
    sections = {section.name: section for section in found.sections}
    assert list(sections) == ["scores", "groups", "heads", "types"]
    names = [row[0] for row in sections["scores"].rows]
    assert names[0] == "original" and names[-1] == "random" and len(names) == 13
    assert [row[:3] for row in sections["types"].rows] == [
        ("capital", 3, "3 of 7"),
        ("number", 2, "2 of 5"),
        ("month", 0, "0 of 4"),
    ]
    assert [row[0] for row in sections["heads"].rows] == ["capital", "number", "all types", "random heads"]
    # Of three and two prompts, every second one is measured.
    assert [row[1] for row in sections["heads"].rows] == [1, 1, 2, 2]


def test_files_hold_every_number(table, tmp_path):
    _, _, found = table
    numbers, text = write_table(tmp_path, found)
    content = json.loads(numbers.read_text())
    assert len(content["prompts"]) == 5 and content["config"]["top"] == 4
    assert content["sections"][0]["rows"][0][1].keys() == {"mean", "low", "high"}
    assert text.read_text() == markdown(found)
    assert text.read_text().count("\n| original |") == 1


def test_mean_and_ratio_intervals():
    rng = np.random.default_rng(1)
    values = rng.normal(3, 1, 400)
    value = mean_value(values)
    assert value.mean == pytest.approx(values.mean())
    half = 1.96 * values.std() / 20
    assert value.low == pytest.approx(values.mean() - half, abs=0.02)
    assert value.high == pytest.approx(values.mean() + half, abs=0.02)
    assert ratio_value(values / 2, values) == pytest.approx(Value(-0.5, -0.5, -0.5))
    assert cell_text(Value(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"


def test_relations_without_a_knowledge_type_are_refused():
    assert typed_relations(("country_capital",)) == {"country_capital": "capital"}
    with pytest.raises(UserError, match="none of the six"):
        typed_relations(("star_constellation",))
    assert set(typed_relations().values()) == {"language", "capital", "country", "colour", "number", "month"}
