"""Masks: selection against a plain sort, set algebra against Python sets, controls by their counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interventions.errors import UserError
from interventions.masks import (
    Mask,
    band,
    budget,
    complement,
    contribution,
    difference,
    intersection,
    jaccard,
    overlap,
    per_layer_top_k,
    random_from_histogram,
    random_like,
    threshold,
    top_k,
    union,
)
from interventions.scores import Scores
from interventions.units import KINDS, Site, layout_of
from tests.interventions.making import model_id, random_mask, random_scores, small_layout
from tests.tiny import tiny_model

KIND_SET = ("gate", "up", "down")


def as_set(mask: Mask) -> set[tuple[int, str, int]]:
    return {(site.layer, site.kind, int(unit)) for site, units in mask.units.items() for unit in units}


def ranked(scores: Scores, concept: str, key: Any = lambda value: -value) -> list[tuple[int, str, int]]:
    """All units, best first by a plain stable sort: ties by layer, kind and index."""
    units = [
        (key(float(value)), site.layer, KINDS.index(site.kind), index)
        for site, row in scores.row(concept).items()
        for index, value in enumerate(row)
    ]
    return [(layer, KINDS[kind], index) for _, layer, kind, index in sorted(units)]


# ---------------------------------------------------------------------------------------------- selection


@pytest.mark.parametrize("levels", [None, 8])
@pytest.mark.parametrize("k", [0, 1, 37, 3 * (48 + 48 + 32)])
def test_top_k_is_the_head_of_a_sort(levels: int | None, k: int) -> None:
    scores = random_scores(KIND_SET, levels=levels)
    for side, key in (("top", lambda v: -v), ("bottom", lambda v: v), ("absolute", lambda v: -abs(v))):
        mask = top_k(scores, "a@en", k, side=side)
        assert len(mask) == k and as_set(mask) == set(ranked(scores, "a@en", key)[:k])


def test_both_sides_share_k_and_never_a_unit() -> None:
    for scores in (random_scores(levels=4), random_scores()):
        mask = top_k(scores, "a@en", 21, side="both")
        assert len(mask) == 21
        order = ranked(scores, "a@en")
        assert set(order[:11]) <= as_set(mask)
    assert len(top_k(scores, "a@en", 144, side="both")) == 144


def test_ties_at_rank_k_are_counted() -> None:
    site = Site(0, "act")
    values = np.zeros((1, 48), np.float32)
    values[0, :3] = 1
    scores = Scores({site: values}, ("a",), model_id(), "test")
    assert top_k(scores, "a", 10).provenance["ties"] == 45
    assert top_k(scores, "a", 2).provenance["ties"] == 3
    assert top_k(scores, "a", 10).units[site].tolist() == list(range(10))


def test_threshold_per_layer_and_band() -> None:
    scores = random_scores(KIND_SET)
    rows = scores.row("a@en")
    wanted = {(s.layer, s.kind, i) for s, row in rows.items() for i in np.flatnonzero(row >= 0.5).tolist()}
    assert as_set(threshold(scores, "a@en", 0.5)) == wanted
    below = {(s.layer, s.kind, i) for s, row in rows.items() for i in np.flatnonzero(row <= -1).tolist()}
    assert as_set(threshold(scores, "a@en", -1, side="bottom")) == below
    layered = per_layer_top_k(scores, "a@en", 5)
    assert layered.layers().tolist() == [5, 5, 5]
    order = ranked(scores, "a@en")
    for layer in range(3):
        assert {u for u in as_set(layered) if u[0] == layer} == set([u for u in order if u[0] == layer][:5])
    assert as_set(band(scores, "a@en", 10, 30)) == set(order[10:30])
    assert len(band(scores, "a@en", 10, 10)) == 0


def test_kinds_restrict_the_choice() -> None:
    scores = random_scores(KIND_SET)
    assert top_k(scores, "a@en", 7, kinds=["down"]).kinds() == {"down": 7}
    with pytest.raises(UserError, match="no 'attn' units; they have gate, up, down"):
        top_k(scores, "a@en", 7, kinds=["attn"])


def test_wrong_choices_are_named() -> None:
    scores = random_scores()
    for call, message in (
        (lambda: top_k(scores, "a@en", 145), "k = 145 is more than the 144 units"),
        (lambda: top_k(scores, "a@en", -1), "must not be negative"),
        (lambda: top_k(scores, "c@en", 1), "no scores for concept 'c@en'"),
        (lambda: top_k(scores, "a@en", 1, side="up"), "unknown side 'up'"),  # type: ignore[arg-type]
        (lambda: per_layer_top_k(scores, "a@en", 49), "k for layer 0 = 49 is more than the 48"),
        (lambda: band(scores, "a@en", 9, 3), "is empty"),
        (lambda: threshold(scores, "a@en", float("nan")), "must be a number"),
        (lambda: threshold(scores, "a@en", 0, side="both"), "one side"),
        (lambda: budget(small_layout(), 1.5), "between 0 and 1"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_a_budget_is_a_fraction_of_distinct_ffn_neurons() -> None:
    assert budget(small_layout(), 0.1) == 14 and budget(small_layout(), 0) == 0
    assert budget(small_layout(), 1e-9) == 1


def test_reference_statistics_travel_with_their_units() -> None:
    scores = random_scores()
    mask = top_k(scores, "b@en", 20)
    for site, units in mask.units.items():
        assert np.array_equal(mask.references["mean"][site], scores.references["mean"][site][1, units])
        assert np.array_equal(mask.references["samples"][site], scores.references["samples"][site][:, units])


# -------------------------------------------------------------------------------------------- set algebra


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(first=st.integers(0, 10_000), second=st.integers(0, 10_000), k=st.integers(0, 100))
def test_algebra_agrees_with_python_sets(first: int, second: int, k: int) -> None:
    a = top_k(random_scores(KIND_SET, seed=first), "a@en", k)
    b = top_k(random_scores(KIND_SET, seed=second), "a@en", 60)
    sa, sb = as_set(a), as_set(b)
    assert as_set(union(a, b)) == sa | sb
    assert as_set(intersection(a, b)) == sa & sb
    assert as_set(difference(a, b)) == sa - sb
    assert overlap(a, b) == len(sa & sb)
    assert jaccard(a, b) == pytest.approx(len(sa & sb) / len(sa | sb))
    assert as_set(union(a, b, a)) == sa | sb and as_set(difference(b, a, a)) == sb - sa
    everything = as_set(union(b, complement(b, kinds=KIND_SET)))
    assert len(everything) == small_layout().count(KIND_SET)
    assert overlap(b, complement(b, kinds=KIND_SET)) == 0


def test_complement_is_taken_in_the_masks_kinds() -> None:
    mask = top_k(random_scores(("act",)), "a@en", 10)
    kept = complement(mask)
    assert kept.kinds() == {"act": 134}
    assert len(complement(mask, kinds=("act", "attn"))) == 134 + 3 * 32
    assert as_set(complement(kept)) == as_set(mask)
    empty = top_k(random_scores(), "a@en", 0)
    with pytest.raises(UserError, match="empty mask needs the unit kinds"):
        complement(empty)
    assert len(complement(empty, kinds=("act",))) == 144
    assert jaccard(empty, empty) == 1.0


def test_references_survive_set_algebra() -> None:
    scores = random_scores()
    a, b = top_k(scores, "a@en", 30), top_k(scores, "a@en", 60, side="bottom")
    for made in (union(a, b), intersection(union(a, b), a), difference(b, a)):
        for site, units in made.units.items():
            assert np.array_equal(made.references["mean"][site], scores.references["mean"][site][0, units])
            assert np.array_equal(
                made.references["samples"][site], scores.references["samples"][site][:, units]
            )
    bare = Mask(b.units, b.model)
    assert union(a, bare).references == {}
    assert "mean" in union(a, Mask({}, a.model)).references


def test_provenance_survives_every_operation() -> None:
    scores = random_scores()
    a, b = top_k(scores, "a@en", 30), top_k(scores, "b@en", 30)
    assert a.provenance["scores"] == scores.digest and a.provenance["method"] == "random"
    for made in (union(a, b), intersection(a, b), difference(a, b)):
        assert made.provenance["masks"] == [a.provenance, b.provenance]
    assert complement(a).provenance["masks"] == [a.provenance]
    assert random_like(a, seed=3).provenance["masks"] == [a.provenance]


def test_masks_of_two_models_do_not_combine() -> None:
    a = top_k(random_scores(), "a@en", 3)
    b = top_k(random_scores(model=model_id(name="other", fingerprint="0" * 64)), "a@en", 3)
    for operation in (union, intersection, difference, overlap, jaccard):
        with pytest.raises(UserError, match=r"two models: tiny .* and other "):
            operation(a, b)
    moved = top_k(random_scores(model=model_id(name="elsewhere")), "a@en", 3)
    assert overlap(a, moved) == 3


# --------------------------------------------------------------------------------------- the mask itself


def test_counts() -> None:
    units = {
        Site(0, "gate"): np.array([1, 2]),
        Site(0, "up"): np.array([2, 3]),
        Site(0, "act"): np.array([3, 4]),
        Site(2, "down"): np.array([0, 5, 9]),
        Site(1, "act"): np.array([], int),
    }
    mask = Mask(units, model_id())
    assert len(mask) == 9 and mask.ffn_neurons() == 4
    assert mask.layers().tolist() == [6, 0, 3]
    assert mask.kinds() == {"gate": 2, "up": 2, "act": 2, "down": 3}
    assert Site(1, "act") not in mask.units


def test_equality_and_digest_follow_units_statistics_and_weights() -> None:
    mask = top_k(random_scores(), "a@en", 5)
    same = Mask(dict(mask.units), model_id(name="elsewhere"), {"other": 1}, mask.references)
    assert same == mask and hash(same) == hash(mask)
    assert Mask(mask.units, mask.model) != mask
    assert Mask(mask.units, model_id(fingerprint="0" * 64), {}, mask.references) != mask


def test_a_saved_mask_works_without_its_scores(tmp_path: Path) -> None:
    mask = top_k(random_scores(), "a@en", 25)
    for name in ("a", "b"):
        mask.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = Mask.load(tmp_path / "a")
    assert loaded == mask and loaded.provenance == mask.provenance and loaded.model == mask.model
    empty = top_k(random_scores(), "a@en", 0)
    empty.save(tmp_path / "empty")
    assert len(Mask.load(tmp_path / "empty")) == 0


# ----------------------------------------------------------------------------------------- random controls


def counts(mask: Mask) -> dict[Site, int]:
    return {site: units.size for site, units in mask.units.items()}


def test_random_masks_match_every_site_and_depend_on_the_seed() -> None:
    mask = top_k(random_scores(KIND_SET), "a@en", 60)
    drawn = random_like(mask, seed=1)
    assert counts(drawn) == counts(mask)
    assert drawn == random_like(mask, seed=1) and drawn != random_like(mask, seed=2)
    assert overlap(mask, drawn) > 0
    apart = random_like(mask, seed=1, disjoint=True)
    assert counts(apart) == counts(mask) and overlap(mask, apart) == 0


def test_a_disjoint_draw_from_a_half_full_site_is_refused() -> None:
    mask = complement(top_k(random_scores(), "a@en", 3))
    with pytest.raises(UserError, match="a disjoint draw is impossible"):
        random_like(mask, seed=0, disjoint=True)


def decile_counts(mask: Mask, weights: dict[Site, np.ndarray]) -> dict[Site, list[int]]:
    found = {}
    for site, units in mask.units.items():
        order = np.argsort(np.argsort(weights[site], kind="stable"), kind="stable")
        found[site] = np.bincount(order[units] * 10 // order.size, minlength=10).tolist()
    return found


@pytest.mark.parametrize("disjoint", [False, True])
def test_the_second_control_matches_deciles_of_contribution(disjoint: bool) -> None:
    scores = random_scores(KIND_SET)
    weights = contribution(scores, "a@en")
    for site, array in weights.items():
        expected = scores.references["mean_abs"][site] * scores.references["norm"][site]
        assert np.array_equal(array, expected)
    mask = top_k(scores, "a@en", 40)
    drawn = random_like(mask, seed=1, contribution=weights, disjoint=disjoint)
    assert drawn.provenance["spilled"] == 0 and drawn.provenance["matched"] == "contribution"
    assert decile_counts(drawn, weights) == decile_counts(mask, weights)
    assert overlap(mask, drawn) == 0 or not disjoint


def test_a_full_decile_spills_into_the_next_and_says_so() -> None:
    weights = {Site(0, "act"): np.arange(48, dtype=np.float32)}
    mask = Mask({Site(0, "act"): np.arange(40, 48)}, model_id())
    drawn = random_like(mask, seed=0, contribution=weights, disjoint=True)
    # Deciles 8 and 9 hold units 39 to 47; only 39 is left there, and decile 7 holds 34 to 38.
    assert set(drawn.units[Site(0, "act")].tolist()) > set(range(34, 40))
    assert drawn.provenance["spilled"] == 8


def test_contribution_of_a_site_that_is_missing_is_named() -> None:
    mask = top_k(random_scores(), "a@en", 4)
    with pytest.raises(UserError, match="no contribution"):
        random_like(mask, seed=0, contribution={})


def test_random_masks_can_carry_statistics() -> None:
    scores = random_scores()
    drawn = random_like(top_k(scores, "b@en", 20), seed=0, scores=scores)
    for site, units in drawn.units.items():
        assert np.array_equal(drawn.references["mean"][site], scores.references["mean"][site][1, units])
    mixed = union(top_k(scores, "a@en", 5), top_k(scores, "b@en", 5))
    with pytest.raises(UserError, match="not made for one concept"):
        random_like(mixed, seed=0, scores=scores)
    assert random_like(mixed, seed=0, scores=scores, concept="a@en").references


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), st.integers(0, 144), st.integers(0, 99))
def test_random_masks_from_a_histogram_follow_it(weights: list[float], k: int, seed: int) -> None:
    layout, sites = small_layout(), small_layout().sites(["act"])
    histogram = dict(zip(sites, weights, strict=True))
    room = sum(48 for weight in weights if weight)
    if k > room or not room:
        with pytest.raises(UserError):
            random_from_histogram(histogram, k, layout, model_id(), seed=seed)
        return
    mask = random_from_histogram(histogram, k, layout, model_id(), seed=seed)
    assert len(mask) == k
    assert mask == random_from_histogram(histogram, k, layout, model_id(), seed=seed)
    shares = np.array(weights) / sum(weights) * k
    if shares.max() <= 48:
        got = [mask.units[site].size if site in mask.units else 0 for site in sites]
        assert np.abs(np.array(got) - shares).max() <= 1


def test_a_mask_of_a_real_layout_fits_its_model() -> None:
    model = tiny_model("phi3")
    mask = random_mask(model, layout_of(model).kinds)
    assert len(mask) == 3 * 3 * len(layout_of(model).kinds)
