"""Selectivity: by hand, in groups, and its intervals in simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from relbench.analysis.intervals import proportion_interval
from relbench.analysis.offtarget import CONTRASTED, HELD_OUT, OTHER_LANGUAGE, SAME_TYPE, Scheme
from relbench.analysis.runs import Runs, paired_runs
from relbench.analysis.selectivity import Selectivity, selectivities
from relbench.treatments import RANDOM, Treatment
from tests.relbench.analysis.synthetic import answers, mask, runs_of, scheme

Bools = NDArray[np.bool_]


def _lose(n: int, lost: int) -> list[int]:
    return [0] * lost + [1] * (n - lost)


def test_by_hand() -> None:
    """Target loss 8/10; off-target losses 1/10 and 3/10; random masks lose 1/10 on the target, 0 and 2/10 off."""
    relations = ["a@en", "b@en", "c@en"]
    one = mask("m", "a@en", 10)
    controls = [mask(RANDOM, None, 10, seed=seed) for seed in range(2)]
    lost = {one.id: (8, 1, 3), controls[0].id: (0, 0, 4), controls[1].id: (2, 0, 0)}
    runs = runs_of(
        dict.fromkeys(relations, [1] * 10),
        [one, *controls],
        lambda treatment, concept: _lose(10, lost[treatment.id][relations.index(concept)]),
    )
    (found,) = selectivities(runs, scheme(relations))
    assert (found.target, found.target_interval) == (0.8, proportion_interval(8, 10))
    off = found.off_target[HELD_OUT]
    assert (off.concepts, off.worst, off.worst_concept) == (("b@en", "c@en"), 0.3, "c@en")
    assert off.mean == pytest.approx(0.2)
    assert found.selectivity == pytest.approx(0.6)
    assert found.control is not None
    assert (found.control.seeds, found.control.target) == (2, pytest.approx(0.1))
    assert found.control.off_target == pytest.approx(0.1)
    assert found.control.selectivity == pytest.approx(0.0)
    # Two seeds say nothing about how seeds differ.
    assert found.control.target_interval is None


def test_wrong_and_copyable_facts_do_not_count() -> None:
    one = mask("m", "a@en", 10)
    samples = [
        *answers("a@en", [1, 1, 0, 0]),
        *answers("a@en", [0, 1, 0, 1], one.id),
        *answers("b@en", [1, 1]),
        *answers("b@en", [0, 1], one.id),
    ]
    copyable = [replace(s, copyable=True) if s.relation == "b" and s.doc_id == 0 else s for s in samples]
    (found,) = selectivities(paired_runs([one], copyable), scheme(["a@en", "b@en"]))
    assert (found.target, found.off_target[HELD_OUT].mean) == (0.5, 0.0)


def test_off_target_relations_are_grouped_and_the_headline_rests_on_those_held_out() -> None:
    concepts = ["a@en", "same@en", "contrast@en", "held@en", "untestable@en", "a@de", "held@de"]
    lost = dict(zip(concepts, (9, 5, 4, 1, 10, 7, 2), strict=True))
    judged = Scheme(
        testable=frozenset(concepts) - {"untestable@en"},
        ranges={"a": "city", "same": "city", "held": "person", "contrast": "person"},
        contrasted={"m": {"contrast", "same"}},
    )
    treatments = [mask("m", "a@en", 10), mask("other", "a@en", 10)]
    runs = runs_of(dict.fromkeys(concepts, [1] * 10), treatments, lambda _, concept: _lose(10, lost[concept]))
    found, other = selectivities(runs, judged)
    assert {group: (off.concepts, off.mean) for group, off in found.off_target.items()} == {
        HELD_OUT: (("held@en",), 0.1),
        CONTRASTED: (("contrast@en",), 0.4),
        SAME_TYPE: (("same@en",), 0.5),
        OTHER_LANGUAGE: (("held@de",), 0.2),
    }
    assert (found.basis, found.selectivity) == (HELD_OUT, pytest.approx(0.8))
    # A method that contrasted with nothing is judged on all of them.
    assert other.off_target[HELD_OUT].concepts == ("contrast@en", "held@en")
    # One relation is a cell, with the exact interval.
    assert found.off_target[HELD_OUT].interval == proportion_interval(1, 10)


def test_without_held_out_relations_it_rests_on_the_contrasted_ones_and_says_so() -> None:
    judged = Scheme(frozenset(["a@en", "b@en"]), contrasted={"m": {"a", "b"}})
    runs = runs_of(dict.fromkeys(("a@en", "b@en"), [1] * 5), [mask("m", "a@en", 9)], lambda *_: _lose(5, 2))
    (found,) = selectivities(runs, judged)
    assert (found.basis, found.selectivity) == (CONTRASTED, 0.0)


def test_an_untestable_target_has_no_selectivity() -> None:
    runs = runs_of(dict.fromkeys(("a@en", "b@en"), [1] * 5), [mask("m", "a@en", 9)], lambda *_: _lose(5, 2))
    (found,) = selectivities(runs, scheme(["b@en"]))
    assert (found.target, found.target_interval, found.selectivity, found.interval) == (None,) * 4
    assert found.off_target[HELD_OUT].mean == 0.4


def test_controls_are_those_of_the_same_size_and_kind() -> None:
    concepts = ["a@en", "b@en"]
    masks = [
        mask("m", "a@en", 10),
        mask("m", "a@en", 20),
        mask("m", "b@en", 10),
        mask("m", "a@en", 10, id="m.mean", mode="mean"),
    ]
    controls = [
        mask(RANDOM, None, 10, seed=0),
        mask(RANDOM, None, 20, seed=0),
        mask(RANDOM, None, 10, seed=7, id="matched", matched_to=masks[2].id),
        mask(RANDOM, None, 10, seed=0, id="random.mean", mode="mean"),
    ]
    lost = {controls[0].id: 1, controls[1].id: 2, "matched": 3, "random.mean": 4}
    runs = runs_of(
        dict.fromkeys(concepts, [1] * 10), [*masks, *controls], lambda t, _: _lose(10, lost.get(t.id, 5))
    )
    found = selectivities(runs, scheme(concepts))
    assert [f.control and f.control.target for f in found] == [0.1, 0.2, 0.3, 0.4]


def _simulated(
    generator: np.random.Generator, n: int, losses: Mapping[str, float], treatments: list[Treatment]
) -> Runs:
    """Every mask loses a fact of its target with chance `losses["target"]`, else with `losses["off"]`."""
    relations = [f"r{i}@en" for i in range(4)]

    def outcome(treatment: Treatment, concept: str) -> Bools:
        chance = losses["target" if concept == treatment.concept else "off"]
        kept: Bools = generator.random(n) >= chance
        return kept

    return runs_of({relation: [1] * n for relation in relations}, treatments, outcome)


@pytest.mark.parametrize("n", [36, *(pytest.param(n, marks=pytest.mark.slow) for n in (71, 100))])
@pytest.mark.parametrize(
    ("target", "off"), [(0, 0), (0.05, 0.05), (0.5, 0.05), (0.95, 0.5), (1, 0), (1, 0.95)]
)
def test_selectivity_and_off_target_intervals_cover(n: int, target: float, off: float) -> None:
    generator = np.random.default_rng([n, int(100 * target), int(100 * off)])
    treatments = [mask("m", "r0@en", 10 + i) for i in range(150)]
    runs = _simulated(generator, n, {"target": target, "off": off}, treatments)
    found = selectivities(runs, scheme(runs.concepts), draws=1_000)
    covered = [_covers(one, target - off) for one in found]
    assert np.mean(covered) >= 0.93
    means = [one.off_target[HELD_OUT].interval for one in found]
    assert np.mean([i is not None and i.low <= off + 1e-9 and off - 1e-9 <= i.high for i in means]) >= 0.93


def _covers(found: Selectivity, truth: float) -> bool:
    assert found.interval is not None
    return found.interval.low <= truth + 1e-9 and truth - 1e-9 <= found.interval.high


def test_random_masks_have_no_selectivity_and_their_interval_holds_the_spread_between_seeds() -> None:
    """Seeds that differ in strength, the same for every relation: their mean selectivity is 0."""
    generator = np.random.default_rng(3)
    relations = [f"r{i}@en" for i in range(6)]
    strength = generator.uniform(0, 0.4, 12)
    one = mask("m", "r0@en", 10)
    controls = [mask(RANDOM, None, 10, seed=seed) for seed in range(12)]

    def outcome(treatment: Treatment, concept: str) -> Bools:
        chance = 0.1 if treatment.seed is None else strength[treatment.seed]
        kept: Bools = generator.random(60) >= chance
        return kept

    found = selectivities(
        runs_of({r: [1] * 60 for r in relations}, [one, *controls], outcome), scheme(relations)
    )[0].control
    assert found is not None and found.seeds == 12
    assert found.selectivity_interval is not None and found.target_interval is not None
    assert found.selectivity_interval.low < 0 < found.selectivity_interval.high
    assert found.target_interval.low < strength.mean() < found.target_interval.high
    # Subjects alone would give about ± 1.96 · √(.2 · .8 / (12 · 60)) = ± .03.
    assert found.target_interval.high - found.target_interval.low > 0.12


def test_the_same_seed_gives_the_same_intervals() -> None:
    generator = np.random.default_rng(0)
    runs = _simulated(generator, 30, {"target": 0.7, "off": 0.2}, [mask("m", "r0@en", 10)])
    judged = scheme(runs.concepts)
    assert selectivities(runs, judged, seed=1) == selectivities(runs, judged, seed=1)
    first, second = (selectivities(runs, judged, seed=seed)[0].interval for seed in (1, 2))
    assert first != second
