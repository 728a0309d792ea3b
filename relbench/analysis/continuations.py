"""What the model says instead of the answer: greedy continuations in classes."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from relbench.analysis.pairing import Pair
from relbench.analysis.words import ARTICLES, FILLERS, WITHOUT_SPACES
from relbench.samples import Sample

ANSWER, OBJECT, REPETITION, FILLER, OTHER = (
    "accepted answer",
    "another object",
    "prompt repetition",
    "article or filler",
    "other",
)
CLASSES = {
    ANSWER: "begins with an accepted answer",
    OBJECT: "begins with another object of the relation, an article before it or not",
    REPETITION: "begins with the subject or with words that follow each other in the prompt",
    FILLER: "begins with an article, another function word or punctuation, or says nothing",
    OTHER: "anything else",
}


@dataclass(frozen=True)
class Question:
    """What a continuation is read against.

    Attributes:
        language: Language code.
        prompt: The question without its few-shot examples.
        subject: The subject's label in it.
        accepted: Accepted answers.
        objects: Labels of all objects of the relation, the accepted ones among them or not.
    """

    language: str
    prompt: str
    subject: str
    accepted: tuple[str, ...]
    objects: tuple[str, ...]


def classify(continuation: str, question: Question) -> str:
    """The class of a greedy continuation, one of `CLASSES`, decided by how its first line begins.

    Case, accents' encoding, width and punctuation do not matter. A word may not go on after an answer or
    object in languages with spaces; in Chinese and Japanese it may.
    """
    language = question.language
    first = continuation.strip().partition("\n")[0]
    said = _parts(first, language)
    bare = _without_articles(said, language)
    if any(_begins(form, _parts(answer, language)) for answer in question.accepted for form in (said, bare)):
        return ANSWER
    if _begins(said, _parts(question.subject, language)) or _begins(
        bare, _without_articles(_parts(question.subject, language), language)
    ):
        return REPETITION
    if _begins_with_any(said, question.objects, language) or _begins_with_any(
        bare, question.objects, language
    ):
        return OBJECT
    if not said or _is_filler(first, said, language):
        return REPETITION if _follows_prompt(said, question, least=3) else FILLER
    return REPETITION if _follows_prompt(said, question, least=2) else OTHER


@lru_cache(maxsize=2**16)
def _parts(text: str, language: str) -> tuple[str, ...]:
    """Words, or characters where words are not set apart, without case and punctuation."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    if language in WITHOUT_SPACES:
        return tuple(character for character in plain if character.isalnum())
    return tuple("".join(c if c.isalnum() else " " for c in plain).split())


def _begins(said: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return bool(wanted) and said[: len(wanted)] == wanted


def _begins_with_any(said: tuple[str, ...], names: tuple[str, ...], language: str) -> bool:
    wanted = _all_parts(names, language)
    return any(said[:length] in wanted for length in range(1, len(said) + 1))


@lru_cache(maxsize=256)
def _all_parts(names: tuple[str, ...], language: str) -> frozenset[tuple[str, ...]]:
    return frozenset(_parts(name, language) for name in names)


def _without_articles(said: tuple[str, ...], language: str) -> tuple[str, ...]:
    articles = ARTICLES.get(language, frozenset())
    start = next((i for i, word in enumerate(said) if word not in articles), len(said))
    return said[start:]


def _is_filler(first: str, said: tuple[str, ...], language: str) -> bool:
    if language in WITHOUT_SPACES:
        return "".join(said).startswith(tuple(FILLERS[language]))
    # Punctuation before the first word is a filler too, but not a quotation mark or bracket around it.
    return said[0] in FILLERS.get(language, ()) or first[0] in ".,;:!?…-–—"


def _follows_prompt(said: tuple[str, ...], question: Question, *, least: int) -> bool:
    """Whether the first `least` parts stand in the prompt in that order."""
    prompt = _parts(question.prompt, question.language)
    start = said[:least]
    if len(start) < least:
        # A single word that the continuation ends after.
        return least == 2 and bool(start) and start[0] in prompt
    return any(prompt[i : i + least] == start for i in range(len(prompt) - least + 1))


@dataclass(frozen=True)
class Flip:
    """A fact whose recall changed, with both greedy continuations.

    Attributes:
        before, after: The samples.
        was, became: Classes of their continuations.
    """

    before: Sample
    after: Sample
    was: str
    became: str

    @property
    def lost(self) -> bool:
        """Whether the fact was right at baseline."""
        return bool(self.before.recall)


def flips(pairs: Sequence[Pair[Sample]], questions: Mapping[tuple[str, str, str], Question]) -> list[Flip]:
    """The flipped facts among pairs whose samples carry their continuations.

    Args:
        pairs: Paired samples.
        questions: (fact id, language, template) → the question; facts without one are left out.
    """
    found = []
    for before, after in pairs:
        question = questions.get((before.fact_id, before.language, before.template))
        if before.recall == after.recall or question is None:
            continue
        if before.continuation is None or after.continuation is None:
            continue
        was, became = (
            ANSWER if sample.recall else classify(sample.continuation or "", question)
            for sample in (before, after)
        )
        found.append(Flip(before, after, was, became))
    return found


def shares(classes: Sequence[str]) -> dict[str, float]:
    """Share of each of `CLASSES`, in their order."""
    counts = Counter(classes)
    return {name: counts[name] / len(classes) for name in CLASSES} if classes else {}
