"""Pairing: the same question, asked without and with an intervention; all comparison of runs starts here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from interventions.errors import UserError
from relbench.samples import Sample

QuestionKey = tuple[str, str, int, str, str, str]


class Question(Protocol):
    """What pairing needs of a record: what identifies the question, and a name for messages."""

    @property
    def key(self) -> QuestionKey:
        """Task, filter, document id, and lm-eval's document, prompt and target hashes."""

    @property
    def name(self) -> str:
        """The question in a message."""


Q = TypeVar("Q", bound=Question)
K = TypeVar("K", bound=Hashable)


class Pair(NamedTuple, Generic[Q]):
    """One question, asked without and with the intervention."""

    before: Q
    after: Q


def pair(before: Iterable[Q], after: Iterable[Q]) -> list[Pair[Q]]:
    """Pair the records of two runs by question; order does not matter.

    Raises:
        UserError: A question stands twice in one run, in one run only, or in both with another document,
            prompt or target; the first few are named.
    """
    first, second = _by_key(before, "the baseline"), _by_key(after, "the intervention")
    if first.keys() != second.keys():
        raise UserError(_unpaired(first, second))
    return [Pair(first[key], second[key]) for key in sorted(first)]


def _by_key(questions: Iterable[Q], run: str) -> dict[QuestionKey, Q]:
    found: dict[QuestionKey, Q] = {}
    for question in questions:
        if question.key in found:
            raise UserError(f"{run} has {question.name} twice; keep one of them")
        found[question.key] = question
    return found


_PARTS = ("document", "prompt", "target")
# Questions that a message names.
_NAMED = 3


def _unpaired(first: dict[QuestionKey, Q], second: dict[QuestionKey, Q]) -> str:
    """What does not pair, in words."""
    added = {key[:3]: key for key in sorted(second.keys() - first.keys())}
    said = []
    for key in sorted(first.keys() - second.keys()):
        other = added.pop(key[:3], None)
        if other is None:
            said.append(f"{first[key].name} is in the baseline only")
            continue
        changed = [part for part, a, b in zip(_PARTS, key[3:], other[3:], strict=True) if a != b]
        said.append(f"{first[key].name} has another {' and '.join(changed)}")
    said += [f"{second[key].name} is in the intervention only" for key in added.values()]
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return (
        f"{len(said)} samples do not pair: {'; '.join(said[:_NAMED])}{more}; "
        "both runs need the same tasks, prompts and data"
    )


def split_by(pairs: Iterable[Pair[Sample]], key: Callable[[Sample], K]) -> dict[K, list[Pair[Sample]]]:
    """Pairs by a property of their question, in order of first appearance."""
    groups: dict[K, list[Pair[Sample]]] = {}
    for one in pairs:
        groups.setdefault(key(one.before), []).append(one)
    return groups


def headline(pairs: Iterable[Pair[Sample]]) -> list[Pair[Sample]]:
    """The pairs that headline numbers rest on: facts whose answer cannot be copied from the subject."""
    return [one for one in pairs if not one.before.copyable]
