"""What a scoring plan reads and which concepts it sets against each other."""

from __future__ import annotations

import numpy as np
import pytest

from interventions.errors import UserError
from interventions.model_id import ModelId
from relbench.scoring import ScoringPlan, score, scoring_prompts
from tests.tiny import tiny_model, tiny_tokenizer

PAIR = ("country_capital", "country_language")


def plan(**options) -> ScoringPlan:
    return ScoringPlan(method="log-probability-increase", relations=PAIR, shots=0, limit=3, **options)


def test_one_language_leaves_the_methods_defaults():
    assert plan().method_options() == {}


def test_negatives_are_other_relations_in_the_same_language():
    negatives = plan(languages=("en", "de")).method_options()["negatives"]
    assert negatives["country_capital@de"] == ["country_language@de"]
    assert len(negatives) == 4


def test_contrast_relations_are_read_but_not_scored():
    fold = plan(contrast_relations=("country_currency", "country_capital"))
    read = {prompt.concept for prompt in scoring_prompts(fold)}
    assert read == {"country_capital@en", "country_language@en", "country_currency@en"}
    assert fold.method_options()["negatives"] == {
        "country_capital@en": ["country_currency@en"],
        "country_language@en": ["country_currency@en", "country_capital@en"],
    }
    model = tiny_model("llama")
    found = score(fold, model, tiny_tokenizer(), ModelId.of(model), progress=False)
    assert found.concepts == ("country_capital@en", "country_language@en")
    assert found.parameters["negatives"] == {
        "country_capital@en": ["country_currency@en"],
        "country_language@en": ["country_currency@en", "country_capital@en"],
    }


def test_statistical_methods_take_the_same_negatives():
    fold = ScoringPlan("mean-difference", PAIR, contrast_relations=("country_currency",), shots=0, limit=3)
    model = tiny_model("llama")
    found = score(fold, model, tiny_tokenizer(), ModelId.of(model), progress=False)
    assert found.parameters["negatives"]["country_capital@en"] == ["country_currency@en"]


def test_scores_without_contrast_are_the_plain_means():
    model = tiny_model("llama")
    rows = [
        score(
            plan(options={"contrast": contrast}), model, tiny_tokenizer(), ModelId.of(model), progress=False
        )
        for contrast in ("none", "others")
    ]
    for site, values in rows[0].values.items():
        np.testing.assert_allclose(rows[1].values[site][0], values[0] - values[1], atol=1e-5)


def test_an_unknown_contrast_relation_is_named():
    with pytest.raises(UserError, match="country_kapital"):
        scoring_prompts(plan(contrast_relations=("country_kapital",)))


def test_several_templates_are_told_apart() -> None:
    read = scoring_prompts(
        ScoringPlan("average-precision", ("country_capital",), template="completion,question", limit=3)
    )
    assert [prompt.template for prompt in read] == ["completion"] * 3 + ["question"] * 3
    assert [prompt.id for prompt in read[:3]] == [prompt.id for prompt in read[3:]]
