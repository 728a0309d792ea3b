"""Perplexity paired by document."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from interventions.errors import UserError
from relbench.analysis.perplexity import NEUTRAL, OTHERS, OWN, Document, harms, perplexity_ratio
from relbench.treatments import RANDOM
from tests.relbench.analysis.synthetic import mask


def test_by_hand() -> None:
    """Two documents of 2 and 6 tokens, −1 a token before; −2 and −1.5 a token after."""
    found = perplexity_ratio({"a": 2, "b": 6}, {"a": -2, "b": -6}, [{"a": -4, "b": -9}])
    assert (found.documents, found.tokens) == (2, 8)
    assert found.before == pytest.approx(exp(1))
    assert found.after == pytest.approx(exp(13 / 8))
    assert found.ratio == pytest.approx(exp(5 / 8))
    assert perplexity_ratio({"a": 2}, {"a": -2}, [{"a": -4}]).interval is None


def test_seeds_are_averaged_and_need_ten() -> None:
    found = perplexity_ratio({"a": 1, "b": 1}, {"a": -1, "b": -1}, [{"a": -1, "b": -1}, {"a": -3, "b": -3}])
    assert found.ratio == pytest.approx(exp(1))
    assert found.interval is None


def test_documents_must_be_the_same() -> None:
    with pytest.raises(ValueError, match="same documents"):
        perplexity_ratio({"a": 1}, {"b": -1.0}, [{"a": -1.0}])
    with pytest.raises(ValueError, match="same documents"):
        perplexity_ratio({}, {}, [{}])


@pytest.mark.parametrize("seeds", [1, 10])
def test_intervals_cover(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    covered, runs, documents, truth = 0, 400, 30, 0.2
    for number in range(runs):
        tokens = generator.integers(40, 100, documents)
        names = [str(i) for i in range(documents)]
        # Documents differ in how much they lose a token, and seeds in how much they harm.
        rise = (
            truth + generator.normal(0, 0.2, documents) + generator.normal(0, 0.1, (seeds, 1)) * (seeds > 1)
        )
        before = -3.0 * tokens
        found = perplexity_ratio(
            dict(zip(names, tokens.tolist(), strict=True)),
            dict(zip(names, before.tolist(), strict=True)),
            [dict(zip(names, (before - tokens * row).tolist(), strict=True)) for row in rise],
            seed=number % 3,
        ).interval
        assert found is not None
        covered += log(found.low) <= truth <= log(found.high)
    assert covered / runs >= 0.93


def _documents(treatment: str, logprob: float) -> list[Document]:
    return [
        Document(treatment, "neutral.en.000", "en", None, 4, 4 * logprob),
        Document(treatment, "neutral.en.001", "en", None, 4, 4 * logprob),
        Document(treatment, "relation.en.a.0", "en", "a", 4, 4 * (logprob - 1)),
        Document(treatment, "relation.en.b.0", "en", "b", 4, 4 * (logprob - 2)),
    ]


def test_neutral_text_and_sentences_of_relations_are_apart() -> None:
    one, control = mask("m", "a@en", 10), mask(RANDOM, None, 10, seed=0)
    documents = [
        d for name, p in (("baseline", -1), (one.id, -3), (control.id, -2)) for d in _documents(name, p)
    ]
    found = {harm.text: harm for harm in harms([one, control], documents)}
    assert found.keys() == {NEUTRAL, OWN, OTHERS}
    assert [found[text].mask.before for text in (NEUTRAL, OWN, OTHERS)] == pytest.approx(
        [exp(1), exp(2), exp(3)]
    )
    neutral = found[NEUTRAL]
    assert neutral.mask.ratio == pytest.approx(exp(2))
    assert neutral.control is not None and neutral.control.ratio == pytest.approx(exp(1))
    assert (neutral.seeds, neutral.mask.documents) == (1, 2)
    assert harms([one, control], []) == []


def test_a_document_that_does_not_pair_is_named() -> None:
    one = mask("m", "a@en", 10)
    documents = [*_documents("baseline", -1), *_documents(one.id, -1)[1:]]
    with pytest.raises(UserError, match=r"neutral\.en\.000 does not pair"):
        harms([one], documents)
