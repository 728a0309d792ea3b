"""Sweep directories made up for tests: what every mask does is given, no model runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from interventions.mask import Mask
from interventions.model_id import ModelId, hash_layout
from interventions.units import Site, UnitLayout
from relbench.probes import probes
from relbench.samples import BASELINE, Sample, write_samples
from relbench.treatments import RANDOM, TOP_K, Treatment

LAYOUT = UnitLayout(
    "llama", 2, 8, 50, 2, 1, 4, ("gate", "up", "act", "down", "q", "k", "v", "attn", "attn_out")
)
MODEL = ModelId("made-up", "", hash_layout(LAYOUT), "weights", LAYOUT)

# (treatment, sample at baseline) → whether it is right.
Outcome = Callable[[Treatment, Sample], bool]


def make_sweep(
    directory: Path,
    treatments: Sequence[Treatment],
    outcome: Outcome,
    config: Mapping[str, Any],
    *,
    n: int = 30,
    said: Callable[[Treatment, Sample], str] | None = None,
) -> Path:
    """Write a finished sweep over the first `n` eval facts of each relation.

    Args:
        directory: Where.
        treatments: What was done, without the baseline; masks of concepts get units of their own and are
            written.
        outcome: What is right under a treatment, the baseline's included.
        config: `relations`, `languages`, `methods`, …
        n: Facts of a relation and language.
        said: Greedy continuation of a flipped fact under a treatment and at baseline; none when not given.
    """
    full = {"model": "made-up", "languages": ["en"], "templates": ["completion"], "shots": [5], **config}
    baseline = Treatment(BASELINE, BASELINE)
    treatments = [_with_mask(treatment, directory) for treatment in treatments]
    state = {
        "config": full,
        "data": {},
        "model": MODEL.to_dict(),
        "treatments": [_plain(asdict(t)) for t in (baseline, *treatments)],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sweep.yaml").write_text(yaml.safe_dump(state, sort_keys=False))
    asked = [
        replace(sample, recall=int(outcome(baseline, sample)))
        for shots in full["shots"]
        for template in full["templates"]
        for relation in full["relations"]
        for language in full["languages"]
        for sample in _questions(relation, language, template, shots, n)
    ]
    samples = {(BASELINE, sample.prompt_hash): sample for sample in asked}
    for treatment in treatments:
        for before in asked:
            if treatment.tasks is not None and before.task not in treatment.tasks:
                continue
            after = replace(before, intervention=treatment.id, recall=int(outcome(treatment, before)))
            if said is not None and after.recall < before.recall:
                after = replace(after, continuation=said(treatment, before))
                key = (BASELINE, before.prompt_hash)
                samples[key] = replace(samples[key], continuation=said(baseline, before))
            samples[treatment.id, before.prompt_hash] = after
    write_samples(directory / "samples.jsonl", samples.values())
    return directory


def _plain(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in raw.items()}


def _with_mask(treatment: Treatment, directory: Path) -> Treatment:
    if treatment.concept is None or treatment.selection != TOP_K:
        return treatment
    path = directory / "masks" / f"{treatment.id}.safetensors"
    # Neighbours in the alphabet share half their units.
    start = sum(map(ord, treatment.concept)) % 40
    units = {Site(1, "act"): np.arange(start, start + 10, dtype=np.int32)}
    Mask(units, MODEL, {"operation": "top_k", "concept": treatment.concept, "kinds": ["act"]}).save(path)
    return replace(treatment, mask=str(path.relative_to(directory)))


def _questions(relation: str, language: str, template: str, shots: int, n: int) -> Iterable[Sample]:
    for number, probe in enumerate(probes(relation, language, "eval", template)[:n]):
        yield Sample(
            intervention=BASELINE,
            task=f"relbench_{relation}_{language}",
            relation=relation,
            language=language,
            template=template,
            shots=shots,
            doc_id=number,
            fact_id=probe.fact_id,
            subject_id=probe.subject_id,
            answer_id=probe.answer_id,
            answer_seen=probe.answer_seen,
            copyable=False,
            answer_in_shots=False,
            filter="none",
            doc_hash=probe.fact_id,
            prompt_hash=f"{probe.prompt} {shots} {language}",
            target_hash=probe.answer,
            recall=1,
            answer_logprob=-1.0,
            first_token_rank=1,
        )


def grid(concepts: Sequence[str], ks: Sequence[int], *, method: str = "m", seeds: int = 0) -> list[Treatment]:
    """Top-k masks of every concept and size, and pooled random masks of every size."""
    masks = [
        Treatment(f"{method}.{concept}.k{k}", method, concept, fraction=k / 100, k=k)
        for k in ks
        for concept in concepts
    ]
    controls = [
        Treatment(f"{RANDOM}.seed{seed}.k{k}", RANDOM, fraction=k / 100, k=k, seed=seed)
        for k in ks
        for seed in range(seeds)
    ]
    return [*masks, *controls]


def write_perplexity(
    directory: Path, treatments: Iterable[str], logprob: Callable[[str, str], float]
) -> None:
    """Write `perplexity.jsonl` for two neutral documents and a sentence of each of two relations.

    Args:
        directory: The sweep's.
        treatments: Ids, the baseline's among them.
        logprob: (treatment, document) → log probability a token.
    """
    documents = {
        "neutral.en.000": "neutral",
        "neutral.en.001": "neutral",
        "relation.en.country_capital.FR": "relation",
        "relation.en.thing_color.grass": "relation",
    }
    with open(directory / "perplexity.jsonl", "w", encoding="utf-8") as file:
        for treatment in treatments:
            for name, kind in documents.items():
                record = {
                    "treatment": treatment,
                    "kind": kind,
                    "language": "en",
                    "document": name,
                    "n_tokens": 10,
                    "logprob": 10 * logprob(treatment, name),
                }
                file.write(json.dumps(record) + "\n")
