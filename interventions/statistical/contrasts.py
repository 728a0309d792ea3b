"""Contrasts: which prompts are a concept's positives and which its negatives.

Concepts whose positives and negatives together are the same prompts form one contrast and are scored from one
sort; a concept with drawn or balanced prompts has a contrast of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError

if TYPE_CHECKING:
    from interventions.prompts import Prompt

Indices = NDArray[np.int64]
BALANCES = ("none", "length", "answers", "both")


@dataclass(frozen=True)
class Contrast:
    """Prompts that some concepts are scored on.

    Attributes:
        concepts: Number of each concept in the list of concepts; label i means `concepts[i]`.
        rows: int64 [n] indices of prompts.
        labels: int64 [n]; -1 for a prompt that is a negative only.
        companions: How many labels there are beyond the concepts': of negatives that are told apart by their
            concept, for a statistic that compares concepts with one another.
    """

    concepts: tuple[int, ...]
    rows: Indices
    labels: Indices
    companions: int = 0

    @property
    def n_labels(self) -> int:
        """Concepts and companions."""
        return len(self.concepts) + self.companions

    def resampled(self, subjects: Indices, random: np.random.Generator) -> Contrast:
        """The contrast on prompts drawn with replacement.

        Within each label, as many subjects as there are are drawn, each with all its prompts: prompts of one
        subject are not independent.

        Args:
            subjects: Number of the subject of each prompt (of all prompts).
            random: Draws.
        """
        rows, labels = [], []
        for label in np.unique(self.labels):
            own = self.rows[self.labels == label]
            _, number = np.unique(subjects[own], return_inverse=True)
            members = [own[number == subject] for subject in range(number.max() + 1)]
            drawn = random.integers(len(members), size=len(members))
            picked = np.concatenate([members[index] for index in drawn])
            rows.append(picked)
            labels.append(np.full(len(picked), label))
        return replace(self, rows=np.concatenate(rows), labels=np.concatenate(labels))

    def among(self, keep: NDArray[np.bool_], least: int = 1) -> Contrast:
        """The contrast on some of the prompts, without concepts left with too few.

        Args:
            keep: Whether each prompt (of all prompts) stays.
            least: Positives and negatives that a concept needs to stay.
        """
        kept = keep[self.rows]
        labels = self.labels[kept]
        counts = [int((labels == label).sum()) for label in range(len(self.concepts))]
        stay = [label for label, n in enumerate(counts) if min(n, len(labels) - n) >= least]
        others = [label for label in range(len(self.concepts), self.n_labels) if (labels == label).any()]
        # The last entry is that of label -1.
        renamed = np.full(self.n_labels + 1, -1)
        renamed[[*stay, *others]] = np.arange(len(stay) + len(others))
        concepts = tuple(self.concepts[label] for label in stay)
        return Contrast(concepts, self.rows[kept], renamed[labels], len(others))

    def positives(self, concept: int) -> Indices:
        """Prompts of a concept, given by its number."""
        found: Indices = self.rows[self.labels == self.concepts.index(concept)]
        return found

    def negatives(self, concept: int) -> Indices:
        """Prompts that are not of a concept, given by its number."""
        found: Indices = self.rows[self.labels != self.concepts.index(concept)]
        return found


def thinned(
    contrasts: Sequence[Contrast], like: Sequence[Contrast], concepts: Sequence[str], seed: int
) -> list[Contrast]:
    """Contrasts of prompts drawn at random, as many of each side as `like` has.

    What a change of prompts does to the scores can only be told from having fewer prompts beside these.

    Args:
        contrasts: Where the prompts are drawn from.
        like: Contrasts of the same concepts, with at most as many prompts of each side.
        concepts: Names of the concepts.
        seed: Of the draw.
    """
    whole = {number: contrast for contrast in contrasts for number in contrast.concepts}
    drawn = []
    for contrast in like:
        for number in contrast.concepts:
            random = seeded(seed, f"thinned:{concepts[number]}")
            sides = [
                random.choice(pool, min(len(own), len(pool)), replace=False)
                for pool, own in (
                    (whole[number].positives(number), contrast.positives(number)),
                    (whole[number].negatives(number), contrast.negatives(number)),
                )
            ]
            drawn.append(Contrast((number,), np.concatenate(sides), _labels(*map(len, sides))))
    return drawn


def negatives_of(
    concepts: Sequence[str], present: Iterable[str], negatives: Mapping[str, Sequence[str]] | None
) -> list[frozenset[str]]:
    """The concepts whose prompts are negatives of each concept; all others that have prompts by default.

    Raises:
        UserError: A concept is its own negative, or has none.
    """
    present = set(present)
    chosen = []
    for concept in concepts:
        others = present - {concept}
        if negatives is not None:
            if concept not in negatives:
                raise UserError(f"the option negatives does not name {concept}")
            named = set(negatives[concept])
            if concept in named:
                raise UserError(f"{concept} cannot be among its own negatives")
            others &= named
        if not others:
            raise UserError(
                f"{concept} has no negative prompts; score it together with other relations of its language"
            )
        chosen.append(frozenset(others))
    return chosen


def make_contrasts(
    prompts: Sequence[Prompt],
    concepts: Sequence[str],
    *,
    negatives: Mapping[str, Sequence[str]] | None = None,
    ratio: float | None = None,
    balance: str = "none",
    lengths: Sequence[int] | None = None,
    seed: int = 0,
    least: int = 1,
    told_apart: bool = False,
) -> list[Contrast]:
    """The contrasts that score `concepts`.

    Args:
        prompts: All prompts.
        concepts: What is scored.
        negatives: Concept → the concepts that its negatives come from; None for all others.
        ratio: Negatives drawn for each positive (4 in the relation-specific neurons paper); None for all.
        balance: "length": negatives are drawn so that their token counts are distributed as the positives';
            "answers": of each concept, prompts are drawn so that no answer is more frequent than the mean
            answer, rounded up; "both"; or "none".
        lengths: Token count of each prompt; needed to balance length.
        seed: Of what is drawn; each concept's draw depends on its name and not on the other concepts.
        least: Positives and negatives that a concept needs at least.
        told_apart: Whether negatives keep their concepts, as companions.

    Raises:
        UserError: Too few positives or negatives, an unknown balance, or drawn negatives to be told apart.
    """
    if balance not in BALANCES:
        raise UserError(f"balance is {balance!r}; choose one of {', '.join(BALANCES)}")
    if ratio is not None and not ratio > 0:
        raise UserError(f"negatives_per_positive is {ratio!r}; it must be positive")
    if told_apart and (ratio is not None or balance != "none"):
        raise UserError(
            "this method compares all concepts with one another: it takes no negatives_per_positive and no balance"
        )
    by_concept: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_concept.setdefault(prompt.concept, []).append(index)
    for concept in concepts:
        if concept not in by_concept:
            raise UserError(f"there are no prompts of {concept}; score it with other facts, or leave it out")
    others = negatives_of(concepts, by_concept, negatives)
    if ratio is None and balance == "none":
        contrasts = _shared(by_concept, concepts, others, told_apart)
    else:
        contrasts = []
        for number, concept in enumerate(concepts):
            random = seeded(seed, concept)
            positive = np.array(by_concept[concept])
            pools = {name: np.array(by_concept[name]) for name in sorted(others[number])}
            if balance in ("answers", "both"):
                positive = _capped(positive, prompts, random)
                pools = {name: _capped(pool, prompts, random) for name, pool in pools.items()}
            negative = np.concatenate(list(pools.values()))
            if balance in ("length", "both"):
                if lengths is None:
                    raise ValueError("balancing length needs the lengths")
                positive, negative = _matched(positive, negative, np.asarray(lengths), ratio, random)
            elif ratio is not None:
                wanted = min(len(negative), round(ratio * len(positive)))
                negative = np.sort(random.choice(negative, wanted, replace=False))
            contrasts.append(
                Contrast(
                    (number,), np.concatenate([positive, negative]), _labels(len(positive), len(negative))
                )
            )
    for contrast in contrasts:
        _check(contrast, concepts, least, balance)
    return contrasts


def seeded(seed: int, name: str) -> np.random.Generator:
    """A generator for one purpose: the same for the same seed and name, unrelated to all others."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def _shared(
    by_concept: Mapping[str, Sequence[int]],
    concepts: Sequence[str],
    others: Sequence[frozenset[str]],
    told_apart: bool,
) -> list[Contrast]:
    universes: dict[frozenset[str], list[int]] = {}
    for number, concept in enumerate(concepts):
        universes.setdefault(others[number] | {concept}, []).append(number)
    contrasts = []
    for universe, numbers in universes.items():
        label_of = {concepts[number]: label for label, number in enumerate(numbers)}
        companions = [name for name in by_concept if name in universe - label_of.keys()] if told_apart else []
        label_of |= {name: len(numbers) + index for index, name in enumerate(companions)}
        rows: list[int] = []
        labels: list[int] = []
        for name in by_concept:
            if name in universe:
                rows.extend(by_concept[name])
                labels.extend([label_of.get(name, -1)] * len(by_concept[name]))
        order = np.argsort(rows, kind="stable")
        contrasts.append(
            Contrast(tuple(numbers), np.array(rows)[order], np.array(labels)[order], len(companions))
        )
    return contrasts


def _labels(positives: int, negatives: int) -> Indices:
    return np.concatenate([np.zeros(positives, np.int64), np.full(negatives, -1)])


def _capped(rows: Indices, prompts: Sequence[Prompt], random: np.random.Generator) -> Indices:
    """Rows drawn so that no answer occurs more often than the mean answer, rounded up."""
    answers = [prompts[row].answer_id for row in rows]
    cap = -(-len(rows) // len(set(answers)))
    seen: Counter[str] = Counter()
    kept = []
    for position in random.permutation(len(rows)):
        if seen[answers[position]] < cap:
            seen[answers[position]] += 1
            kept.append(rows[position])
    return np.sort(np.array(kept))


def _matched(
    positive: Indices,
    negative: Indices,
    lengths: NDArray[np.int64],
    ratio: float | None,
    random: np.random.Generator,
) -> tuple[Indices, Indices]:
    """Positives and negatives whose lengths are distributed alike.

    Lengths that only one side has are left out. Where a length has fewer negatives than positives, positives
    are left out; then every length gets the same number of negatives a positive, as many as the scarcest
    length allows, at most `ratio`.
    """
    kept_positive, pools = [], []
    for length in np.intersect1d(lengths[positive], lengths[negative]):
        own, pool = positive[lengths[positive] == length], negative[lengths[negative] == length]
        kept_positive.append(random.permutation(own)[: len(pool)])
        pools.append(random.permutation(pool))
    if not pools:
        return positive[:0], negative[:0]
    # Fractions, since 15 / 11 · 11 is below 15 in floating point.
    share = min(Fraction(len(pool), len(own)) for own, pool in zip(kept_positive, pools, strict=True))
    share = share if ratio is None else min(share, Fraction(ratio))
    kept = [pool[: max(1, int(share * len(own)))] for own, pool in zip(kept_positive, pools, strict=True)]
    return np.sort(np.concatenate(kept_positive)), np.sort(np.concatenate(kept))


def _check(contrast: Contrast, concepts: Sequence[str], least: int, balance: str) -> None:
    for label, number in enumerate(contrast.concepts):
        positives = int((contrast.labels == label).sum())
        negatives = len(contrast.labels) - positives
        for count, side in ((positives, "positive"), (negatives, "negative")):
            if count < least:
                after = f" after balancing by {balance}" if balance != "none" else ""
                raise UserError(
                    f"{concepts[number]} has {count} {side} prompts{after}; at least {least} are needed: "
                    "use more facts, or another balance"
                )
