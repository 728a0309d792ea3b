"""Words that can stand where an answer should without being one, by language."""

from __future__ import annotations

# Languages whose words are not set apart by spaces.
WITHOUT_SPACES = frozenset({"zh", "ja"})


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARTICLES: dict[str, frozenset[str]] = {
    "en": _set("a an the"),
    "de": _set("der die das den dem des ein eine einen einem einer eines"),
    "fr": _set("le la les l un une des du de d"),
    "es": _set("el la los las lo un una unos unas"),
}

# Closed-class words: articles, demonstratives, pronouns, prepositions, conjunctions, forms of "be" and
# "have", negations. In Chinese and Japanese, beginnings of texts.
FILLERS: dict[str, frozenset[str]] = {
    "en": ARTICLES["en"]
    | _set(
        """this that these those one it its he she his her they their there which who what where
        of in on at to for from by with as and or but not also is are was were be been has
        have had so very"""
    ),
    "de": ARTICLES["de"]
    | _set(
        """dies diese dieser dieses diesem diesen es er sie sein seine ihr ihre wer was wo welche
        welcher welches von vom in im an am auf zu zum zur für aus bei mit nach und oder aber
        nicht kein keine auch ist sind war waren wird wurde hat haben so sehr als"""
    ),
    "fr": ARTICLES["fr"]
    | _set(
        """ce cet cette ces il elle ils elles on son sa ses leur qui que quoi où dont à au aux en
        dans sur par pour avec et ou mais ne pas aussi est sont était étaient été a ont si très
        comme c s n qu"""
    ),
    "es": ARTICLES["es"]
    | _set(
        """este esta estos estas ese esa eso esto él ella ellos su sus quien que qué dónde cual de
        del en a al por para con y e o u pero no también es son era eran fue ha han se muy como"""
    ),
    "zh": _set(
        """一个 一座 一种 一位 一名 这 那 其 它 他 她 是 在 的 了 也 不 和 与 由 被 位于 属于 来自 为 有"""
    ),
    "ja": _set(
        """その この あの それ これ ある 彼 は が の を に で と も から という です である では 一つ
        ひとつ"""
    ),
}
