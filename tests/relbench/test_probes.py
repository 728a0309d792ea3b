"""Probes: templates, shots, and which answers can be copied or were seen."""

from __future__ import annotations

import pytest

from interventions.errors import UserError
from relbench.probes import fewshot_prefix, is_copyable, majority, probes
from relbench.prompts import parse_concept, prompts
from relbench.relations import SPLITS, load_facts, load_relation, relation_names


@pytest.mark.parametrize(
    ("subject", "answers", "expected"),
    [
        ("France", ("French",), True),
        ("Spain", ("Spanish",), True),
        ("Germany", ("German",), True),
        ("Mexico City", ("Mexico",), True),
        ("Bank of England", ("England",), True),
        ("Guatemala", ("Guatemala City",), True),
        ("Canada", ("dollar", "Canadian dollar"), False),
        ("Japan", ("Tokyo",), False),
        ("Austria", ("German",), False),
        ("Hydrogen", ("H",), False),
        ("德国", ("德语",), True),
        ("日本", ("日本語",), True),
        ("法国", ("巴黎",), False),
        ("エッフェル塔", ("フランス",), False),
    ],
)
def test_copyable(subject: str, answers: tuple[str, ...], expected: bool) -> None:
    assert is_copyable(subject, answers) is expected


def test_shots_are_fixed_by_their_seed_alone() -> None:
    first = [probe.fact_id for probe in probes("country_capital", "en", "shots")]
    assert first == [probe.fact_id for probe in probes("country_capital", "de", "shots")]
    assert first == [probe.fact_id for probe in probes("country_capital", "en", "shots", "question")]
    other = [probe.fact_id for probe in probes("country_capital", "en", "shots", shots_seed=1)]
    assert sorted(other) == sorted(first)
    assert other != first


def test_prompts_are_shots_then_the_question() -> None:
    shots = probes("country_capital", "ja", "shots")[:3]
    asked = probes("country_capital", "ja", "eval")[0]
    prompt = prompts(["country_capital"], ["ja"], "eval", shots=3, limit=1)[0]
    assert prompt.text == fewshot_prefix(shots) + asked.prompt
    assert prompt.answer == asked.answer
    assert prompt.subject_span is not None
    assert prompt.text[slice(*prompt.subject_span)] == asked.subject


def test_answer_seen_means_a_right_answer_of_a_detect_fact() -> None:
    detect = {o.id for f in load_facts("landmark_in_country") if f.split == "detect" for o in f.objects}
    facts = {fact.id: fact for fact in load_facts("landmark_in_country")}
    tested = probes("landmark_in_country", "en", "eval")
    for probe in tested:
        assert probe.answer_seen == any(o.id in detect for o in facts[probe.fact_id].objects)
    assert {probe.answer_seen for probe in tested} == {True, False}


@pytest.mark.parametrize("relation", relation_names())
def test_every_probe_is_well_formed(relation: str) -> None:
    described = load_relation(relation)
    for language in described.languages:
        for name in described.templates[language]:
            for split in SPLITS:
                for probe in probes(relation, language, split, name):
                    assert "{" not in probe.prompt
                    assert probe.subject in probe.prompt
                    assert probe.prompt == probe.prompt.strip()
                    assert probe.accepted
                    assert all(answer == answer.strip() and answer for answer in probe.accepted)


def test_majority_is_a_share() -> None:
    assert all(0 < majority(relation, "en") < 0.5 for relation in relation_names())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope", "en", "eval"), "unknown relation"),
        (("country_capital", "xx", "eval"), "unknown language"),
        (("country_capital", "en", "test"), "unknown split"),
        (("country_capital", "en", "eval", "poem"), "no template"),
    ],
)
def test_unknown_names_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        probes(*arguments)


def test_concepts() -> None:
    assert parse_concept("country_capital@de") == ("country_capital", "de")
    for text in ("country_capital", "country_capital@xx", "nope@en"):
        with pytest.raises(UserError):
            parse_concept(text)
