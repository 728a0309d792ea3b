"""Cumulativity, versatility, interference, transfer and sufficiency on made-up sweeps with known answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from interventions.units import Site
from relbench.analysis.cells import CellIndex, cells_of, headline_cells
from relbench.analysis.cumulativity import band_losses, steps
from relbench.analysis.interference import gains
from relbench.analysis.intervals import proportion_interval
from relbench.analysis.overlap import Chosen, overlap_of
from relbench.analysis.runs import Runs
from relbench.analysis.sufficiency import kept_recalls
from relbench.analysis.versatility import shared_units, transfers
from relbench.treatments import BAND, COMPLEMENT, RANDOM, Treatment
from tests.relbench.analysis.synthetic import mask, runs_of


def _index(runs: Runs) -> CellIndex:
    return headline_cells(cells_of(runs, runs.concepts))


def _sweep(
    concepts: Sequence[str],
    treatments: Sequence[Treatment],
    lost: Mapping[tuple[str, str], Sequence[int]],
    n: int = 10,
) -> Runs:
    """Everything right at baseline; (treatment, concept) → the facts that it loses."""
    return runs_of(
        dict.fromkeys(concepts, [1] * n),
        treatments,
        lambda t, concept: [int(i not in lost.get((t.id, concept), ())) for i in range(n)],
    )


def test_recall_over_k_beside_random_masks() -> None:
    masks = [mask("m", "a@en", k) for k in (100, 10)]
    controls = [mask(RANDOM, None, 10, seed=seed) for seed in range(2)]
    runs = _sweep(
        ["a@en"],
        [*masks, *controls],
        {(masks[0].id, "a@en"): range(8), (masks[1].id, "a@en"): [0], (controls[0].id, "a@en"): [1, 2]},
    )
    small, large = steps(runs, _index(runs))
    assert (small.treatment.k, small.delta.after, small.delta.loss) == (10, 0.9, 0.1)
    assert (small.seeds, small.random_recall, small.random_loss) == (2, 0.9, 0.1)
    assert (large.treatment.k, large.delta.lost) == (100, 8)
    assert (large.seeds, large.random_loss) == (0, None)


def test_bands_alone_against_the_whole() -> None:
    """The whole loses facts 0–7; of these the bands lose 0 and 1, and 1 and 9 on their own."""
    whole = mask("m", "a@en", 100)
    first = mask("m", "a@en", 50, id="first", selection=BAND, band=(10, 50))
    second = mask("m", "a@en", 100, id="second", selection=BAND, band=(50, 100))
    foreign = mask("m", "b@en", 100, id="foreign", selection=BAND, band=(50, 100))
    runs = _sweep(
        ["a@en", "b@en"],
        [whole, first, second, foreign],
        {
            (whole.id, "a@en"): range(8),
            ("first", "a@en"): [0, 1],
            ("second", "a@en"): [1, 9],
            ("foreign", "b@en"): range(10),
        },
    )
    alone, together = band_losses(runs, _index(runs))
    assert (alone.bands, alone.band_loss, alone.whole_loss) == ((second,), 0.2, 0.8)
    assert (alone.only_whole, alone.only_whole_share) == (7, 7 / 8)
    assert alone.only_whole_interval == proportion_interval(7, 8)
    assert (together.bands, together.band_lost, together.only_whole) == ((first, second), 3, 6)


SITES = {Site(layer, "act"): 50 for layer in range(4)}


def _chosen(units: Mapping[int, Sequence[int]]) -> Chosen:
    return Chosen({Site(layer, "act"): np.array(u, np.int32) for layer, u in units.items()}, SITES)


def test_overlap_against_random_sets() -> None:
    first = _chosen({0: range(20), 1: range(10)})
    second = _chosen({0: range(10, 30), 3: range(5)})
    found = overlap_of(first, second)
    assert (found.first, found.second, found.shared) == (30, 25, 10)
    assert found.jaccard == 10 / 45
    assert found.expected == 30 * 25 / 200
    assert found.expected_by_layer == 20 * 20 / 50
    # Drawn by hand: as many or more shared units, by chance.
    generator = np.random.default_rng(0)
    drawn = [
        len(np.intersect1d(generator.choice(200, 30, False), generator.choice(200, 25, False)))
        for _ in range(4_000)
    ]
    assert np.mean(drawn) == pytest.approx(found.expected, abs=0.1)
    assert np.mean(np.array(drawn) >= 10) == pytest.approx(found.p, abs=0.002)
    assert np.percentile(drawn, [2.5, 97.5]) == pytest.approx(tuple(found.expected_interval), abs=1)
    assert found.p == pytest.approx(stats.fisher_exact([[10, 20], [15, 155]], "greater").pvalue)


def test_overlap_of_extreme_masks() -> None:
    none, every = _chosen({}), _chosen({layer: range(50) for layer in range(4)})
    assert overlap_of(none, none).jaccard is None
    same = overlap_of(every, every)
    assert (same.jaccard, same.expected, same.p) == (1.0, 200.0, 1.0)
    with pytest.raises(ValueError, match="same sites"):
        overlap_of(none, Chosen({}, {Site(0, "act"): 50}))


def test_versatility_pairs_relations_of_one_size_and_language() -> None:
    masks = [mask("m", concept, k) for k in (10, 20) for concept in ("a@en", "b@en", "a@de")]
    runs = _sweep(
        ["a@en", "b@en", "a@de"],
        masks,
        {(masks[0].id, "b@en"): range(3), (masks[1].id, "a@en"): range(5)},
    )
    chosen = {masks[0].id: _chosen({0: range(10)}), masks[1].id: _chosen({0: range(5, 15)})}
    small, large = shared_units(runs, _index(runs), chosen)
    assert (small.first, small.second) == (masks[0], masks[1])
    assert small.overlap is not None and small.overlap.shared == 5
    assert small.loss_of_second is not None and small.loss_of_second.delta.loss == 0.3
    assert small.loss_of_first is not None and small.loss_of_first.delta.loss == 0.5
    assert (large.first.k, large.overlap) == (20, None)


def test_transfer_sets_other_languages_beside_their_own_units() -> None:
    masks = [mask("m", concept, 10) for concept in ("a@en", "a@de", "b@en")]
    runs = _sweep(
        ["a@en", "a@de", "b@en"],
        masks,
        {
            (masks[0].id, "a@en"): range(9),
            (masks[0].id, "a@de"): range(4),
            (masks[1].id, "a@de"): range(7),
        },
    )
    chosen = {masks[0].id: _chosen({0: range(10)}), masks[1].id: _chosen({0: range(8, 18)})}
    found = {(t.treatment.concept, t.other.evaluated): t for t in transfers(runs, _index(runs), chosen)}
    assert found.keys() == {("a@en", "a@de"), ("a@de", "a@en")}
    one = found["a@en", "a@de"]
    assert one.other.delta.loss == 0.4
    assert one.own is not None and one.own.delta.loss == 0.9
    assert one.native is not None and one.native.delta.loss == 0.7
    assert one.overlap is not None and one.overlap.shared == 2


def test_gains_name_their_facts_and_stand_beside_random_ones() -> None:
    masks = [mask("m", "a@en", 10), mask("m", "b@en", 10), mask(RANDOM, None, 10, seed=0)]
    gained = {(masks[0].id, "b@en"): {5, 7}, (masks[2].id, "b@en"): {6}, (masks[1].id, "a@en"): {9}}
    runs = runs_of(
        {"a@en": [1] * 5 + [0] * 5, "b@en": [1] * 6 + [0] * 4},
        masks,
        lambda t, concept: [int(i in gained.get((t.id, concept), ()) or i < 5) for i in range(10)],
    )
    large, small = gains(runs, _index(runs))
    # Fact b.5 was right before, so that 7 is all that is gained, of four wrong ones.
    assert (large.cell.evaluated, large.cell.delta.gain, large.facts) == ("b@en", 0.25, ("b.7",))
    assert large.cell.delta.gain_interval == proportion_interval(1, 4)
    assert (large.seeds, large.random_gain) == (1, 0.25)
    assert (small.cell.evaluated, small.facts, small.random_gain) == ("a@en", ("a.9",), 0.0)


def test_kept_recall_stands_beside_random_masks_that_are_kept() -> None:
    kept = mask("m", "a@en", 10, id="kept", selection=COMPLEMENT)
    top = mask("m", "a@en", 10)
    random = [mask(RANDOM, None, 10, seed=s, id=f"r{s}", selection=COMPLEMENT) for s in range(10)]
    plain = mask(RANDOM, None, 10, seed=0)
    lost = {("kept", "a@en"): range(3), **{(r.id, "a@en"): range(9 + (r.seed or 0) % 2) for r in random}}
    runs = _sweep(["a@en"], [top, kept, *random, plain], lost)
    (found,) = kept_recalls(runs, _index(runs))
    assert (found.treatment, found.kept) == (kept, pytest.approx(0.7))
    assert found.interval == proportion_interval(7, 10)
    assert (found.seeds, found.random_kept) == (10, pytest.approx(0.05))
    assert found.random_interval is not None
    assert 0 <= found.random_interval.low < 0.05 < found.random_interval.high < 0.4
