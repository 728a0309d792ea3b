"""Probes: a fact put through a template in one language, with its accepted answers.

A probe is the same text wherever it is used: as an lm-eval document, as a few-shot example and as a
prompt from which units are scored.
"""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache

from interventions.errors import UserError
from relbench.languages import LANGUAGES
from relbench.relations import SPLITS, Fact, Relation, load_facts, load_relation

DEFAULT_TEMPLATE = "completion"
DEFAULT_SHOTS = 5
FEWSHOT_DELIMITER = "\n"
# From this share of matching letters on, a pair of words counts as a copy (France/French has .67).
COPY_SIMILARITY = 0.6


@dataclass(frozen=True)
class Probe:
    """One question to a model.

    Attributes:
        fact_id, subject_id, relation, language: What is asked.
        subject: The subject's label.
        prompt: Ends right before the answer.
        accepted: Accepted answers without the delimiter; the canonical one first.
        answer_id: Identity of the canonical answer.
        answer_seen: Whether a right answer also answers some `detect` fact of the relation.
        copyable: Whether an accepted answer can be read off the subject.
    """

    fact_id: str
    subject_id: str
    relation: str
    language: str
    subject: str
    prompt: str
    accepted: tuple[str, ...]
    answer_id: str
    answer_seen: bool
    copyable: bool

    @property
    def answer(self) -> str:
        """The canonical answer."""
        return self.accepted[0]

    @property
    def delimiter(self) -> str:
        """What stands between prompt and answer."""
        return LANGUAGES[self.language].delimiter

    @property
    def subject_span(self) -> tuple[int, int] | None:
        """Character span of the subject in the prompt."""
        start = self.prompt.find(self.subject)
        return None if start < 0 else (start, start + len(self.subject))


def probes(
    relation: str, language: str, split: str, template: str = DEFAULT_TEMPLATE, *, shots_seed: int = 0
) -> tuple[Probe, ...]:
    """All probes of a relation in one language and split.

    Facts keep the order of their file, except `shots`, which are shuffled by `shots_seed`, so that
    the first n of them are the n few-shot examples of every document, process and run.

    Raises:
        UserError: Unknown relation, language, template or split, or no facts in it.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; splits are {', '.join(SPLITS)}")
    if language not in LANGUAGES:
        raise UserError(f"unknown language {language!r}; languages are {', '.join(LANGUAGES)}")
    described = load_relation(relation)
    text = described.template(language, template)
    facts = [fact for fact in load_facts(relation) if fact.has_language(language)]
    chosen = [fact for fact in facts if fact.split == split]
    if not chosen:
        raise UserError(
            f"{relation} has no {split} facts in {language!r}; "
            f"assign splits with `relbench tasks split` or choose another language"
        )
    seen = {object_.id for fact in facts if fact.split == "detect" for object_ in fact.objects}
    if split == "shots":
        chosen.sort(key=lambda fact: fact.id)
        random.Random(f"shots:{shots_seed}").shuffle(chosen)
    return tuple(_probe(fact, described, language, text, seen) for fact in chosen)


def _probe(fact: Fact, relation: Relation, language: str, template: str, seen: set[str]) -> Probe:
    accepted = fact.accepted(language)
    subject = fact.subject[language]
    return Probe(
        fact_id=fact.id,
        subject_id=fact.subject_id,
        relation=relation.name,
        language=language,
        subject=subject,
        prompt=template.replace("{subject}", subject),
        accepted=accepted,
        answer_id=fact.answer_id,
        answer_seen=any(object_.id in seen for object_ in fact.objects),
        copyable=is_copyable(subject, accepted),
    )


def is_copyable(subject: str, answers: Sequence[str]) -> bool:
    """Whether an answer can be read off `subject` without knowing the fact.

    A word is a copy when a word of the subject equals it, shares its first four letters, or matches it
    in at least `COPY_SIMILARITY` of the letters (words of four letters and more); in Chinese and Japanese
    characters are copies when they stand in the subject two in a row, or first in both.

    Args:
        subject: Label of the subject.
        answers: Accepted answers, the canonical one first.

    Returns:
        True when copies make up half of the canonical answer's letters, or all of another accepted one's
        ("Canadian dollar" is an accepted answer for Canada, but "dollar" has to be known).
    """
    shares = [_copied_share(_normal(subject), _normal(answer)) for answer in answers]
    return shares[0] >= 0.5 or any(share == 1 for share in shares[1:])


# The same facts are asked in many templates and by many methods.
@cache
def _copied_share(subject: str, answer: str) -> float:
    """Share of the answer's letters that are copies, words of one or two letters aside."""
    if any(_is_cjk(character) for character in subject + answer):
        if len(answer) == 1:
            return float(answer in subject)
        pairs = [answer[i : i + 2] in subject for i in range(len(answer) - 1)]
        # One shared pair or the shared first character (德国, 德语) is half a copy.
        return max(sum(pairs) / len(pairs), 0.5 * (any(pairs) or answer[0] == subject[0]))
    words = [word for word in _words(answer) if len(word) > 2]
    letters = sum(map(len, words))
    copied = sum(len(word) for word in words if any(_copies(own, word) for own in _words(subject)))
    return copied / letters if letters else 0.0


def _copies(own: str, other: str) -> bool:
    if own == other:
        return True
    if min(len(own), len(other)) < 4:
        return False
    return own[:4] == other[:4] or SequenceMatcher(None, own, other).ratio() >= COPY_SIMILARITY


@cache
def _normal(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in text).split()


def _is_cjk(character: str) -> bool:
    return "\u3040" <= character <= "\u30ff" or "\u4e00" <= character <= "\u9fff"


def fewshot_prefix(shots: Sequence[Probe]) -> str:
    """The few-shot examples as they stand before every prompt, as lm-eval joins them."""
    return "".join(f"{shot.prompt}{shot.delimiter}{shot.answer}{FEWSHOT_DELIMITER}" for shot in shots)


def majority(relation: str, language: str, split: str = "eval") -> float:
    """Share of the most common canonical answer: what always giving one answer would recall."""
    answers = Counter(probe.answer_id for probe in probes(relation, language, split))
    return max(answers.values()) / sum(answers.values())
