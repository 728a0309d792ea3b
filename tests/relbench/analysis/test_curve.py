"""Loss–loss curves and the headline: by hand, against brute force, and in simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relbench.analysis.curve import ALL_LANGUAGES, at_half, curves
from relbench.analysis.offtarget import CONTRASTED, HELD_OUT, Scheme
from relbench.analysis.runs import Runs
from relbench.treatments import RANDOM, Treatment
from tests.relbench.analysis.synthetic import mask, runs_of, scheme

Bools = NDArray[np.bool_]


def _half(target: list[float], off: list[float]) -> float:
    return float(at_half(np.array(target)[:, None], np.array(off)[:, None]).off_target[0])


def test_at_half_by_hand() -> None:
    assert _half([0.2, 0.4, 0.8], [0.0, 0.1, 0.3]) == pytest.approx(0.1 + 0.25 * 0.2)
    assert _half([0.2, 0.5, 0.8], [0.0, 0.1, 0.3]) == pytest.approx(0.1)
    # Reached by the smallest size already: on the line from no units, which lose nothing.
    assert _half([0.8, 0.9], [0.4, 0.5]) == pytest.approx(0.25)
    assert _half([0.2, 0.4], [0.0, 0.1]) == np.inf
    # It is the first crossing that counts.
    assert _half([0.6, 0.4, 0.7], [0.12, 0.2, 0.9]) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6))
def test_at_half_is_what_reading_the_curve_gives(points: list[tuple[float, float]]) -> None:
    expected = np.inf
    before = (0.0, 0.0)
    for point in points:
        if point[0] >= 0.5:
            share = (0.5 - before[0]) / (point[0] - before[0])
            expected = before[1] + share * (point[1] - before[1])
            break
        before = point
    assert _half([p[0] for p in points], [p[1] for p in points]) == pytest.approx(expected)


KS = (10, 100, 1_000)


THREE = ("a@en", "b@en", "c@en")


def _sweep(losses: dict[int, tuple[float, float]], concepts: tuple[str, ...] = THREE) -> Runs:
    """Masks of every size that lose the given shares of 20 facts, on target and off."""
    n = 20
    masks = [mask("m", concept, k) for k in losses for concept in concepts]

    def outcome(treatment: Treatment, concept: str) -> list[int]:
        target, off = losses[treatment.k or 0]
        lost = round(n * (target if concept == treatment.concept else off))
        return [0] * lost + [1] * (n - lost)

    return runs_of(dict.fromkeys(concepts, [1] * n), masks, outcome)


def test_a_curve_by_hand() -> None:
    runs = _sweep({10: (0.1, 0.0), 100: (0.4, 0.1), 1_000: (0.8, 0.3)})
    (curve,) = curves(runs, scheme(runs.concepts))
    assert [(p.k, p.fraction) for p in curve.points] == [(10, 0.001), (100, 0.01), (1_000, 0.1)]
    assert [p.target for p in curve.points] == pytest.approx([0.1, 0.4, 0.8])
    assert [p.off_target for p in curve.points] == pytest.approx([0.0, 0.1, 0.3])
    assert curve.off_target_at_half == pytest.approx(0.15)
    # A quarter of the way from 100 to 1,000 on the logarithm.
    assert curve.k_at_half == pytest.approx(100 * 10**0.25)
    assert curve.mean_selectivity == pytest.approx((0.1 + 0.3 + 0.5) / 3)
    assert (curve.basis, curve.targets) == (HELD_OUT, ("a@en", "b@en", "c@en"))
    assert curve.off_target_at_half_interval is not None
    assert curve.off_target_at_half_interval.low <= 0.15 <= curve.off_target_at_half_interval.high


def test_half_may_not_be_reached_or_be_reached_at_once() -> None:
    (weak,) = curves(_sweep({10: (0.1, 0.0), 100: (0.2, 0.1)}), scheme(THREE))
    assert (weak.off_target_at_half, weak.k_at_half) == (None, None)
    assert weak.reached < 0.01
    assert weak.off_target_at_half_interval is not None
    assert weak.off_target_at_half_interval.high == np.inf
    (strong,) = curves(_sweep({10: (0.9, 0.45), 100: (1.0, 0.5)}), scheme(THREE))
    assert strong.off_target_at_half == pytest.approx(0.25)
    assert (strong.k_at_half, strong.reached) == (None, 1.0)


def test_only_testable_targets_with_every_size_and_off_target_relations_count() -> None:
    runs = _sweep({10: (0.5, 0.1), 100: (0.9, 0.2)}, concepts=("a@en", "b@en", "c@en", "d@en"))
    fewer = replace(runs, treatments=tuple(t for t in runs.treatments if (t.concept, t.k) != ("b@en", 100)))
    (curve,) = curves(fewer, scheme(THREE))
    assert curve.targets == ("a@en", "c@en")
    assert curves(fewer, scheme(["a@en"])) == []
    contrasted = Scheme(frozenset(runs.concepts), contrasted={"m": {"a", "b", "c", "d"}})
    assert curves(runs, contrasted)[0].basis == CONTRASTED


def test_random_masks_have_a_curve_of_their_own() -> None:
    controls = [mask(RANDOM, None, k, seed=seed) for k in KS for seed in range(10)]
    masks = [mask("m", concept, k) for k in KS for concept in THREE]
    generator = np.random.default_rng(0)

    def outcome(treatment: Treatment, concept: str) -> Bools:
        kept: Bools = generator.random(40) >= (0.9 if treatment.concept == concept else 0.2)
        return kept

    runs = runs_of(dict.fromkeys(THREE, [1] * 40), [*masks, *controls], outcome)
    found = {curve.method: curve for curve in curves(runs, scheme(THREE))}
    random = found[RANDOM]
    assert random.mean_selectivity_interval is not None
    assert random.mean_selectivity_interval.low < 0 < random.mean_selectivity_interval.high
    assert random.off_target_at_half is None
    assert [p.target for p in random.points] == pytest.approx([0.2] * 3, abs=0.05)
    assert found["m"].mean_selectivity == pytest.approx(0.7, abs=0.07)


def test_languages_are_judged_within_themselves() -> None:
    """A mask that breaks every relation in another language is still selective in its own."""
    concepts = ("a@en", "b@en", "a@de", "b@de")
    masks = [mask("m", concept, 10) for concept in concepts]

    def outcome(treatment: Treatment, concept: str) -> list[int]:
        own = concept.endswith(str(treatment.concept)[-2:])
        lost = 20 if concept == treatment.concept or not own else 1
        return [0] * lost + [1] * (20 - lost)

    found = curves(runs_of(dict.fromkeys(concepts, [1] * 20), masks, outcome), scheme(concepts))
    assert [(curve.language, set(curve.targets)) for curve in found] == [
        (ALL_LANGUAGES, set(concepts)),
        ("en", set(concepts[:2])),
        ("de", set(concepts[2:])),
    ]
    for curve in found:
        assert curve.points[0].off_target == pytest.approx(1 / 20)
        assert curve.mean_selectivity == pytest.approx(19 / 20)


def _in_two_languages() -> Runs:
    """Masks of 16 of 20 facts in English and 8 in German; others lose 2; random masks 4, and in French 20."""
    masks = [mask("m", f"{relation}@{language}", 10) for language in ("en", "de") for relation in "abc"]
    controls = [mask(RANDOM, None, 10, seed=seed) for seed in range(10)]
    evaluated = [f"{relation}@{language}" for language in ("en", "de", "fr") for relation in "abc"]

    def outcome(treatment: Treatment, concept: str) -> list[int]:
        if treatment.method == RANDOM:
            lost = 20 if concept.endswith("fr") else 4
        elif concept == treatment.concept:
            lost = 16 if concept.endswith("en") else 8
        else:
            lost = 2
        return [0] * lost + [1] * (20 - lost)

    return runs_of(dict.fromkeys(evaluated, [1] * 20), [*masks, *controls], outcome)


def test_a_language_alone_is_the_sweep_of_that_language() -> None:
    """A language's curve is the one of a sweep that masked nothing else."""
    runs = _in_two_languages()
    found = {(c.method, c.language): c for c in curves(runs, scheme(runs.concepts))}
    assert list(found) == [(m, lang) for m in ("m", RANDOM) for lang in (ALL_LANGUAGES, "en", "de")]
    losses = {lang: found["m", lang].points[0].target for lang in (ALL_LANGUAGES, "en", "de")}
    assert losses == pytest.approx({ALL_LANGUAGES: 0.6, "en": 0.8, "de": 0.4})
    assert found["m", "de"].off_target_at_half is None
    for language in ("en", "de"):
        own = [t for t in runs.treatments if t.concept is None or t.concept.endswith(language)]
        alone = replace(runs, treatments=tuple(own))
        for curve in curves(alone, scheme(runs.concepts)):
            assert replace(curve, language=language) == found[curve.method, language]


def test_random_masks_are_judged_on_what_is_masked() -> None:
    """French is evaluated but not masked: what random masks do there is no part of their curve."""
    runs = _in_two_languages()
    found = {(c.method, c.language): c for c in curves(runs, scheme(runs.concepts))}
    control = found[RANDOM, ALL_LANGUAGES]
    assert control.targets == found["m", ALL_LANGUAGES].targets
    assert control.points[0].target == pytest.approx(0.2)


@pytest.mark.slow
def test_the_headline_interval_covers() -> None:
    """Relations whose losses differ: the interval holds what all relations would give."""
    generator = np.random.default_rng(0)
    relations = [f"r{i}@en" for i in range(10)]
    covered, sweeps, n = 0, 100, 36
    # At the middle size the target loss is one half on average, and the off-target loss that of −2 ± .3.
    truth = np.mean(1 / (1 + np.exp(2 - generator.normal(0, 0.3, 100_000))))
    masks = [mask("m", relation, k) for k in KS for relation in relations]
    for _ in range(sweeps):
        shift = dict(zip(relations, generator.normal(0, 0.3, len(relations)), strict=True))

        def outcome(treatment: Treatment, concept: str, shift: dict[str, float] = shift) -> Bools:
            size = KS.index(treatment.k or 0) - 1
            logit = 2 * size if concept == treatment.concept else size - 2
            kept: Bools = generator.random(n) >= 1 / (1 + np.exp(-logit - shift[concept]))
            return kept

        runs = runs_of({relation: [1] * n for relation in relations}, masks, outcome)
        (curve,) = curves(runs, scheme(relations), draws=1_000)
        found = curve.off_target_at_half_interval
        assert found is not None
        covered += found.low <= truth <= found.high
    assert covered / sweeps >= 0.93
