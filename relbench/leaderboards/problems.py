"""What is wrong with a submission: one line each, of text that cannot do anything to a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from relbench.leaderboards.limits import LINE, PROBLEMS, QUOTED


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: Path below the leaderboards folder.
        field: JSON path in it such as `methods[0].shots`, `line 3`, or "" for the file as a whole.
        what: What was expected, and what was found.
    """

    file: str
    field: str
    what: str

    @property
    def place(self) -> tuple[object, ...]:
        """What problems are sorted by: `rows[9]` comes before `rows[10]`."""
        parts = re.split(r"([0-9]{1,9})", self.field)
        numbers = tuple((int(part), "") if number % 2 else (-1, part) for number, part in enumerate(parts))
        return (self.file, numbers, self.what)

    def __str__(self) -> str:
        where = f"{self.file}: {self.field}: " if self.field else f"{self.file}: "
        return shown(where + self.what, LINE)


class Refused(Exception):
    """Input that is not read any further."""

    def __init__(self, what: str, field: str = "") -> None:
        super().__init__(what)
        self.what, self.field = what, field


def shown(value: Any, most: int = QUOTED) -> str:
    """A value in a message: one line, at most `most` characters, what cannot be printed escaped."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > most:
        text = text[:most] + "…"
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "replace").decode()
        for character in text
    )


def quoted(value: Any) -> str:
    """A value in a message, text in quotation marks."""
    return shown(repr(value))


def limited(file: str, problems: Iterable[Problem]) -> list[Problem]:
    """The first `PROBLEMS` of a file's problems, and how many more there are."""
    found = list(problems)
    if len(found) <= PROBLEMS:
        return found
    return [*found[:PROBLEMS], Problem(file, "", f"{len(found) - PROBLEMS} more problems of this file")]
