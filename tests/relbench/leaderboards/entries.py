"""Submissions for tests of boards and pages: the tables are those of made-up sweeps, the rest is invented."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from interventions.model_id import ModelId
from relbench.findings import make_findings
from relbench.leaderboards.names import model_folder, revision_folder
from relbench.leaderboards.submission import (
    MaskFile,
    Method,
    Model,
    SamplesFile,
    Submission,
    Submitter,
    TaskData,
)
from relbench.samples import BASELINE, Sample
from relbench.taskfiles import task_name
from relbench.treatments import RANDOM, Treatment
from tests.relbench.sweeps import MODEL, grid, make_sweep

TABLES = ("recall", "methods", "curves", "masks", "transfer")
RELATIONS = ("country_capital", "company_hq", "landmark_on_continent", "thing_color")

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "=cmd()|' /C calc'!A0",
    "+1", "-1", "@SUM(A1)",
    "a | b", "[x](javascript:alert(1))", "![x](http://e.example/x.png)", "<https://e.example>",
    "http://e.example www.e.example a@e.example", "`code` **bold** _it_ ~~s~~ $x$", "# head", "1. one", "- item",
    "{{ 7 * 7 }}{% raw %}", "&lt;script&gt;", "\\", "\\|", "--", "===", "a\u202eb", "a\nb", "</table></template>",
]  # fmt: skip

# (method, mask size, whether the fact is of the masked relation, whether it is in the mask's language) → share lost.
Loses = Callable[[str, int, bool, bool], float]


def made_up(
    directory: Path,
    losses: Loses,
    *,
    name: str = "made-up",
    methods: Sequence[str] = ("good", "poor"),
    relations: Sequence[str] = RELATIONS,
    languages: Sequence[str] = ("en",),
    ks: Sequence[int] = (10, 30),
    model: ModelId = MODEL,
    n: int = 30,
    seeds: int = 3,
    right: Callable[[Sample], bool] = lambda _: True,
    config: Mapping[str, Any] | None = None,
) -> Submission:
    """A submission with the findings of a made-up sweep."""
    concepts = [f"{relation}@{language}" for relation in relations for language in languages]
    treatments = [
        replace(treatment, fraction=(treatment.k or 0) / 10_000)
        for number, method in enumerate(methods)
        for treatment in grid(concepts, ks, method=method, seeds=0 if number else seeds)
    ]

    def outcome(treatment: Treatment, sample: Sample) -> bool:
        if treatment.method == BASELINE or not right(sample):
            return right(sample)
        relation, _, language = str(treatment.concept).rpartition("@")
        own, here = sample.relation == relation, sample.language == language
        lost = losses(treatment.method, treatment.k or 0, own, here) * n
        # Which facts go differs from mask to mask.
        start = int(hashlib.sha256(f"{treatment.id}{sample.task}".encode()).hexdigest(), 16)
        return (sample.doc_id + (0 if own else start)) % n >= lost

    given = {
        "relations": list(relations),
        "languages": list(languages),
        "fractions": [k / 10_000 for k in ks],
        "methods": [
            {"id": one, "name": "log-probability-increase", "options": {"contrast": "none"}}
            for one in methods
        ],
        **(config or {}),
    }
    make_sweep(directory, treatments, outcome, given, n=n)
    state = yaml.safe_load((directory / "sweep.yaml").read_text())
    tables = {table.name: table.rows for table in make_findings(directory).tables}
    tasks = {
        task_name(relation, language): TaskData(_hash(f"{relation} {language} {n}"), n)
        for relation in relations
        for language in languages
    }
    return Submission(
        id=name,
        submitter=Submitter("A. Person", "https://example.org/a"),
        licence="CC-BY-4.0",
        created="2026-01-31",
        protocol=1,
        boards=("methods", "models", "transfer"),
        model=Model(replace(model, fingerprint=_hash(model.fingerprint)), model.name, "float32", "cpu"),
        data_version=_hash(json.dumps({task: vars(data) for task, data in tasks.items()}))[:16],
        tasks=tasks,
        config=state["config"],
        treatments=(Treatment(BASELINE, BASELINE), *treatments),
        methods=tuple(method(one) for one in methods),
        masks=tuple(
            MaskFile(f"masks/{t.id}.safetensors", _hash(t.id), None) for t in treatments if t.method != RANDOM
        ),
        samples=SamplesFile(f"samples/{name}.jsonl.gz", _hash(name), len(concepts) * n, 1_000),
        results={table: tables[table] for table in TABLES if table in tables},
        environment={
            "packages": {"torch": "2.9.0", "transformers": "5.0.0"},
            "python": "3.12.1",
            "hardware": {
                "processor": "some processor",
                "cores": 2,
                "memory_bytes": 8 * 10**9,
                "accelerator": None,
            },
            "processes": 1,
            "seconds": {"scores": 12.5, "evaluation": 99.0},
        },
        command=f"relbench sweep {name}.yaml -o {name}",
    )


def _lost(method: str, k: int, own: bool, here: bool) -> float:
    """Of what is masked, "good" loses half and then all, "poor" a tenth and a fifth; of others a fifth of that."""
    share = {"good": {10: 0.5, 30: 1.0}, "poor": {10: 0.1, 30: 0.2}}.get(method, {}).get(k, 0.0)
    return share * (1.0 if own else 0.2) * (1.0 if here else 0.5)


@cache
def english() -> Submission:
    """Two methods in English."""
    with tempfile.TemporaryDirectory() as folder:
        return made_up(Path(folder) / "run", _lost, name="english")


@cache
def two_languages() -> Submission:
    """One method in two languages, on another model that knows less in German."""
    with tempfile.TemporaryDirectory() as folder:
        return made_up(
            Path(folder) / "run",
            _lost,
            name="two-languages",
            methods=("good",),
            languages=("en", "de"),
            model=replace(MODEL, name="org/other", revision="abc123", fingerprint="other"),
            right=lambda sample: sample.language == "en" or sample.doc_id >= 6,
        )


def hostile(text: str) -> Submission:
    """A submission with `text` wherever a stranger writes freely."""
    first = english()
    identity = replace(first.model.id, name=text)
    return replace(
        first,
        submitter=Submitter(text, "https://example.org/a"),
        model=replace(first.model, id=identity, source=text),
        methods=tuple(replace(method, options={text: text}) for method in first.methods),
        command=text,
        config={**first.config, "positions": [text], "split": text, "templates": [text]},
        environment={
            **first.environment,
            "hardware": {**first.environment["hardware"], "processor": text},
        },
    )


def method(name: str, **changes: Any) -> Method:
    """A scoring method of a submission."""
    made = Method(
        id=name,
        name="log-probability-increase",
        preset=None,
        template="completion",
        shots=0,
        kinds=("act",),
        options={"contrast": "none"},
        code={"relbench": "0.1.0", "commit": None, "modified": None},
        tuned_on="nothing",
        contrast_relations=(),
        seconds=12.5,
        bytes=2_500_000,
    )
    return replace(made, **changes)


def write(submission: Submission, root: Path) -> Path:
    """Write a submission's file where it belongs under a leaderboards folder.

    Returns:
        The file.
    """
    model = submission.model.id
    path = root / "results" / model_folder(model) / revision_folder(model) / f"{submission.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(submission.to_dict(), ensure_ascii=False), encoding="utf-8")
    return path


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
