"""What a statistical method reports beside its scores, against scores of the prompts taken apart."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from interventions.controls import contribution, random_like
from interventions.errors import UserError
from interventions.methods import MethodResult, get_method
from interventions.model_id import ModelId
from interventions.prompts import Prompt
from interventions.removed import value_norms
from interventions.scores import Scores
from interventions.selection import top_k
from interventions.statistical.contrasts import Contrast, make_contrasts, thinned
from interventions.units import Site, layout_of
from tests.tiny import FFN, LAYERS, tiny_model, tiny_tokenizer

CONCEPTS = ("capital@x", "money@x", "speech@x")
K = 12


def make_prompts(templates: tuple[str, ...] = ("",), n: int = 12) -> list[Prompt]:
    random = np.random.default_rng(0)
    prompts = []
    for number, concept in enumerate(CONCEPTS):
        for index in range(n):
            word = "".join(random.choice(list("abcdefgh"), 6 + index % 3 + number))
            for template in templates:
                text = f"{template} {word}"
                prompts.append(
                    Prompt(
                        text, " y", (" y",), concept, f"{concept}{index}{template}", f"s{index}", f"a{index % 4}",
                        template=template,
                    )
                )  # fmt: skip
    return prompts


def run(name: str, prompts: list[Prompt], kinds: tuple[str, ...] = ("act",), **options: Any) -> MethodResult:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*units tie at rank")
        return get_method(name).score(
            tiny_model(),
            tiny_tokenizer(),
            prompts,
            CONCEPTS,
            kinds=kinds,
            seed=0,
            options=options,
            progress=False,
        )


def tops(result: MethodResult, k: int = K) -> list[set[int]]:
    """The top k units of each concept."""
    whole = np.concatenate(list(result.values.values()), axis=1)
    return [set(np.argsort(-row, kind="stable")[:k].tolist()) for row in whole]


# --- templates


@pytest.mark.parametrize("name", ["cohens-d", "lape"])
def test_template_overlap_is_that_of_each_template_scored_alone(name: str) -> None:
    prompts = make_prompts(("in short", "to be told"))
    report = run(name, prompts, k=K).parameters["template_overlap"]
    first, second = (
        tops(run(name, [p for p in prompts if p.template == t])) for t in ("in short", "to be told")
    )
    if name == "lape":  # scores of 0 tie at its edge, and are broken by index as `argsort` does
        assert report["shared"].keys() == {"in short+to be told"}
    expected = {c: len(a & b) / K for c, a, b in zip(CONCEPTS, first, second, strict=True)}
    assert report["shared"]["in short+to be told"] == pytest.approx(expected, abs=1e-6)
    assert report["expected"] == pytest.approx(K / (FFN * LAYERS), abs=1e-6)


def test_one_template_has_nothing_to_compare() -> None:
    assert "template_overlap" not in run("cohens-d", make_prompts(("in short",))).parameters


def test_a_template_without_prompts_of_a_concept_is_not_compared() -> None:
    prompts = [p for p in make_prompts(("a", "b")) if not (p.template == "b" and p.concept == CONCEPTS[1])]
    shared = run("cohens-d", prompts, k=K).parameters["template_overlap"]["shared"]["a+b"]
    assert shared[CONCEPTS[1]] is None
    assert 0 < shared[CONCEPTS[0]] <= 1


def test_a_contrast_among_some_prompts_drops_what_is_left_with_too_few() -> None:
    contrast = Contrast((4, 2, 9), np.arange(8), np.array([0, 0, 1, 1, 2, 2, -1, -1]))
    part = contrast.among(np.array([True, True, True, False, True, True, True, False]), least=2)
    assert part.concepts == (4, 9)
    assert part.rows.tolist() == [0, 1, 2, 4, 5, 6]
    assert part.labels.tolist() == [0, 0, -1, 1, 1, -1]


# --- balancing


def test_balancing_reports_how_much_the_top_set_changes() -> None:
    prompts = make_prompts()
    result, plain = run("cohens-d", prompts, balance="answers", k=K), run("cohens-d", prompts, k=K)
    report = result.parameters["balance"]
    assert report["by"] == "answers" and plain.parameters["balance"] == {"by": "none"}
    for concept, after, before in zip(CONCEPTS, tops(result), tops(plain), strict=True):
        assert report["jaccard"][concept] == pytest.approx(
            len(after & before) / len(after | before), abs=1e-6
        )
        assert 0 <= report["jaccard_as_many"][concept] <= 1


def test_thinned_contrasts_have_as_many_prompts_and_no_others() -> None:
    prompts = [replace(p, answer_id="x" if i % 2 else p.answer_id) for i, p in enumerate(make_prompts())]
    plain = make_prompts_contrasts(prompts, "none")
    balanced = make_prompts_contrasts(prompts, "answers")
    drawn = thinned(plain, balanced, CONCEPTS, seed=3)
    for own, like in zip(drawn, balanced, strict=True):
        assert own.concepts == like.concepts
        assert Counter(own.labels.tolist()) == Counter(like.labels.tolist())
        (number,) = own.concepts
        assert {prompts[row].concept for row in own.positives(number)} == {CONCEPTS[number]}
        assert CONCEPTS[number] not in {prompts[row].concept for row in own.negatives(number)}
        assert len(set(own.rows.tolist())) == len(own.rows)
    again = thinned(plain, balanced, CONCEPTS, seed=3)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(drawn, again, strict=True))


def make_prompts_contrasts(prompts: list[Prompt], balance: str) -> list[Contrast]:
    return make_contrasts(prompts, CONCEPTS, balance=balance)


# --- what matched controls need


@pytest.mark.parametrize("pooling", ["mean", "max", "last", "last-subject"])
def test_controls_matched_by_contribution_need_no_model(pooling: str) -> None:
    model = tiny_model()
    prompts = [replace(p, subject_span=(1, 4)) for p in make_prompts()]
    result = run("cohens-d", prompts, ("act", "attn"), pooling=pooling)
    scores = Scores(result.values, CONCEPTS, ModelId.of(model), "cohens-d", references=result.references)
    found, norms = contribution(scores, CONCEPTS[0]), value_norms(model)
    for site in layout_of(model).sites(("act", "attn")):
        np.testing.assert_allclose(
            found[site], scores.reference("mean_abs", CONCEPTS[0])[site] * norms[site], rtol=1e-6
        )
    mask = top_k(scores, CONCEPTS[0], K)
    control = random_like(mask, seed=1, contribution=found, scores=scores)
    assert {site: len(units) for site, units in control.units.items()} == {
        site: len(units) for site, units in mask.units.items()
    }


def test_gate_and_up_units_have_the_norm_of_their_neuron() -> None:
    result = run("cohens-d", make_prompts(), ("gate", "up", "down"))
    assert {site.kind for site in result.references["norm"]} == {"act"}
    scores = Scores(result.values, CONCEPTS, ModelId.of(tiny_model()), "x", references=result.references)
    found = contribution(scores, CONCEPTS[0])
    norm = value_norms(tiny_model())[Site(1, "act")]
    np.testing.assert_allclose(
        found[Site(1, "up")], norm * result.references["mean_abs"][Site(1, "up")], rtol=1e-6
    )


def test_shares_have_no_magnitude() -> None:
    references = run("lape", make_prompts()).references
    assert set(references) == {"norm"}
    scores = Scores(
        run("lape", make_prompts()).values,
        CONCEPTS,
        ModelId.of(tiny_model()),
        "lape",
        references=references,
    )
    with pytest.raises(UserError, match="no reference 'mean_abs'"):
        contribution(scores, CONCEPTS[0])


def test_a_small_budget_changes_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = make_prompts()
    whole = run("cohens-d", prompts, samples=3)
    # The least that users may ask for holds the whole tiny model: blocks of a few units take less.
    monkeypatch.setattr("interventions.memory.LEAST", 1)
    small = run("cohens-d", prompts, samples=3, memory="4k")
    for name, by_site in whole.references.items():
        for site, array in by_site.items():
            np.testing.assert_allclose(small.references[name][site], array, atol=1e-6, err_msg=name)
