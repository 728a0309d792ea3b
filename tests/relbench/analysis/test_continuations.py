"""What is said instead, in all languages."""

from __future__ import annotations

import pytest

from relbench.analysis.continuations import (
    ANSWER,
    CLASSES,
    FILLER,
    OBJECT,
    OTHER,
    REPETITION,
    Question,
    classify,
    flips,
    shares,
)
from relbench.analysis.pairing import pair
from tests.relbench.records import sample

EN = Question(
    "en",
    "The capital of the United Kingdom is",
    "the United Kingdom",
    ("London",),
    ("London", "Paris", "Mexico City", "The Hague", "Washington, D.C."),
)
DE = Question("de", "Die Hauptstadt des Landes Frankreich ist", "Frankreich", ("Paris",), ("Paris", "Rom"))
FR = Question("fr", "La capitale du pays nommé Japon est", "Japon", ("Tokyo",), ("Tokyo", "Le Caire", "Rome"))
ES = Question("es", "La capital de Perú es", "Perú", ("Lima",), ("Lima", "Bogotá", "La Habana"))
ZH = Question("zh", "法国的首都是：", "法国", ("巴黎",), ("巴黎", "伦敦", "罗马"))
JA = Question("ja", "フランスの首都は、", "フランス", ("パリ",), ("パリ", "ロンドン"))


@pytest.mark.parametrize(
    ("question", "said", "expected"),
    [
        (EN, " London, which", ANSWER),
        (EN, " LONDON.", ANSWER),
        (EN, " Londonderry", OTHER),
        (EN, " Paris.\nThe capital", OBJECT),
        (EN, " Mexico City", OBJECT),
        (EN, " Hague", OTHER),
        (EN, " the Hague", OBJECT),
        (EN, " Washington D.C", OBJECT),
        (EN, " the Paris of the north", OBJECT),
        (EN, " the United Kingdom", REPETITION),
        (EN, " United Kingdom of Great", REPETITION),
        (EN, " the capital of the", REPETITION),
        (EN, " capital of", REPETITION),
        (EN, " Kingdom", REPETITION),
        (EN, " a city in the north", FILLER),
        (EN, " the largest city", FILLER),
        (EN, " located in", OTHER),
        (EN, "", FILLER),
        (EN, "\n\n", FILLER),
        (EN, " ...", FILLER),
        (EN, ", and so on", FILLER),
        (EN, ' "Paris"', OBJECT),
        (EN, " Manchester", OTHER),
        (DE, " Rom", OBJECT),
        (DE, " eine Stadt", FILLER),
        (DE, " Frankreich", REPETITION),
        (DE, " die Hauptstadt des Landes", REPETITION),
        (DE, " Lyon", OTHER),
        (FR, " le Caire", OBJECT),
        (FR, " l’une des", FILLER),
        (FR, " Japon", REPETITION),
        (FR, " Kyoto", OTHER),
        (ES, " Bogota", OTHER),
        (ES, " Bogota\u0301", OBJECT),
        (ES, " la ciudad de", FILLER),
        (ES, " La Habana", OBJECT),
        (ZH, "伦敦。", OBJECT),
        (ZH, "巴黎", ANSWER),
        (ZH, "法国的首都", REPETITION),
        (ZH, "首都在", REPETITION),
        (ZH, "一个城市", FILLER),
        (ZH, "马赛", OTHER),
        (JA, "ロンドン", OBJECT),
        (JA, "フランスの", REPETITION),
        (JA, "その国の", FILLER),
        (JA, "リヨン", OTHER),
    ],
)
def test_classes(question: Question, said: str, expected: str) -> None:
    assert classify(said, question) == expected


def test_flipped_facts_carry_both_sides() -> None:
    key = ("country_capital.0", "en", "completion")
    before = [
        sample(0, 1, continuation=" London"),
        sample(1, 0),
        sample(2, 1),
        sample(3, 1, continuation=" x"),
    ]
    after = [sample(0, 0, continuation=" Paris"), sample(1, 0), sample(2, 0), sample(3, 0, continuation=" y")]
    (flip,) = flips(pair(before, after), {key: EN})
    assert (flip.lost, flip.was, flip.became) == (True, ANSWER, OBJECT)
    assert (flip.before.continuation, flip.after.continuation) == (" London", " Paris")


def test_shares_are_of_all_flipped_facts() -> None:
    found = shares([OBJECT, OBJECT, FILLER, OTHER])
    assert list(found) == list(CLASSES)
    assert found == {ANSWER: 0, OBJECT: 0.5, REPETITION: 0, FILLER: 0.25, OTHER: 0.25}
    assert shares([]) == {}
