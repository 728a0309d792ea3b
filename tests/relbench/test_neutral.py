"""The neutral text that comes with the package: enough of it, and about nothing that a relation is about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from relbench.languages import LANGUAGES
from relbench.perplexity import FOLDER, NEUTRAL, documents, neutral_documents
from relbench.relations import load_facts, load_relation, relation_names
from relbench.sweep_config import SweepConfig

# Types whose labels are names. Those of the others are also words of daily life: tin, coffee, forward, two.
NAMES = {
    "book",
    "city",
    "company",
    "constellation",
    "continent",
    "country",
    "event",
    "landmark",
    "language",
    "painting",
    "person",
    "product",
    "star",
}
# Of these, what needs a remark, such as "We (novel)", is a word of daily life without it.
TITLES = {"book", "product"}
ARTICLES = re.compile(r"(?:the|der|die|das|le|la|les|el|los|las) |l['’]")
REMARK = re.compile(r" ?[(\uff08].*[)\uff09]$")
KATAKANA = "ァ-ヺー"
# Words that English writes with a capital although they name nobody.
CAPITALS = {"I", "Sunday", "Tuesday"}
MIN_TOKENS = 2000
languages = pytest.mark.parametrize("language", LANGUAGES)


def _texts(language: str) -> list[str]:
    return [document.text for document in neutral_documents(language)]


def _bare(label: str) -> str:
    """A label as it occurs in running text: without its article and the remark that tells it from others."""
    return ARTICLES.sub("", REMARK.sub("", label), count=1) if label else ""


def _occurs(label: str, text: str, language: str) -> bool:
    """Whether a label stands in a text as a word of its own, as far as the script shows words."""
    if not label or label not in text:
        return False
    if language == "zh":
        return True
    # Japanese shows the ends of words in katakana alone.
    inner = KATAKANA if language == "ja" else r"\w"
    before = rf"(?<![{inner}])" if re.match(rf"[{inner}]", label) else ""
    after = rf"(?![{inner}])" if re.match(rf"[{inner}]", label[-1]) else ""
    return re.search(before + re.escape(label) + after, text) is not None


@lru_cache
def _names(language: str) -> frozenset[str]:
    labels: set[str] = set()
    for name in relation_names():
        relation = load_relation(name)
        for fact in load_facts(name):
            subject = fact.subject.get(language, "")
            if relation.domain in NAMES and not (relation.domain in TITLES and REMARK.search(subject)):
                labels.add(subject)
            if relation.range in NAMES:
                labels.update(fact.accepted(language))
    return frozenset(map(_bare, labels - {""}))


def _names_in(text: str, language: str) -> set[str]:
    return {name for name in _names(language) if _occurs(name, text, language)}


def _facts_in(texts: list[str], language: str) -> set[tuple[str, str]]:
    """(fact, answer) of every fact, names or not, whose subject and answer stand in one document.

    Answers are accepted in several spellings, so their case counts: French `au` is not gold.
    """
    found = set()
    for name in relation_names():
        for fact in load_facts(name):
            subject = _bare(fact.subject.get(language, "")).lower()
            for text in (text for text in texts if _occurs(subject, text.lower(), language)):
                for answer in fact.accepted(language):
                    if _occurs(_bare(answer), text, language):
                        found.add((fact.id, answer))
    return found


def _capitals_within_sentences(text: str) -> Iterator[str]:
    for match in re.finditer(r"\b[A-ZÀ-ÖØ-Þ]\w*", text):
        line = text[: match.start()].rpartition("\n")[2]
        if line and not re.search(r"(?:[.?!…] ?[\"»]?|^—) ?[\"«¿¡—]*$|[\"«] ?[¿¡]?$|[¿¡]$", line.rstrip(" ")):
            yield match.group()


@languages
def test_every_language_has_enough_documents_that_differ(language: str) -> None:
    texts = _texts(language)
    assert 20 <= len(texts) <= 30
    sentences = [
        s.strip()
        for text in texts
        for s in re.split(r"[.?!\u3002\uff1f\uff01\n]", text)
        if len(s.strip()) > 12
    ]
    assert len(set(sentences)) == len(sentences)


def test_there_are_no_other_files() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{language}.txt" for language in LANGUAGES}


@languages
def test_no_subject_or_answer_that_is_a_name(language: str) -> None:
    assert len(_names(language)) > 3000
    assert _names_in("\n".join(_texts(language)), language) == set()


@languages
def test_no_fact(language: str) -> None:
    assert _facts_in(_texts(language), language) == set()


@pytest.mark.parametrize(
    ("language", "text", "names"),
    [
        ("en", "In Berlin the United Kingdom sold berliners.", {"Berlin", "United Kingdom"}),
        ("de", "Die Reifen kamen aus dem Iran, nicht aus Iranien.", {"Iran"}),
        ("fr", "Il habitait l'Italie, près d'un italien.", {"Italie", "italien"}),
        ("es", "Volvió a la India.", {"India"}),
        ("zh", "他从挪威回来。", {"挪威"}),
        ("ja", "タイヤを替えてからタイへ行った。", {"タイ"}),
    ],
)
def test_names_would_be_found(language: str, text: str, names: set[str]) -> None:
    assert _names_in(text, language) == names


@pytest.mark.parametrize(
    ("language", "text", "fact"),
    [
        ("en", "Along the road lay coal, quite black.", ("thing_color.coal", "black")),
        ("de", "Kohle ist eben schwarz.", ("thing_color.coal", "schwarz")),
        ("zh", "地上的煤炭是黑色的。", ("thing_color.coal", "黑色")),
    ],
)
def test_facts_would_be_found(language: str, text: str, fact: tuple[str, str]) -> None:
    assert fact in _facts_in([text], language)
    assert fact not in _facts_in([text.replace(fact[1], "…"), fact[1]], language)


@pytest.mark.parametrize("language", ["en", "fr", "es"])
def test_nothing_is_called_by_a_name(language: str) -> None:
    """These languages write names with a capital, and little else within a sentence."""
    found = {word for text in _texts(language) for word in _capitals_within_sentences(text)}
    assert found - CAPITALS == set()


def test_capitals_within_sentences() -> None:
    text = (
        'He met Ann. "Bob?" she said. "Not Carl, Sir."\n—¿Usted va con Diego? ¡No!\n« Oui », dit Élise. Puis'
    )
    assert list(_capitals_within_sentences(text)) == ["Ann", "Carl", "Sir", "Diego", "Élise"]


@pytest.mark.parametrize("language", ["zh", "ja"])
def test_east_asian_text_has_punctuation_of_its_own(language: str) -> None:
    assert re.findall(r"[ -~]", "".join(_texts(language))) == []


def test_a_sweep_reads_them() -> None:
    raw = {
        "model": "smollm2-135m",
        "relations": ["country_capital"],
        "languages": list(LANGUAGES),
        "methods": ["mean-difference"],
        "ks": [5],
    }
    read = documents(SweepConfig.from_dict({**raw, "perplexity": "neutral"}, "test"))
    for language in LANGUAGES:
        texts = [d.text for d in read if d.kind == NEUTRAL and d.language == language]
        assert texts == _texts(language)
    assert documents(SweepConfig.from_dict({**raw, "perplexity": None}, "test")) == []


@pytest.mark.model
@pytest.mark.parametrize("model", ["embedded_model_path", "multilingual_model_path"])
def test_enough_tokens_in_documents_of_about_the_same_size(
    model: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    for language in LANGUAGES:
        sizes = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in _texts(language)]
        assert sum(sizes) >= MIN_TOKENS, language
        assert max(sizes) <= 2 * min(sizes), language
