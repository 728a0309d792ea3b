"""Which relations count as off-target for a mask, and in which group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

# Groups, in the order in which they are shown. A headline rests on the first that has testable relations.
HELD_OUT, CONTRASTED, SAME_TYPE, OTHER_LANGUAGE = "held-out", "contrasted", "same type", "other languages"
GROUPS = {
    HELD_OUT: "relations that the scores were not made from",
    CONTRASTED: "relations that were negatives of the scores or contrasted with",
    SAME_TYPE: "relations with the target's type of objects",
    OTHER_LANGUAGE: "other relations in other languages",
}


@dataclass(frozen=True)
class Scheme:
    """What decides which relations a mask is judged on, besides the samples.

    Attributes:
        testable: Evaluated concepts that are testable.
        ranges: Relation → type of its objects; a relation that is not named shares its type with none.
        contrasted: Scoring method → relations that it used as negatives or contrasted with; none for a method
            that is not named.
    """

    testable: frozenset[str]
    ranges: Mapping[str, str] = field(default_factory=dict)
    contrasted: Mapping[str, Collection[str]] = field(default_factory=dict)

    def group(self, method: str, target: str, other: str) -> str | None:
        """The group in which concept `other` is off-target for a mask of `target`.

        Returns:
            One of `GROUPS`; None for the target itself, also in another language.
        """
        relation, _, language = target.rpartition("@")
        asked, _, spoken = other.rpartition("@")
        if asked == relation:
            return None
        if spoken != language:
            return OTHER_LANGUAGE
        own = self.ranges.get(relation)
        if own is not None and own == self.ranges.get(asked):
            return SAME_TYPE
        return CONTRASTED if asked in self.contrasted.get(method, ()) else HELD_OUT

    def groups(self, method: str, target: str, evaluated: Iterable[str]) -> dict[str, list[str]]:
        """The testable among the evaluated concepts by group, in the order of `GROUPS`; no empty groups."""
        found: dict[str, list[str]] = {group: [] for group in GROUPS}
        for other in evaluated:
            group = self.group(method, target, other)
            if group is not None and other in self.testable:
                found[group].append(other)
        return {group: members for group, members in found.items() if members}


def basis(groups: Collection[str]) -> str | None:
    """The group that a mask's selectivity rests on: held-out relations, else contrasted ones, else none."""
    return next((group for group in (HELD_OUT, CONTRASTED) if group in groups), None)
