"""Seconds to judge a whole grid: 12 masks × 12 relations × 6 sizes of 100 facts, 10 random masks a size.

    python benchmarks/delta_speed.py [--relations 12] [--sizes 6] [--facts 100] [--seeds 10]

Facts, losses and gains are made up; samples, pairing and every interval are the real thing. Beside it: the
same intervals from one `scipy.stats.bootstrap` call a mask, which draws facts of fixed relations only.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from scipy.stats import bootstrap

from relbench.analysis.cells import cells_of
from relbench.analysis.curve import curves
from relbench.analysis.offtarget import Scheme
from relbench.analysis.resampling import DRAWS
from relbench.analysis.runs import Runs, paired_runs
from relbench.analysis.selectivity import selectivities
from relbench.samples import BASELINE, Sample
from relbench.treatments import RANDOM, Treatment

T = TypeVar("T")


def grid(relations: int, sizes: int, facts: int, seeds: int) -> tuple[list[Treatment], list[Sample]]:
    """Treatments and samples of a made-up sweep, recall .8, stronger losses with size and on the target."""
    concepts = [f"r{number:02d}@en" for number in range(relations)]
    treatments = [
        Treatment(f"m.{concept}.k{10**size}", "m", concept, fraction=10.0 ** (size - sizes), k=10**size)
        for size in range(sizes)
        for concept in concepts
    ] + [
        Treatment(f"{RANDOM}.{seed}.k{10**size}", RANDOM, None, 10.0 ** (size - sizes), 10**size, seed)
        for size in range(sizes)
        for seed in range(seeds)
    ]
    generator = np.random.default_rng(0)
    before = {concept: generator.random(facts) < 0.8 for concept in concepts}
    samples = [s for concept in concepts for s in _answers(BASELINE, concept, before[concept])]
    for treatment in treatments:
        strength = len(str(treatment.k)) / sizes
        for concept in concepts:
            loss = strength * (0.9 if concept == treatment.concept else 0.2)
            after = np.where(before[concept], generator.random(facts) >= loss, generator.random(facts) < 0.05)
            samples += _answers(treatment.id, concept, after)
    return treatments, samples


def _answers(treatment: str, concept: str, recalls: np.ndarray) -> Iterator[Sample]:
    relation, _, language = concept.partition("@")
    for number, recall in enumerate(recalls.tolist()):
        yield Sample(
            intervention=treatment,
            task=f"relbench_{relation}_{language}",
            relation=relation,
            language=language,
            template="completion",
            shots=5,
            doc_id=number,
            fact_id=f"{relation}.{number}",
            subject_id=f"{relation}:{number}",
            answer_id=str(number),
            answer_seen=number % 3 > 0,
            copyable=number % 10 == 0,
            answer_in_shots=False,
            filter="none",
            doc_hash=str(number),
            prompt_hash=str(number),
            target_hash=str(number),
            recall=int(recall),
            answer_logprob=-1.0 if recall else -4.0,
            first_token_rank=1,
        )


def by_scipy(runs: Runs) -> None:
    """Mean off-target loss of every mask with scipy's bootstrap, facts drawn within each relation."""
    for mask in runs.masks:
        lost = [
            np.array([pair.before.recall > pair.after.recall for pair in pairs if pair.before.recall], float)
            for concept, pairs in runs.pairs[mask.id].items()
            if concept != mask.concept
        ]

        def mean_loss(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
            return np.mean([relation.mean(axis=axis) for relation in drawn], axis=0)

        bootstrap(lost, mean_loss, n_resamples=DRAWS, vectorized=True, method="percentile", rng=0)


def timed(label: str, call: Callable[[], T]) -> T:
    """Call and print how long it took."""
    started = time.perf_counter()
    result = call()
    print(f"{time.perf_counter() - started:8.2f} s  {label}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("relations", 12), ("sizes", 6), ("facts", 100), ("seeds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--skip-scipy", action="store_true")
    args = parser.parse_args()
    treatments, samples = grid(args.relations, args.sizes, args.facts, args.seeds)
    print(f"{os.cpu_count()} cores, {len(treatments)} masks, {len(samples):,} samples, {DRAWS:,} draws")
    runs = timed("pairing", lambda: paired_runs(treatments, samples))
    scheme = Scheme(frozenset(runs.concepts))
    timed("selectivity of every mask, with its random masks", lambda: selectivities(runs, scheme))
    timed("curves and headlines", lambda: curves(runs, scheme))
    cells = timed("losses, gains and tests of every cell", lambda: cells_of(runs, scheme.testable))
    print(f"{len(cells):,} cells")
    if not args.skip_scipy:
        timed("scipy.stats.bootstrap of every mask's off-target loss", lambda: by_scipy(runs))


if __name__ == "__main__":
    main()
