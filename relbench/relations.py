"""Relations and their facts, as they lie in `tasks/<relation>/`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from interventions.errors import UserError
from relbench.languages import LANGUAGES
from relbench.paths import tasks_dir

SPLITS = ("shots", "detect", "tune", "eval")
TEMPLATES = ("completion", "paraphrase", "question")


@dataclass(frozen=True)
class Object:
    """One right answer of a fact: an identity and, per language, its labels, the canonical one first."""

    id: str
    labels: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Fact:
    """A subject and the objects that are right for it; the first object is the canonical answer.

    Attributes:
        id: `<relation>.<slug>`, unique over all relations.
        subject_id: Identity of the subject, shared by all relations.
        subject: Label per language.
        objects: Every right answer.
        split: "shots", "detect", "tune" or "eval"; None while unassigned.
        as_of: Year for which a changing fact holds.
    """

    id: str
    subject_id: str
    subject: Mapping[str, str]
    objects: tuple[Object, ...]
    split: str | None = None
    as_of: str | None = None

    @property
    def answer_id(self) -> str:
        """Identity of the canonical answer."""
        return self.objects[0].id

    def accepted(self, language: str) -> tuple[str, ...]:
        """Every accepted answer in `language`, canonical one first, without repeats."""
        labels = (label for object_ in self.objects for label in object_.labels.get(language, ()))
        return tuple(dict.fromkeys(labels))

    def has_language(self, language: str) -> bool:
        """Whether subject and canonical answer have a label in `language`."""
        return bool(self.subject.get(language)) and bool(self.objects[0].labels.get(language))


@dataclass(frozen=True)
class Relation:
    """A relation: what it means, its prompt templates and where its facts come from.

    Attributes:
        name: Folder and task name, such as `country_capital`.
        description: One sentence.
        domain: Type of the subjects.
        range: Type of the objects; relations with equal range share answer types.
        knowledge_type: One of the six knowledge types of the attribution paper, or None.
        paper12: Whether it is one of the twelve relations of the statistical paper.
        version: Raised whenever facts or templates change.
        licence: Licence of the facts.
        sources: Where the facts come from, a line each.
        templates: language → template name → text with one `{subject}`.
        notes: What a user should know, or "".
    """

    name: str
    description: str
    domain: str
    range: str
    knowledge_type: str | None
    paper12: bool
    version: int
    licence: str
    sources: tuple[str, ...]
    templates: Mapping[str, Mapping[str, str]]
    notes: str = field(default="", compare=False)

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages with templates, in the order of `LANGUAGES`."""
        return tuple(code for code in LANGUAGES if code in self.templates)

    def template(self, language: str, name: str) -> str:
        """The template `name` in `language`.

        Raises:
            UserError: The relation has no such language or template.
        """
        if language not in self.templates:
            raise UserError(
                f"{self.name} has no templates in {language!r}; it has {', '.join(self.languages)}"
            )
        if name not in self.templates[language]:
            raise UserError(
                f"{self.name} has no template {name!r} in {language!r}; "
                f"it has {', '.join(self.templates[language])}"
            )
        return self.templates[language][name]


def relation_names() -> tuple[str, ...]:
    """Names of all relations in the tasks folder, sorted."""
    return tuple(sorted(path.parent.name for path in tasks_dir().glob("*/relation.yaml")))


def load_relation(name: str) -> Relation:
    """Read `tasks/<name>/relation.yaml`.

    Raises:
        UserError: There is no such relation, or its file is not what the format asks for.
    """
    path = tasks_dir() / name / "relation.yaml"
    if not path.is_file():
        raise UserError(f"unknown relation {name!r}; the tasks folder has {', '.join(relation_names())}")
    return _relation(path, path.stat().st_mtime_ns)


def load_facts(name: str) -> tuple[Fact, ...]:
    """Read `tasks/<name>/facts.jsonl` in file order.

    Raises:
        UserError: A line is not a fact; file, line number and reason are named.
    """
    load_relation(name)
    path = tasks_dir() / name / "facts.jsonl"
    if not path.is_file():
        raise UserError(f"{path} is missing; a relation needs its facts, one JSON object a line")
    return _facts(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _relation(path: Path, _modified: int) -> Relation:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Relation(
            name=_text(raw, "relation"),
            description=_text(raw, "description"),
            domain=_text(raw, "domain"),
            range=_text(raw, "range"),
            knowledge_type=raw.get("knowledge_type"),
            paper12=bool(raw.get("paper12", False)),
            version=int(raw["version"]),
            licence=_text(raw, "licence"),
            sources=tuple(raw.get("sources", ())),
            templates={
                language: {name: str(text) for name, text in named.items()}
                for language, named in raw["templates"].items()
            },
            notes=str(raw.get("notes", "")),
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a relation file: {_reason(error)}") from error


@lru_cache(maxsize=256)
def _facts(path: Path, _modified: int) -> tuple[Fact, ...]:
    facts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            facts.append(parse_fact(json.loads(line)))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} line {number} is not a fact: {_reason(error)}") from error
    return tuple(facts)


def parse_fact(raw: Mapping[str, Any]) -> Fact:
    """A fact from one parsed line of `facts.jsonl`.

    Raises:
        KeyError, TypeError, ValueError: A key is missing or has the wrong type.
    """
    objects = tuple(
        Object(
            id=_text(entry, "id"),
            labels={language: tuple(map(str, labels)) for language, labels in entry["labels"].items()},
        )
        for entry in raw["objects"]
    )
    if not objects:
        raise ValueError("`objects` is empty")
    split = raw.get("split")
    if split is not None and split not in SPLITS:
        raise ValueError(f"split {split!r} is none of {', '.join(SPLITS)}")
    return Fact(
        id=_text(raw, "id"),
        subject_id=_text(raw, "subject_id"),
        subject=dict(raw["subject"]),
        objects=objects,
        split=split,
        as_of=raw.get("as_of"),
    )


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{key}` must be a non-empty string")
    return value


def _reason(error: Exception) -> str:
    return f"missing key {error}" if isinstance(error, KeyError) else str(error)
