"""lm-eval's logged samples: any task's, ours or not, as records that pair."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interventions.errors import UserError


@dataclass(frozen=True)
class LoggedSample:
    """One line of `samples_<task>_<date>.jsonl`.

    Attributes:
        task, filter, doc_id: What was asked.
        doc_hash, prompt_hash, target_hash: lm-eval's hashes.
        metrics: Metric → value, the numeric ones.
        relation, language, subject: Of the probe; None for tasks that are not ours.
    """

    task: str
    filter: str
    doc_id: int
    doc_hash: str
    prompt_hash: str
    target_hash: str
    metrics: Mapping[str, float]
    relation: str | None = None
    language: str | None = None
    subject: str | None = None

    @property
    def key(self) -> tuple[str, str, int, str, str, str]:
        """What two samples must share to be the same question."""
        return (self.task, self.filter, self.doc_id, self.doc_hash, self.prompt_hash, self.target_hash)

    @property
    def name(self) -> str:
        """The question in a message."""
        return f"document {self.doc_id} of {self.task}"


def logged_sample(task: str, raw: Mapping[str, Any]) -> LoggedSample:
    """A record from lm-eval's dictionary for one document.

    Raises:
        KeyError: A key of lm-eval 0.4.13's format is missing.
    """
    document = raw["doc"] if isinstance(raw["doc"], Mapping) else {}
    values = {name: raw[name] for name in raw["metrics"]}
    ours = str(document.get("fact_id", "")).startswith(f"{document.get('relation')}.")
    return LoggedSample(
        task=task,
        filter=str(raw.get("filter", "none")),
        doc_id=int(raw["doc_id"]),
        doc_hash=raw["doc_hash"],
        prompt_hash=raw["prompt_hash"],
        target_hash=raw["target_hash"],
        metrics={name: float(value) for name, value in values.items() if isinstance(value, (int, float))},
        relation=document.get("relation") if ours else None,
        language=document.get("language") if ours else None,
        subject=document.get("subject_id") if ours else None,
    )


def logged_samples(samples: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[LoggedSample]:
    """Records of everything that `simple_evaluate(log_samples=True)` returned."""
    return [logged_sample(task, raw) for task, rows in samples.items() for raw in rows]


def read_logged(folder: str | Path) -> list[LoggedSample]:
    """Records of the newest `samples_*.jsonl` of each task in a folder that `lm_eval --log_samples` wrote.

    Raises:
        UserError: There are none, those of several runs, or a line is not lm-eval's.
    """
    newest: dict[str, Path] = {}
    runs = sorted({path.parent for path in Path(folder).rglob("samples_*.jsonl")})
    if len(runs) > 1:
        raise UserError(
            f"{folder} has the samples of several runs: {runs[0]}, {runs[1]}, …; name one of them"
        )
    for path in sorted(Path(folder).rglob("samples_*.jsonl"), key=lambda path: path.stem[-26:]):
        newest[path.stem[len("samples_") : -len("_2026-01-01T00-00-00.000000")]] = path
    if not newest:
        raise UserError(f"{folder} has no samples_*.jsonl; run lm_eval with --log_samples --output_path")
    records = []
    for task, path in sorted(newest.items()):
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    records.append(logged_sample(task, json.loads(line)))
                except (ValueError, KeyError, TypeError) as error:
                    raise UserError(f"{path} line {number} is not a logged sample: {error}") from error
    return records
