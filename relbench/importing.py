"""Relations from other files: CSV tables, LRE, BEAR, LAMA and ParaRel, turned into a relation folder.

Nothing is guessed silently: what is dropped or merged is reported, with the reason.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from interventions.errors import UserError
from interventions.files import atomic_write
from relbench.paths import tasks_dir
from relbench.relations import load_facts, load_relation, relation_names
from relbench.splits import assign, read_registry, write_registry, write_splits

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Triple:
    """A subject and one right object, with identities where the source has them."""

    subject: str
    object: str
    subject_id: str | None = None
    object_id: str | None = None


@dataclass(frozen=True)
class Source:
    """What a file says.

    Attributes:
        triples: In file order, repeats included.
        templates: With `{subject}`, each ending right before the object.
        dropped: What was left out while reading, a line each.
        name: The relation's name in the source.
    """

    triples: tuple[Triple, ...]
    templates: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    name: str = ""


@dataclass
class Imported:
    """What an import made: the folder, counts, and everything that was dropped or merged."""

    folder: Path
    facts: int
    answers: int
    remarks: list[str] = field(default_factory=list)


def import_relation(
    source: Source,
    relation: str,
    *,
    language: str = "en",
    domain: str = "thing",
    range_: str = "thing",
    licence: str = "unknown",
    origin: str = "",
) -> Imported:
    """Make `tasks/<relation>/` from a source, with splits that obey the registry of subjects.

    Args:
        source: What was read.
        relation: Name of the new relation.
        language: Language of its labels and templates.
        domain, range_: Types of subjects and objects.
        licence: Licence of the source's data.
        origin: Where it came from, for `sources`.

    Raises:
        UserError: The name is taken or no name, or nothing usable is left.
    """
    if not _NAME.fullmatch(relation):
        raise UserError(f"{relation!r} is no relation name; use lower-case letters, digits and _")
    folder = tasks_dir() / relation
    if folder.exists():
        raise UserError(f"{folder} exists; choose another --relation or remove it")
    remarks = list(source.dropped)
    rows = _merge(source.triples, relation, language, domain, range_, remarks)
    if not rows:
        raise UserError(f"{origin or 'the source'} holds no usable fact")
    if not source.templates:
        raise UserError(
            f"{origin or 'the source'} has no template that ends on the object; give one with "
            "--template '[X] is the capital of [Y]'"
        )
    completions = [text for text in source.templates if "?" not in text]
    questions = [text for text in source.templates if "?" in text]
    templates = {"completion": (completions or questions)[0]}
    if len(completions) > 1:
        templates["paraphrase"] = completions[1]
    if questions:
        templates["question"] = questions[0]
    unused = len(source.templates) - len(set(templates.values()))
    if unused:
        remarks.append(f"{unused} more templates are not used; add them to relation.yaml under other names")
    described = {
        "relation": relation,
        "description": f"Imported: {source.name or relation.replace('_', ' ')}.",
        "domain": domain,
        "range": range_,
        "knowledge_type": None,
        "paper12": False,
        "version": 1,
        "licence": licence,
        "sources": [origin or "imported"],
        "templates": {language: templates},
    }
    with atomic_write(folder / "relation.yaml") as file:
        yaml.safe_dump(described, file, sort_keys=False, allow_unicode=True, width=110)
    with atomic_write(folder / "facts.jsonl") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    registry = assign({name: load_facts(name) for name in relation_names()}, read_registry())
    write_registry(registry)
    write_splits(relation, registry)
    load_relation(relation)
    answers = {row["objects"][0]["id"] for row in rows}
    return Imported(folder, len(rows), len(answers), remarks)


def _merge(
    triples: Iterable[Triple], relation: str, language: str, domain: str, range_: str, remarks: list[str]
) -> list[dict[str, Any]]:
    """Facts as `facts.jsonl` rows: one a subject, its objects in order, repeats gone."""
    known = _known_subjects(language)
    facts: dict[str, dict[str, Any]] = {}
    repeats = several = empty = 0
    for triple in triples:
        subject, answer = _clean(triple.subject), _clean(triple.object)
        if not subject or not answer:
            empty += 1
            continue
        identity = triple.subject_id or known.get(subject.casefold()) or f"{domain}:{_slug(subject)}"
        object_id = triple.object_id or f"{range_}:{_slug(answer)}"
        fact = facts.setdefault(
            identity,
            {
                "id": f"{relation}.{_slug(subject)}",
                "subject_id": identity,
                "subject": {language: subject},
                "objects": [],
            },
        )
        same = next((entry for entry in fact["objects"] if entry["id"] == object_id), None)
        if same is None:
            several += bool(fact["objects"])
            fact["objects"].append({"id": object_id, "labels": {language: [answer]}})
        elif answer in same["labels"][language]:
            repeats += 1
        else:
            same["labels"][language].append(answer)
    for number, what in (
        (empty, "triples without a subject or object are dropped"),
        (repeats, "repeated triples are dropped"),
        (several, "further answers of a subject are accepted beside its first"),
    ):
        if number:
            remarks.append(f"{number} {what}")
    rows = sorted(facts.values(), key=lambda row: (row["id"], row["subject_id"]))
    seen: dict[str, int] = {}
    for row in rows:
        seen[row["id"]] = seen.get(row["id"], 0) + 1
        if seen[row["id"]] > 1:
            row["id"] += f"_{seen[row['id']]}"
    return rows


def _known_subjects(language: str) -> dict[str, str]:
    """Label → identity of the subjects there are, where a label names one subject only."""
    found: dict[str, set[str]] = {}
    for name in relation_names():
        for fact in load_facts(name):
            if label := fact.subject.get(language):
                found.setdefault(label.casefold(), set()).add(fact.subject_id)
    return {label: next(iter(ids)) for label, ids in found.items() if len(ids) == 1}


def _clean(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _slug(text: str) -> str:
    """A readable ASCII name; a hash where nothing of the text is left."""
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
    return slug or hashlib.sha256(text.encode()).hexdigest()[:10]


def template_before_object(text: str, subject: str = "[X]", answer: str = "[Y]") -> str | None:
    """A template cut right before its object; None when words follow the object.

    Args:
        text: Such as "[X] is located in [Y] ."
        subject, answer: How the template marks them.
    """
    if text.count(subject) != 1 or text.count(answer) != 1:
        return None
    before, _, after = text.partition(answer)
    if after.strip(" .。!?！？") or subject not in before:
        return None
    return _clean(before.replace(subject, "{subject}"))


def read_lre(path: Path) -> Source:
    """A relation of the LRE data (one JSON object: `name`, `prompt_templates`, `samples`).

    Raises:
        UserError: The file is not of that form.
    """
    raw = _json(path)
    try:
        texts = [*raw.get("prompt_templates", ()), *raw.get("prompt_templates_zs", ())]
        triples = tuple(Triple(str(s["subject"]), str(s["object"])) for s in raw["samples"])
        return Source(
            triples=triples,
            templates=tuple(
                _clean(text.replace("{}", "{subject}")) for text in texts if text.count("{}") == 1
            ),
            dropped=tuple(f"template {text!r} has no single {{}}" for text in texts if text.count("{}") != 1),
            name=str(raw.get("name", "")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not an LRE relation: it needs `samples` with subject and object"
        ) from error


def read_bear(path: Path) -> Source:
    """A relation of BEAR: `P###.jsonl` beside `metadata_relations.json`.

    Raises:
        UserError: The metadata file or the relation in it is missing, or a line lacks its keys.
    """
    metadata = _json(path.parent / "metadata_relations.json")
    entry = metadata.get(path.stem)
    if not isinstance(entry, dict):
        raise UserError(f"{path.parent / 'metadata_relations.json'} says nothing about {path.stem}")
    triples = tuple(
        Triple(
            row["sub_label"],
            row["obj_label"],
            f"wikidata:{row['sub_id']}" if row.get("sub_id") else None,
            f"wikidata:{row['obj_id']}" if row.get("obj_id") else None,
        )
        for row in _rows(path, ("sub_label", "obj_label"))
    )
    return _with_templates(triples, entry.get("templates", ()), path.stem)


def read_csv(path: Path, templates: Sequence[str] = ()) -> Source:
    """A table with the columns `subject` and `object`; a subject on several lines has several answers.

    Args:
        path: The table, with a header line.
        templates: "[X] … [Y]", at least one.

    Raises:
        UserError: A column is missing.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a CSV file: {error}") from error
    if not rows or not {"subject", "object"} <= rows[0].keys():
        raise UserError(f"{path} needs a header with the columns subject and object, and a line a fact")
    triples = tuple(Triple(row["subject"] or "", row["object"] or "") for row in rows)
    return _with_templates(triples, templates, path.stem)


def read_lama(path: Path, templates: Sequence[str] = ()) -> Source:
    """LAMA or ParaRel JSON lines with `sub_label` and `obj_label`.

    Args:
        path: The triples.
        templates: "[X] … [Y]"; without any, those of `relations.jsonl` (LAMA) or of a `pattern` file
            with the same name in a `patterns` folder beside it (ParaRel) are used.

    Raises:
        UserError: A line lacks its keys.
    """
    triples = tuple(
        Triple(row["sub_label"], row["obj_label"]) for row in _rows(path, ("sub_label", "obj_label"))
    )
    found = list(templates) or list(_templates_beside(path))
    return _with_templates(triples, found, path.stem)


def _templates_beside(path: Path) -> Iterator[str]:
    for folder in (path.parent, path.parent.parent):
        listing = folder / "relations.jsonl"
        if listing.is_file():
            yield from (
                row["template"]
                for row in _rows(listing, ("relation", "template"))
                if row["relation"] == path.stem
            )
        patterns = folder / "patterns" / f"{path.stem}.jsonl"
        if patterns.is_file():
            yield from (row["pattern"] for row in _rows(patterns, ("pattern",)))


def _with_templates(triples: tuple[Triple, ...], texts: Iterable[str], name: str) -> Source:
    kept, dropped = [], []
    for text in texts:
        template = template_before_object(text)
        if template is None:
            dropped.append(f"template {text!r} does not end on the object")
        else:
            kept.append(template)
    return Source(triples, tuple(dict.fromkeys(kept)), tuple(dropped), name)


READERS: Mapping[str, Callable[..., Source]] = {
    "csv": read_csv,
    "lre": read_lre,
    "bear": read_bear,
    "lama": read_lama,
    "pararel": read_lama,
}


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path} is not a JSON object")
    return raw


def _rows(path: Path, keys: Sequence[str]) -> Iterator[dict[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path} line {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys):
            raise UserError(f"{path} line {number} needs {' and '.join(keys)}")
        yield row
