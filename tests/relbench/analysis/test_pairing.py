"""Pairing: what does not pair is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interventions.errors import UserError
from relbench.analysis.pairing import headline, pair, split_by
from relbench.analysis.runs import by_setting, paired_runs
from relbench.samples import Sample
from tests.relbench.analysis.synthetic import answers, mask
from tests.relbench.records import sample


def _run(recalls: list[int]) -> list[Sample]:
    return [sample(number, recall) for number, recall in enumerate(recalls)]


@given(st.permutations(range(6)))
def test_order_is_irrelevant(order: list[int]) -> None:
    before, after = _run([1, 0, 1, 1, 0, 0]), _run([0, 0, 1, 0, 1, 0])
    assert pair(before, [after[i] for i in order]) == pair(before, after)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (_run([1, 1]), "country_capital.2 of relbench_country_capital_en is in the baseline only"),
        ([*_run([1, 1, 0]), sample(7, 1)], "country_capital.7 .* is in the intervention only"),
        ([*_run([1, 1, 0]), sample(2, 1)], "the intervention has country_capital.2 .* twice"),
        ([*_run([1, 1]), sample(2, 0, prompt_hash="other")], "country_capital.2 .* has another prompt;"),
        (
            [*_run([1, 1]), sample(2, 0, doc_hash="other", target_hash="other")],
            "country_capital.2 .* has another document and target;",
        ),
        ([*_run([1, 1]), sample(2, 0, filter="strict")], "2 samples do not pair"),
        ([sample(9 + i, 0) for i in range(5)], "8 samples do not pair.*and 5 more"),
    ],
)
def test_what_does_not_pair_is_named(after: list[Sample], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pair(_run([1, 1, 0]), after)


def test_two_prompts_of_one_document_pair_with_themselves() -> None:
    run = [sample(0, 1), sample(0, 0, prompt_hash="other")]
    assert [(p.before.recall, p.after.recall) for p in pair(run, run[::-1])] == [(0, 0), (1, 1)]


def test_headline_leaves_copyable_facts_out() -> None:
    run = [sample(0, 1), sample(1, 1, copyable=True)]
    pairs = pair(run, run)
    assert [p.before.doc_id for p in headline(pairs)] == [0]
    assert {key: len(members) for key, members in split_by(pairs, lambda s: s.copyable).items()} == {
        False: 1,
        True: 1,
    }


def test_a_treatment_pairs_on_the_tasks_it_was_evaluated_on() -> None:
    everywhere, own = mask("m", "a@en", 10), mask("m", "a@de", 10, tasks=("relbench_a_de",))
    baseline = [*answers("a@en", [1, 1]), *answers("a@de", [1, 0])]
    treated = [
        *answers("a@en", [0, 1], everywhere.id),
        *answers("a@de", [1, 1], everywhere.id),
        *answers("a@de", [0, 0], own.id),
    ]
    runs = paired_runs([everywhere, own], [*treated, *baseline])
    assert {name: sorted(pairs) for name, pairs in runs.pairs.items()} == {
        everywhere.id: ["a@de", "a@en"],
        own.id: ["a@de"],
    }
    with pytest.raises(UserError, match=r"a\.1 of relbench_a_de is in the baseline only"):
        paired_runs([own], [*baseline, *answers("a@de", [0], own.id)])


def test_missing_treatments_and_mixed_settings_are_refused() -> None:
    one = mask("m", "a@en", 10)
    with pytest.raises(UserError, match=f"no samples of {one.id}"):
        paired_runs([one], answers("a@en", [1]))
    with pytest.raises(UserError, match="no samples of baseline"):
        paired_runs([one], answers("a@en", [1], one.id))
    mixed = [*answers("a@en", [1]), *answers("a@en", [1], template="question", prompt_hash="q")]
    with pytest.raises(ValueError, match="several settings"):
        paired_runs([], mixed)
    assert {setting.template: len(own) for setting, own in by_setting(mixed).items()} == {
        "completion": 1,
        "question": 1,
    }
