"""Sweeps made up for tests: what every mask loses and gains is given, fact by fact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from relbench.analysis.offtarget import Scheme
from relbench.analysis.runs import Runs, paired_runs
from relbench.samples import BASELINE, Sample
from relbench.treatments import Treatment
from tests.relbench.records import sample


def mask(method: str, concept: str | None, k: int, **changes: Any) -> Treatment:
    """A top-k mask, or with method "random" and a seed a control."""
    name = f"{method}.{concept or 'seed' + str(changes.get('seed'))}.k{k}"
    made = Treatment(id=name, method=method, concept=concept, fraction=k / 10_000, k=k)
    return replace(made, **changes)


def answers(concept: str, recalls: ArrayLike, intervention: str = BASELINE, **changes: Any) -> list[Sample]:
    """One answer a fact of a concept, right or wrong; fact i has subject i of its relation, and answer i."""
    relation, _, language = concept.rpartition("@")
    shared = {
        **vars(sample(0, 0)),
        "intervention": intervention,
        "task": f"relbench_{relation}_{language}",
        "relation": relation,
        "language": language,
    }
    made = []
    for number, recall in enumerate(np.asarray(recalls).tolist()):
        own = {
            "doc_id": number,
            "fact_id": f"{relation}.{number}",
            "subject_id": f"{relation}:{number}",
            "answer_id": f"answer:{number}",
            "prompt_hash": f"p{number}",
            "recall": int(recall),
        }
        made.append(Sample(**{**shared, **own, **changes}))
    return made


Outcome = Callable[[Treatment, str], ArrayLike]


def runs_of(baseline: Mapping[str, ArrayLike], treatments: Sequence[Treatment], outcome: Outcome) -> Runs:
    """A paired sweep.

    Args:
        baseline: Concept → recall of every fact.
        treatments: What was done.
        outcome: Treatment, concept → recall of every fact.
    """
    samples = [one for concept, recalls in baseline.items() for one in answers(concept, recalls)]
    for treatment in treatments:
        for concept in baseline:
            samples += answers(concept, outcome(treatment, concept), treatment.id)
    return paired_runs(treatments, samples)


def scheme(concepts: Iterable[str], **changes: Any) -> Scheme:
    """Everything testable, every relation with objects of its own, nothing contrasted."""
    return Scheme(testable=frozenset(concepts), **changes)
