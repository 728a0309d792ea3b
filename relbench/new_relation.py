"""The start of a new relation: a folder whose files say what to fill in."""

from __future__ import annotations

import re
from pathlib import Path

from interventions.errors import UserError
from interventions.files import atomic_write
from relbench.paths import tasks_dir

_RELATION = """\
relation: {name}
description: One sentence that says what the object is to the subject.
domain: thing            # type of the subjects, such as country, person, company
range: thing             # type of the objects, such as city, year, colour
knowledge_type: null     # language, capital, country, colour, number, month, or null
paper12: false
version: 1               # raise it whenever facts or templates change
licence: CC-BY-4.0
sources:
  - Where the facts come from.
templates:
  # One block a language (en de fr es zh ja). A template has one {{subject}} and ends right before the object,
  # without a trailing space; it should read well alone and five times in a row.
  en:
    completion: "The … of {{subject}} is"
    # paraphrase: other words for the same
    # question: "What is the … of {{subject}}? Answer:"
"""
_FACT = (
    '{{"id": "{name}.example", "subject_id": "thing:example", "subject": {{"en": "Example"}}, '
    '"objects": [{{"id": "thing:answer", "labels": {{"en": ["Answer", "another accepted answer"]}}}}]}}\n'
)


def new_relation(name: str) -> Path:
    """Make `tasks/<name>/` with a commented `relation.yaml` and one example fact.

    Raises:
        UserError: The name is taken, or no name.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"{name!r} is no relation name; use lower-case letters, digits and _")
    folder = tasks_dir() / name
    if folder.exists():
        raise UserError(f"{folder} exists; choose another name")
    with atomic_write(folder / "relation.yaml") as file:
        file.write(_RELATION.format(name=name))
    with atomic_write(folder / "facts.jsonl") as file:
        file.write(_FACT.format(name=name))
    return folder
