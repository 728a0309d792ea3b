"""Cumulativity: does a relation go little by little, and is the whole more than its parts?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relbench.analysis.cells import CellIndex
from relbench.analysis.delta import Delta
from relbench.analysis.intervals import proportion_interval
from relbench.analysis.pairing import headline
from relbench.analysis.runs import Runs, controls_of, family
from relbench.tables import Interval
from relbench.treatments import BAND, TOP_K, Treatment


@dataclass(frozen=True)
class Step:
    """A mask on its own concept, among the masks of other sizes.

    Attributes:
        treatment: The mask.
        testable: Whether its concept is.
        delta: What it does there.
        random_recall, random_loss: Means under its random controls; None without any.
        seeds: Number of those.
    """

    treatment: Treatment
    testable: bool
    delta: Delta
    random_recall: float | None
    random_loss: float | None
    seeds: int


def steps(runs: Runs, cells: CellIndex) -> list[Step]:
    """Recall over mask size: every top-k mask on its own concept, by method, concept and size."""
    found = []
    for mask in runs.masks:
        cell = cells.get((mask.id, str(mask.concept)))
        if mask.selection != TOP_K or cell is None:
            continue
        random = [
            cells[control.id, cell.evaluated].delta
            for control in controls_of(mask, runs.controls)
            if (control.id, cell.evaluated) in cells
        ]
        losses = [delta.loss for delta in random if delta.loss is not None]
        found.append(
            Step(
                treatment=mask,
                testable=cell.testable,
                delta=cell.delta,
                random_recall=sum(d.after for d in random) / len(random) if random else None,
                random_loss=sum(losses) / len(losses) if losses else None,
                seeds=len(random),
            )
        )
    order = list(dict.fromkeys((*family(s.treatment), s.treatment.concept) for s in found))
    return sorted(
        found, key=lambda s: (order.index((*family(s.treatment), s.treatment.concept)), s.treatment.k or 0)
    )


@dataclass(frozen=True)
class BandLoss:
    """A rank band masked alone against the whole top set that it belongs to.

    Attributes:
        whole: The top-k mask.
        bands: The masked bands: one, or for a summary all of those within the whole.
        testable: Whether the concept is.
        right: Headline facts right at baseline.
        band_lost: How many of them a band alone loses; of several bands, how many any of them loses.
        band_loss, band_loss_interval: The same as a share, Clopper–Pearson.
        whole_lost, whole_loss, whole_loss_interval: The same for the whole.
        only_whole: Facts that the whole loses and no band alone does.
        only_whole_share, only_whole_interval: Their share of what the whole loses, Clopper–Pearson.
    """

    whole: Treatment
    bands: tuple[Treatment, ...]
    testable: bool
    right: int
    band_lost: int
    band_loss: float | None
    band_loss_interval: Interval | None
    whole_lost: int
    whole_loss: float | None
    whole_loss_interval: Interval | None
    only_whole: int
    only_whole_share: float | None
    only_whole_interval: Interval | None


def band_losses(runs: Runs, cells: CellIndex) -> list[BandLoss]:
    """Every rank band against the top set that ends where it does, and all bands of a top set together."""
    found = []
    for whole in runs.masks:
        if whole.selection != TOP_K or (whole.id, str(whole.concept)) not in cells:
            continue
        within = [band for band in runs.masks if _is_within(band, whole)]
        ending = [band for band in within if band.band is not None and band.band[1] == whole.k]
        found += [_band_loss(runs, cells, whole, [band]) for band in ending]
        if len(within) > 1:
            found.append(_band_loss(runs, cells, whole, within))
    return found


def _is_within(band: Treatment, whole: Treatment) -> bool:
    same = (band.method, band.concept, band.mode, band.positions) == (
        whole.method,
        whole.concept,
        whole.mode,
        whole.positions,
    )
    return same and band.selection == BAND and band.band is not None and band.band[1] <= (whole.k or 0)


def _band_loss(runs: Runs, cells: CellIndex, whole: Treatment, bands: Sequence[Treatment]) -> BandLoss:
    cell = cells[whole.id, str(whole.concept)]
    right = cell.delta.right
    by_whole = _lost(runs, whole)
    by_band = set().union(*(_lost(runs, band) for band in bands))
    only = len(by_whole - by_band)
    return BandLoss(
        whole=whole,
        bands=tuple(bands),
        testable=cell.testable,
        right=right,
        band_lost=len(by_band),
        band_loss=len(by_band) / right if right else None,
        band_loss_interval=proportion_interval(len(by_band), right),
        whole_lost=len(by_whole),
        whole_loss=cell.delta.loss,
        whole_loss_interval=cell.delta.loss_interval,
        only_whole=only,
        only_whole_share=only / len(by_whole) if by_whole else None,
        only_whole_interval=proportion_interval(only, len(by_whole)),
    )


def _lost(runs: Runs, treatment: Treatment) -> set[str]:
    """Headline facts of the treatment's own concept that it loses."""
    pairs = runs.pairs[treatment.id].get(str(treatment.concept), ())
    return {one.before.fact_id for one in headline(pairs) if one.before.recall > one.after.recall}
