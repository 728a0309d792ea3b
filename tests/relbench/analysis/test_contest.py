"""Scoring methods two by two: by hand, and against brute force over draws that both share."""

from __future__ import annotations

import numpy as np
import pytest

from relbench.analysis.contest import contests
from relbench.analysis.curve import curves
from relbench.analysis.resampling import Resample, losses_of
from relbench.analysis.runs import Runs
from relbench.treatments import Treatment
from tests.relbench.analysis.synthetic import mask, runs_of, scheme

CONCEPTS = tuple(f"r{number}@en" for number in range(6))
N = 40


def _runs(target: dict[str, float]) -> Runs:
    """Methods that take a share of the target that is the same everywhere, on top of what each relation loses."""
    masks = [mask(method, concept, 10) for method in target for concept in CONCEPTS]

    def outcome(treatment: Treatment, concept: str) -> list[int]:
        own = CONCEPTS.index(str(treatment.concept)) / 10
        lost = round(N * (own + target[treatment.method])) if concept == treatment.concept else 0
        return [0] * lost + [1] * (N - lost)

    return runs_of(dict.fromkeys(CONCEPTS, [1] * N), masks, outcome)


def test_a_difference_that_no_single_interval_shows() -> None:
    runs = _runs({"weak": 0.1, "strong": 0.3})
    found = curves(runs, scheme(runs.concepts))
    weak, strong = found
    assert weak.mean_selectivity_interval is not None and strong.mean_selectivity_interval is not None
    assert weak.mean_selectivity_interval.high > strong.mean_selectivity_interval.low
    (contest,) = contests(found)
    assert (contest.first.method, contest.second.method) == ("strong", "weak")
    assert contest.difference == pytest.approx(0.2)
    assert contest.interval is not None
    assert 0 < contest.interval.low < 0.2 < contest.interval.high


def test_draws_are_shared() -> None:
    runs = _runs({"a": 0.2, "b": 0.2})
    (contest,) = contests(curves(runs, scheme(runs.concepts)))
    assert (contest.difference, contest.interval) == (0.0, (0.0, 0.0))


def test_random_masks_and_methods_judged_otherwise_do_not_compete() -> None:
    runs = _runs({"a": 0.2, "b": 0.1, "random": 0.0})
    judged = scheme(runs.concepts, contrasted={"b": frozenset(f"r{number}" for number in range(6))})
    assert contests(curves(runs, judged)) == []


def test_relations_and_seeds_are_drawn_independently() -> None:
    runs = _runs({"a": 0.2})
    resample = Resample(losses_of(runs, CONCEPTS))
    relations, seeds = resample.draws_of(10, "relations"), resample.draws_of(10, "seeds")
    assert (relations.sum(0) == 10).all() and (seeds.sum(0) == 10).all()
    assert np.abs([np.corrcoef(a, b)[0, 1] for a, b in zip(relations, seeds, strict=True)]).max() < 0.05
    assert (resample.draws_of(10, "relations") == relations).all()
