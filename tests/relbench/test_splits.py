"""Split assignment: what must hold for any set of facts."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relbench.relations import Fact, Object, load_facts, relation_names
from relbench.splits import N_SHOTS, assign, read_registry


def _fact(relation: str, subject: str, answer: str) -> Fact:
    return Fact(f"{relation}.{subject}", subject, {"en": subject}, (Object(answer, {"en": (answer,)}),))


def _relation(name: str, subjects: int, answers: int, start: int = 0) -> list[Fact]:
    return [_fact(name, f"s{start + i}", f"{name}-a{i % answers}") for i in range(subjects)]


def _counts(facts: list[Fact], splits: dict[str, str]) -> Counter[str]:
    return Counter(splits[fact.subject_id] for fact in facts)


@given(
    st.lists(
        st.tuples(st.integers(60, 200), st.integers(5, 150), st.integers(0, 100)), min_size=1, max_size=4
    )
)
@settings(max_examples=30, deadline=None)
def test_shares_shots_and_one_split_a_subject(shapes: list[tuple[int, int, int]]) -> None:
    facts = {
        f"r{n}": _relation(f"r{n}", size, min(answers, size), start)
        for n, (size, answers, start) in enumerate(shapes)
    }
    splits = assign(facts, {})
    for group in facts.values():
        counts = _counts(group, splits)
        assert counts["shots"] >= N_SHOTS
        assert counts["detect"] >= 0.3 * len(group)
        assert counts["eval"] >= 0.3 * len(group)
        assert counts["tune"] >= 1


def test_a_third_of_the_answers_are_held_out() -> None:
    facts = {"r": _relation("r", 160, 30)}
    splits = assign(facts, {})
    where = defaultdict(set)
    for fact in facts["r"]:
        where[fact.answer_id].add(splits[fact.subject_id])
    held_out = sum(places == {"eval"} for places in where.values())
    assert held_out >= 9
    assert sum("detect" in places for places in where.values()) >= 15


def test_a_registry_is_never_changed() -> None:
    facts = {"r": _relation("r", 100, 20)}
    registry = {"s3": "tune", "s4": "shots", "gone": "eval"}
    splits = assign(facts, registry)
    assert registry.items() <= splits.items()
    more = {**facts, "q": _relation("q", 80, 10, start=50)}
    assert splits.items() <= assign(more, splits).items()


def test_a_relation_and_its_inverse_share_splits() -> None:
    capital = [_fact("capital", f"country:{i}", f"city:{i}") for i in range(80)]
    country = [_fact("in_country", f"city:{i}", f"country:{i}") for i in range(60)]
    splits = assign({"capital": capital, "in_country": country}, {})
    assert all(splits[f"country:{i}"] == splits[f"city:{i}"] for i in range(60))


def test_the_same_facts_give_the_same_splits() -> None:
    facts = {"r": _relation("r", 90, 30), "q": _relation("q", 70, 9, start=40)}
    backwards = {name: group[::-1] for name, group in reversed(facts.items())}
    assert assign(facts, {}) == assign(backwards, {})


@pytest.mark.parametrize("relation", relation_names())
def test_shipped_subjects_have_one_split_and_shots_are_apart(relation: str) -> None:
    registry = read_registry()
    facts = load_facts(relation)
    assert all(fact.split == registry[fact.subject_id] for fact in facts)
    by_split = defaultdict(set)
    for fact in facts:
        by_split[fact.split].add(fact.subject_id)
    assert len(by_split["shots"]) >= N_SHOTS
    assert sum(map(len, by_split.values())) == len(set().union(*by_split.values()))
