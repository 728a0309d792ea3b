"""Deltas: a hand-computed example, and what they leave apart."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from relbench.analysis.cells import cells_of, headline_cells
from relbench.analysis.delta import ALL, HEADLINE, SEEN, UNSEEN, delta_of, deltas_of, subsets
from relbench.analysis.pairing import pair
from relbench.samples import Sample
from tests.relbench.analysis.synthetic import mask, runs_of
from tests.relbench.records import sample


def _run(recalls: list[int], **changes: object) -> list[Sample]:
    return [sample(number, recall, **changes) for number, recall in enumerate(recalls)]


def test_three_facts_by_hand() -> None:
    """Right, right, wrong become right, wrong, right; log probabilities −1 for right, −3 for wrong."""
    delta = delta_of(pair(_run([1, 1, 0]), _run([1, 0, 1])))
    assert (delta.n, delta.right, delta.lost, delta.gained) == (3, 2, 1, 1)
    assert (delta.before, delta.after, delta.delta) == (2 / 3, 2 / 3, 0.0)
    assert (delta.loss, delta.gain) == (1 / 2, 1.0)
    # Clopper–Pearson of 2 in 3: p³ + 3p²(1 − p) = .025, and 1 − p³ = .025.
    assert delta.before_interval == delta.after_interval
    low, high = delta.before_interval
    assert low**3 + 3 * low**2 * (1 - low) == pytest.approx(0.025)
    assert 1 - high**3 == pytest.approx(0.025)
    # Of 1 in 2: 1 − (1 − p)² = .025, and p² ... = .975; of 1 in 1: p = .025.
    assert delta.loss_interval == pytest.approx((1 - 0.975**0.5, 0.975**0.5), abs=1e-9)
    assert delta.gain_interval == pytest.approx((0.025, 1.0))
    # One lost, one gained: nothing is more extreme.
    assert delta.p == 1.0
    # Changes 0, −2, +2: mean 0, standard error 2/√3, Student's t with two degrees of freedom 4.303.
    assert delta.logprob == pytest.approx(0.0)
    assert delta.logprob_interval == pytest.approx((-4.3027 * 2 / 3**0.5, 4.3027 * 2 / 3**0.5), abs=1e-3)
    # Wilson of 2 in 3 is [.2077, .9385]; Newcombe's φ is 0 for a table of [1 1; 1 0].
    phi = (1 * 0 - 1 * 1) / (2 * 1 * 2 * 1) ** 0.5
    down, up = 2 / 3 - 0.20765, 0.93851 - 2 / 3
    reach = (down**2 + up**2 - 2 * phi * down * up) ** 0.5
    assert delta.delta_interval == pytest.approx((-reach, reach), abs=1e-4)


def test_equal_runs_have_no_delta() -> None:
    run = _run([1, 0, 1, 1])
    delta = delta_of(pair(run, run[::-1]))
    assert (delta.delta, delta.loss, delta.gain, delta.logprob, delta.p) == (0.0, 0.0, 0.0, 0.0, 1.0)


def test_loss_and_gain_need_facts_to_lose_and_gain() -> None:
    right, wrong = delta_of(pair(_run([1, 1]), _run([1, 0]))), delta_of(pair(_run([0]), _run([1])))
    assert (right.gain, right.gain_interval) == (None, None)
    assert (wrong.loss, wrong.loss_interval, wrong.logprob_interval) == (None, None, None)
    with pytest.raises(ValueError, match="no pairs"):
        delta_of([])


def test_many_groups_at_once_are_the_same_as_one_by_one() -> None:
    generator = np.random.default_rng(0)
    groups = []
    for n in (1, 5, 40):
        before, after = (_run(generator.integers(0, 2, n).tolist()) for _ in range(2))
        groups.append(pair(before, after))
    assert deltas_of(groups) == [delta_of(group) for group in groups]
    delta = delta_of(groups[-1])
    reference = stats.binomtest(delta.lost, delta.right).proportion_ci(0.95, method="exact")
    assert delta.loss_interval == pytest.approx((reference.low, reference.high))
    reference_p = stats.binomtest(delta.lost, delta.lost + delta.gained).pvalue
    assert delta.p == pytest.approx(reference_p)


def test_log_probability_interval_is_students_t_where_subjects_occur_once() -> None:
    before = _run([1] * 12)
    changes = np.random.default_rng(1).normal(-1, 2, 12)
    after = [sample(i, 1, answer_logprob=-1 + change) for i, change in enumerate(changes)]
    reference = stats.ttest_1samp(changes, 0).confidence_interval(0.95)
    assert delta_of(pair(before, after)).logprob_interval == pytest.approx((reference.low, reference.high))


def test_facts_about_one_subject_are_not_independent() -> None:
    """Ten facts about two subjects are no more evidence than two facts."""
    changes = {"subject_id": "country:0"}
    before = [sample(i, 1, **(changes if i < 5 else {"subject_id": "country:1"})) for i in range(10)]
    after = [sample(s.doc_id, 0, subject_id=s.subject_id) for s in before]
    assert delta_of(pair(before, after)).p == 0.5
    assert delta_of(pair(_run([1] * 10), _run([0] * 10))).p == pytest.approx(2 / 2**10)


def test_seen_unseen_and_copyable_facts_are_apart() -> None:
    run = [
        sample(0, 1, answer_seen=True),
        sample(1, 1),
        sample(2, 1, copyable=True, answer_seen=True),
    ]
    found = {name: [p.before.doc_id for p in pairs] for name, pairs in subsets(pair(run, run)).items()}
    assert found == {HEADLINE: [0, 1], SEEN: [0], UNSEEN: [1], ALL: [0, 1, 2]}


def test_tests_are_corrected_by_holm_on_the_diagonal_and_benjamini_hochberg_off_it() -> None:
    relations = [f"r{i}@en" for i in range(4)]
    masks = [mask("m", relation, 10) for relation in relations]
    lost = dict(zip(relations, (8, 7, 6, 30), strict=True))

    def outcome(treatment: object, concept: str) -> list[int]:
        n = lost[concept] if getattr(treatment, "concept", None) == concept else 6
        return [0] * n + [1] * (30 - n)

    runs = runs_of({relation: [1] * 30 for relation in relations}, masks, outcome)
    cells = headline_cells(cells_of(runs, relations[:3]))
    raw = {name: 2 / 2**n for name, n in lost.items()}
    # Holm: the smallest of three times three, the next times two, the largest as it is; not decreasing.
    expected = {"r0@en": 3 * raw["r0@en"], "r1@en": 2 * raw["r1@en"], "r2@en": raw["r2@en"], "r3@en": None}
    for treatment in masks:
        concept = str(treatment.concept)
        assert cells[treatment.id, concept].p_adjusted == (
            None if expected[concept] is None else pytest.approx(expected[concept])
        )
        for other in relations:
            if other != concept:
                # Equal p-values stay what they are under Benjamini–Hochberg.
                adjusted = cells[treatment.id, other].p_adjusted
                assert adjusted == (None if other == "r3@en" else pytest.approx(2 / 2**6))
