"""The planted model does what it says: its units, switched off, do what the truth foretells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from interventions.apply import Intervention, intervene
from interventions.correct import answered_correctly
from interventions.errors import UserError
from interventions.grading import grade, grade_scores
from interventions.mask import Mask
from interventions.methods import get_method
from interventions.model_id import ModelId
from interventions.planted.facts import N_ANSWERS, RELATIONS, Settings
from interventions.planted.model import TEMPLATES, Planted
from interventions.planted.weights import N_UNITS
from interventions.prompts import Prompt
from interventions.scores import Scores
from interventions.units import Site, layout_of
from relbench.cli import relbench

EXACT = Settings(noise=0.0, subjects=80)
Units = Mapping[Site, np.ndarray]


@pytest.fixture(scope="module")
def exact() -> tuple[Planted, Any, Any]:
    planted = Planted(EXACT)
    return planted, planted.model(), planted.tokenizer()


def recall(model: Any, tokenizer: Any, prompts: list[Prompt]) -> dict[str, float]:
    """Share of each relation's prompts whose greedy continuation is the answer."""
    correct = answered_correctly(model, tokenizer, prompts)
    by_relation: dict[str, list[bool]] = {}
    for prompt, right in zip(prompts, correct, strict=True):
        by_relation.setdefault(prompt.concept, []).append(right)
    return {relation: float(np.mean(values)) for relation, values in by_relation.items()}


def without(exact: tuple[Planted, Any, Any], units: Units) -> dict[str, float]:
    """Recall with `units` set to zero."""
    planted, model, tokenizer = exact
    mask = Mask({site: indices.astype(np.int32) for site, indices in units.items()}, ModelId.of(model))
    with intervene(model, Intervention(mask)):
        return recall(model, tokenizer, planted.prompts("eval"))


def count(units: Units) -> int:
    return sum(len(indices) for indices in units.values())


@pytest.mark.parametrize(("template", "shots"), [*((t, 0) for t in TEMPLATES), ("completion", 5)])
def test_it_answers_every_template(exact: tuple[Planted, Any, Any], template: str, shots: int) -> None:
    planted, model, tokenizer = exact
    found = recall(model, tokenizer, planted.prompts("eval", template, shots=shots))
    # All but the relation that another one's units interfere with.
    assert all(found[relation] == 1 for relation in RELATIONS if relation != "dish")
    assert 0.4 < found["dish"] < 1


def test_a_relations_units_carry_it_and_no_other(exact: tuple[Planted, Any, Any]) -> None:
    planted = exact[0]
    before = without(exact, {})
    for relation, units in planted.truth.relations.items():
        after = without(exact, units)
        assert after[relation] < 2.5 / N_ANSWERS  # a guess
        for other in RELATIONS:
            if other != relation and (relation, other) not in planted.truth.interfering:
                assert after[other] == before[other]


def test_interfering_units_off_raise_the_other_relation_and_leave_their_own(
    exact: tuple[Planted, Any, Any],
) -> None:
    planted = exact[0]
    before = without(exact, {})
    ((carrier, harmed), units), *_ = planted.truth.interfering.items()
    after = without(exact, units)
    assert before[harmed] < 1 and after[harmed] == 1 and after[carrier] == 1
    assert without(exact, planted.truth.relations[carrier])[harmed] == 1


def test_shared_units_belong_to_both_and_matter_to_both(exact: tuple[Planted, Any, Any]) -> None:
    planted = exact[0]
    sites = layout_of(exact[1]).sites(("act",))
    for (first, second), units in planted.truth.shared.items():
        in_both = planted.truth.labels(first, sites) & planted.truth.labels(second, sites)
        assert count(units) == int(in_both.sum()) == 8
        # Without a relation's own units, what is shared still narrows its answers to three or four.
        own = {
            site: np.setdiff1d(indices, units.get(site, []))
            for site, indices in planted.truth.relations[first].items()
        }
        assert 1.5 / N_ANSWERS < without(exact, own)[first] < 1


def test_confounds_and_random_units_change_nothing(exact: tuple[Planted, Any, Any]) -> None:
    planted = exact[0]
    before = without(exact, {})
    for units in (*planted.truth.answer_confounds.values(), planted.truth.length_confounds):
        assert count(units) > 0 and without(exact, units) == before
    sites = layout_of(exact[1]).sites(("act",))
    planted_anywhere = np.any([planted.truth.labels(relation, sites) for relation in RELATIONS], axis=0)
    noise = np.flatnonzero(~planted_anywhere)
    chosen = np.random.default_rng(0).choice(noise, 200, replace=False)
    units = {site: np.sort(chosen[chosen // 256 == site.layer] % 256) for site in sites}
    assert without(exact, units) == before


def test_answer_confounds_fire_on_the_most_frequent_answer_only(exact: tuple[Planted, Any, Any]) -> None:
    planted, model, tokenizer = exact
    prompts = planted.prompts("detect")
    result = get_method("mean-difference").score(
        model,
        tokenizer,
        prompts,
        RELATIONS,
        kinds=("act",),
        seed=0,
        options={"pooling": "last"},
        progress=False,
    )
    from interventions.responses import collect

    site, indices = next(iter(planted.truth.answer_confounds["anthem"].items()))
    unit = int(indices[0])
    responses = collect(model, tokenizer, prompts, [site], pooling="last").site(site)[:, unit]
    fires = {p.answer_id for p, value in zip(prompts, responses, strict=True) if value > 1}
    assert fires == {"anthem0"}
    # It tells the relation from others well enough to look like one of its units.
    assert result.values[site][RELATIONS.index("anthem"), unit] > 1


def test_balancing_answers_and_lengths_demotes_the_confounds() -> None:
    planted = Planted(Settings(noise=0.5))
    model, tokenizer = planted.model(), planted.tokenizer()
    sites = layout_of(model).sites(("act",))

    def ranks(relation: str, units: Units, template: str, balance: str) -> float:
        """Mean rank of `units` among all, by AP for `relation`."""
        result = get_method("average-precision").score(
            model,
            tokenizer,
            planted.prompts("detect", template),
            (relation,),
            kinds=("act",),
            seed=0,
            options={"balance": balance, "pooling": "mean"},
            progress=False,
        )
        scores = np.concatenate([result.values[site][0] for site in sites])
        chosen = np.concatenate([site.layer * 256 + indices for site, indices in units.items()])
        return float(np.mean([(scores > scores[unit]).mean() for unit in chosen]))

    confounds = planted.truth.answer_confounds["anthem"]
    assert ranks("anthem", confounds, "completion", "answers") > ranks(
        "anthem", confounds, "completion", "none"
    )
    lengths = planted.truth.length_confounds
    assert ranks("anthem", lengths, "wordy", "none") < 0.1
    assert ranks("anthem", lengths, "wordy", "length") > 0.2


def test_the_same_settings_give_the_same_model_and_seeds_differ() -> None:
    first, again, other = (Planted(Settings(seed=seed, subjects=60)) for seed in (0, 0, 1))
    state, same, different = (one.model().state_dict() for one in (first, again, other))
    assert all(torch.equal(state[name], same[name]) for name in state)
    assert not torch.equal(state["lm_head.weight"], different["lm_head.weight"])
    assert first.prompts() == again.prompts() != other.prompts()


def test_splits_and_vocabulary(exact: tuple[Planted, Any, Any]) -> None:
    planted, _, tokenizer = exact
    subjects = {split: {p.subject_id for p in planted.prompts(split)} for split in planted.facts.splits}
    assert not subjects["detect"] & subjects["eval"] and not subjects["shots"] & subjects["eval"]
    prompt = planted.prompts("eval", "question", shots=2)[-1]
    ids = tokenizer(prompt.text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id and tokenizer.unk_token_id not in ids
    assert (
        tokenizer.decode(tokenizer(prompt.answer, add_special_tokens=False)["input_ids"]) == prompt.answer[1:]
    )
    assert prompt.subject_span is not None
    assert prompt.text[slice(*prompt.subject_span)] == prompt.subject_id
    for wrong in ({"split": "tune"}, {"template": "cloze"}, {"relations": ("moon",)}, {"shots": 11}):
        with pytest.raises(UserError, match="the planted model has"):
            planted.prompts(**wrong)
    for bad in ({"noise": -1.0}, {"subjects": 3}, {"seed": -1}):
        with pytest.raises(UserError):
            Settings(**bad)


# --- grading


def test_grades_tell_selectors_from_chance() -> None:
    found = {name: grade(name, EXACT, ks=(8, 24)) for name in ("average-precision", "cohens-d", "random")}
    for name, grades in found.items():
        assert [one.relation for one in grades] == list(RELATIONS)
        for one in grades:
            hits = one.at[24].precision * 24
            assert one.at[24].recall == pytest.approx(hits / one.planted)
            assert one.planted == (32 if one.relation == "river" else 24)
        mean = np.mean([one.auprc for one in grades])
        assert mean < 0.1 if name == "random" else mean > 0.8
    noisy = grade("average-precision", Settings(noise=2.0, subjects=80))
    assert np.mean([g.auprc for g in noisy]) < np.mean([g.auprc for g in found["average-precision"]])


def test_perfect_scores_have_a_perfect_grade() -> None:
    planted = Planted(EXACT)
    model = planted.model()
    sites = layout_of(model).sites(("act",))
    truth = np.stack([planted.truth.labels(relation, sites) for relation in RELATIONS]).astype(np.float32)
    scores = Scores(
        values={site: truth[:, i * 256 : (i + 1) * 256] for i, site in enumerate(sites)},
        concepts=tuple(f"{relation}@en" for relation in RELATIONS),
        model=ModelId.of(model),
        method="oracle",
    )
    for one in grade_scores(scores, EXACT, ks=(24,)):
        assert one.auprc == 1 and one.at[24].precision == 1 and one.at[24].confounds == 0
    with pytest.raises(UserError, match="not of the planted model with noise 1 and seed 0"):
        grade_scores(scores, Settings(noise=1.0, subjects=80))
    with pytest.raises(UserError, match=f"k is 5000; the planted model has {N_UNITS} act units"):
        grade_scores(scores, EXACT, ks=(5000,))
    with pytest.raises(UserError, match="'moon' is not planted"):
        grade_scores(
            Scores({s: v[:1] for s, v in scores.values.items()}, ("moon@en",), scores.model, "oracle"), EXACT
        )


# --- commands


def test_written_files_are_the_model_and_its_truth(tmp_path: Path) -> None:
    out = tmp_path / "planted"
    arguments = ["planted", "-o", str(out), "--noise", "0", "--subjects", "80"]
    assert CliRunner().invoke(relbench, arguments, catch_exceptions=False).exit_code == 0
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    assert ModelId.of(model).fits(ModelId.of(Planted(EXACT).model()))
    lines = [json.loads(line) for line in (out / "prompts.jsonl").read_text().splitlines()]
    chosen = [line for line in lines if line["split"] == "eval" and line["template"] == "completion"]
    fields = ("text", "answer", "concept", "id", "subject_id", "answer_id")
    prompts = [
        Prompt(**{name: line[name] for name in fields}, accepted=tuple(line["accepted"])) for line in chosen
    ]
    mask = Mask.load(out / "masks" / "anthem.mask")
    with intervene(model, Intervention(mask)):
        found = recall(model, tokenizer, prompts)
    assert found["anthem"] < 2.5 / N_ANSWERS and found["capital"] == 1
    truth = json.loads((out / "truth.json").read_text())
    assert truth["settings"] == {"noise": 0.0, "seed": 0, "subjects": 80}
    assert sum(map(len, truth["truth"]["relations"]["anthem"].values())) == len(mask)
    # A second run does not write into it.
    again = CliRunner().invoke(relbench, arguments)
    assert isinstance(again.exception, UserError) and "not empty" in str(again.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["planted"]


def test_grade_prints_a_table_and_writes_it(tmp_path: Path) -> None:
    csv = tmp_path / "grades.csv"
    arguments = [
        "grade",
        "average-precision",
        "random",
        "--noise",
        "0",
        "--k",
        "8",
        "--k",
        "24",
        "--csv",
        str(csv),
    ]
    result = CliRunner().invoke(relbench, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "AUPRC" in result.output and "random" in result.output
    rows = csv.read_text().splitlines()
    assert rows[0] == (
        "method,noise,relation,precision@8,recall@8,confounds@8,precision@24,recall@24,confounds@24,AUPRC"
    )
    assert len(rows) == 3
    for wrong, message in (
        ([], "name a scoring method"),
        (["best"], "unknown scoring method 'best'"),
        (["random", "--option", "x"], "KEY=VALUE"),
        (["random", "--option", "x={"], "broken YAML"),
        (["random", "--option", "x=1"], "unknown option 'x'"),
    ):
        failed = CliRunner().invoke(relbench, ["grade", *wrong])
        assert isinstance(failed.exception, UserError) and message in str(failed.exception)
