"""Sweeps made up for leaderboards: the installed tasks are asked, what masks do is given, no model runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from interventions.files import sha256_file
from interventions.mask import Mask
from interventions.model_id import ModelId, hash_layout
from interventions.units import Site, UnitLayout
from relbench.leaderboards.add import Statement, add
from relbench.leaderboards.questions import questions_of, task_names
from relbench.leaderboards.verify import verify
from relbench.samples import BASELINE, Sample, read_samples, write_samples
from relbench.sweep_config import SweepConfig
from relbench.treatments import RANDOM, Treatment
from tests.relbench.sweeps import Outcome, make_sweep

LAYOUT = UnitLayout(
    "llama", 10, 8, 1000, 2, 1, 4, ("gate", "up", "act", "down", "q", "k", "v", "attn", "attn_out")
)
MODEL = ModelId("made-up", "", hash_layout(LAYOUT), "5" * 64, LAYOUT)
RELATIONS = ["country_capital", "company_hq", "landmark_on_continent", "country_language"]
# Fractions of the board's grid, and the units of 10,000 that they are.
SIZES = {0.0003: 3, 0.003: 30, 0.03: 300}
STATEMENT = Statement("Ada Lovelace", "https://example.org/ada", "CC-BY-4.0", id="made", created="2026-01-31")
RUN = {
    "seconds": {"load model": 1.5, "score units": 2.5, "evaluate": 3.5},
    "methods": {"average-precision": {"seconds": 2.5, "bytes": 4000}},
    "device": "cpu",
    "hardware": {"processor": "made up", "cores": 2, "memory_bytes": 2**30, "accelerator": None},
    "code": {"relbench": "0.1.0", "commit": "a" * 40, "modified": False},
    "processes": 1,
    "python": "3.12.1",
    "packages": {"torch": "2.6.0", "numpy": "2.1.0"},
}


def masks_of(method: str, concepts: Sequence[str], *, seeds: int = 10) -> list[Treatment]:
    """A method's masks of every size of the board, and pooled random ones."""
    own = [
        Treatment(f"{method}.{concept}.k{k}", method, concept, fraction, k)
        for fraction, k in SIZES.items()
        for concept in concepts
    ]
    random = [
        Treatment(f"{RANDOM}.seed{seed}.k{k}", RANDOM, None, fraction, k, seed)
        for fraction, k in SIZES.items()
        for seed in range(seeds)
    ]
    return [*own, *random]


def loses_its_own(treatment: Treatment, sample: Sample) -> bool:
    """Baseline: all right but the last four. A mask loses its size in facts of its relation,
    thirty at most, and two of others."""
    if treatment.method == BASELINE:
        return sample.doc_id < 36
    if treatment.method == RANDOM:
        lost = 1
    else:
        own = treatment.concept == f"{sample.relation}@{sample.language}"
        lost = min(treatment.k or 0, 30) if own else 2
    return lost <= sample.doc_id < 36


def make_directory(
    directory: Path,
    *,
    treatments: Sequence[Treatment] | None = None,
    outcome: Outcome = loses_its_own,
    model: ModelId = MODEL,
    **changes: Any,
) -> Path:
    """A finished sweep that keeps the rules of the board of methods, with everything that a submission needs."""
    raw = {
        "model": model.name,
        "relations": RELATIONS,
        "languages": ["en"],
        "methods": ["average-precision"],
        "fractions": list(SIZES),
        "controls": {"seeds": 10},
        "limit": 40,
        **changes,
    }
    config = SweepConfig.from_dict(raw, "made")
    if treatments is None:
        concepts = [f"{relation}@{code}" for relation in config.relations for code in config.languages]
        treatments = masks_of("average-precision", concepts)
    make_sweep(directory, treatments, outcome, config.to_dict(), n=config.limit or 10**6)
    masked = [Treatment(BASELINE, BASELINE), *(_masked(one, directory, model) for one in treatments)]
    state = {
        "config": config.to_dict(),
        "data": {},
        "model": model.to_dict(),
        "treatments": list(map(_plain, masked)),
    }
    (directory / "sweep.yaml").write_text(yaml.safe_dump(state, sort_keys=False))
    asked = {key: fields for task in task_names(config) for key, fields in questions_of(config, task).items()}
    samples = read_samples(directory / "samples.jsonl")
    write_samples(
        directory / "samples.jsonl",
        [replace(one, **asked[one.task, one.template, one.shots, one.doc_id]) for one in samples],
    )
    (directory / "run.json").write_text(json.dumps(RUN))
    return directory


def _masked(treatment: Treatment, directory: Path, model: ModelId) -> Treatment:
    assert model.layout is not None
    drawn = np.random.default_rng(treatment.seed or 0).permutation(model.layout.d_ff)[: treatment.k or 1]
    units = {Site(1, "act"): np.sort(drawn).astype(np.int32)}
    mask = Mask(units, model, {"operation": "made up", "for": treatment.id})
    path = directory / "masks" / f"{treatment.id}.safetensors"
    mask.save(path)
    return replace(treatment, mask=str(path.relative_to(directory)), digest=mask.digest)


def _plain(treatment: Treatment) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(treatment).items()}


def submit(directory: Path, root: Path, **said: Any) -> Path:
    """Add a sweep directory to a leaderboards folder."""
    return add(directory, root, replace(STATEMENT, **said))


def problems(root: Path) -> list[str]:
    """What `verify` says of a leaderboards folder."""
    return [str(problem) for problem in verify(root).problems]


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file."""
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def samples_path(submission: Path) -> Path:
    """The samples of a submission."""
    return submission.parent / "samples" / f"{submission.stem}.jsonl.gz"


def edit_lines(submission: Path, change: Callable[[list[Any]], None], *, honest: bool = True) -> None:
    """Change the lines of a submission's samples; an honest one states their new hash and numbers."""
    path = samples_path(submission)
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(lines)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()))
    if honest:
        restate(submission, questions=len(lines), answers=sum(len(line.get("answers", ())) for line in lines))


def restate(submission: Path, **numbers: int) -> None:
    """Let a submission state the hash of its samples file as it is now."""

    def change(raw: dict[str, Any]) -> None:
        raw["samples"] |= {"sha256": sha256_file(samples_path(submission)), **numbers}

    edit(submission, change)


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that puts a value at a path such as `methods.0.shots`."""

    def change(raw: dict[str, Any]) -> None:
        *inner, last = path.split(".")
        place: Any = raw
        for part in inner:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(last) if isinstance(place, list) else last] = value

    return change


def drop(path: str) -> Callable[[dict[str, Any]], None]:
    """A change that takes away what is at a path."""

    def change(raw: dict[str, Any]) -> None:
        *inner, last = path.split(".")
        place: Any = raw
        for part in inner:
            place = place[int(part)] if isinstance(place, list) else place[part]
        del place[int(last) if isinstance(place, list) else last]

    return change
