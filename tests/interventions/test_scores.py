"""Scores: what they refuse, and how rows and reference statistics are read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from interventions.errors import UserError
from interventions.scores import Scores
from interventions.units import Site
from tests.interventions.making import model_id, random_scores

SITE = Site(0, "act")


def scores(values: np.ndarray, **fields: object) -> Scores:
    return Scores({SITE: values}, ("a", "b"), model_id(), "test", **fields)  # type: ignore[arg-type]


def test_rows_and_references_are_found_by_concept() -> None:
    known = random_scores()
    assert np.array_equal(known.row("b@en")[SITE], known.values[SITE][1])
    assert np.array_equal(known.reference("mean", "b@en")[SITE], known.references["mean"][SITE][1])
    assert np.array_equal(known.reference("norm", "b@en")[SITE], known.references["norm"][SITE])
    assert known.reference("samples", "a@en")[SITE].shape == (5, 48)
    with pytest.raises(UserError, match="no scores for concept 'c'; the file has a@en, b@en"):
        known.row("c")
    with pytest.raises(UserError, match="no reference 'median'"):
        known.reference("median", "a@en")


def test_nan_wrong_shapes_and_duplicate_concepts_are_refused() -> None:
    good = np.zeros((2, 48), np.float32)
    bad = good.copy()
    bad[0, 3] = np.nan
    for values, message in (
        (bad, "NaN"),
        (good[:1], "not \\[2 concepts"),
        (good[:, :-1], "48 units, not 47"),
        (good[0], "are \\[48\\]"),
    ):
        with pytest.raises(UserError, match=message):
            scores(values)
    with pytest.raises(UserError, match="twice"):
        replace(scores(good), concepts=("a", "a"))
    with pytest.raises(UserError, match="no layer 7"):
        Scores({Site(7, "act"): good}, ("a", "b"), model_id(), "test")


def test_an_infinity_is_a_score() -> None:
    values = np.full((2, 48), -np.inf, np.float32)
    assert scores(values).row("a")[SITE][0] == -np.inf


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("Mean", (48,), "bad reference name"),
        ("mean", (47,), "48 units, not 47"),
        ("mean", (3, 48), "has shape"),
        ("mean", (2, 2, 48), "has shape"),
        ("samples", (48,), "has shape"),
    ],
)
def test_bad_references_are_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        scores(np.zeros((2, 48), np.float32), references={name: {SITE: np.zeros(shape, np.float32)}})


def test_the_digest_follows_the_content_not_the_name() -> None:
    known = random_scores()
    renamed = replace(known, model=model_id(name="elsewhere"))
    assert renamed.digest == known.digest
    assert replace(known, seed=5).digest != known.digest
    assert random_scores(seed=1).digest != known.digest
