"""The sample record: one model answer to one probe under one intervention. All results derive from these."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jsonlines

from interventions.errors import UserError
from interventions.files import atomic_write, canonical_json

BASELINE = "baseline"


@dataclass(frozen=True)
class Sample:
    """One answer.

    Attributes:
        intervention: Id of what was done to the model; "baseline" for nothing.
        task, relation, language: What was asked, and in which lm-eval task.
        template, shots: How: the prompt's template, and the number of few-shot examples before it.
        doc_id, fact_id, subject_id, answer_id: The document, and identities of its parts.
        answer_seen: Whether a right answer also answers a `detect` fact.
        copyable: Whether the answer can be read off the subject.
        answer_in_shots: Whether the canonical answer stands in the few-shot examples.
        filter: lm-eval's filter, "none".
        doc_hash, prompt_hash, target_hash: lm-eval's hashes, by which samples of two runs pair.
        recall: 1 when the greedy continuation is an accepted answer, else 0.
        answer_logprob: Natural log probability of the canonical answer.
        first_token_rank: Rank of its first token, 1 the most probable; None when the model gave none.
        continuation: What the model goes on to say, greedily; None where it was not asked.
    """

    intervention: str
    task: str
    relation: str
    language: str
    template: str
    shots: int
    doc_id: int
    fact_id: str
    subject_id: str
    answer_id: str
    answer_seen: bool
    copyable: bool
    answer_in_shots: bool
    filter: str
    doc_hash: str
    prompt_hash: str
    target_hash: str
    recall: int
    answer_logprob: float
    first_token_rank: int | None
    continuation: str | None = None

    @property
    def key(self) -> tuple[str, str, int, str, str, str]:
        """What two samples must share to be the same question."""
        return (self.task, self.filter, self.doc_id, self.doc_hash, self.prompt_hash, self.target_hash)

    @property
    def name(self) -> str:
        """The question in a message."""
        return f"{self.fact_id} of {self.task}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        # All values are plain, and `asdict` would copy each of them.
        return dict(vars(self))


_FIELDS = {field.name for field in fields(Sample)}


def sample_from_dict(raw: dict[str, Any]) -> Sample:
    """The sample that `to_dict` gave.

    Raises:
        ValueError: Keys are missing or unknown.
    """
    if raw.keys() != _FIELDS:
        odd = sorted(raw.keys() ^ _FIELDS)
        raise ValueError(f"sample record has missing or unknown keys: {', '.join(odd)}")
    return Sample(**raw)


def write_samples(path: str | Path, samples: Iterable[Sample]) -> None:
    """Write samples as JSON lines, sorted, so that equal results are equal bytes."""
    ordered = sorted(samples, key=lambda s: (s.intervention, s.task, s.template, s.shots, s.doc_id))
    with atomic_write(path) as file:
        for sample in ordered:
            file.write(canonical_json(sample.to_dict()) + "\n")


def read_samples(path: str | Path) -> list[Sample]:
    """Read `samples.jsonl`.

    Raises:
        UserError: The file is missing or a line is not a sample.
    """
    return list(_read(Path(path)))


def _read(path: Path) -> Iterator[Sample]:
    if not path.is_file():
        raise UserError(f"{path} is missing; a finished sweep has it")
    with open(path, encoding="utf-8") as file:
        try:
            for raw in jsonlines.Reader(file, loads=json.loads):
                yield sample_from_dict(raw)
        except (jsonlines.Error, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a samples file: {error}") from error
