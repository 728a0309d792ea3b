"""Tables of the three properties of relation units, and of transfer, sufficiency and where the units are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from interventions.units import Site, site_order
from relbench.analysis.cells import Cell
from relbench.analysis.cumulativity import BandLoss, Step
from relbench.analysis.interference import Gain
from relbench.analysis.overlap import Chosen, Overlap
from relbench.analysis.runs import Setting, language_of, relation_of
from relbench.analysis.sufficiency import Kept
from relbench.analysis.versatility import SharedUnits, Transfer
from relbench.findings.columns import EVALUATED, MASK, evaluated_values, interval, mask_values
from relbench.tables import Column, Table, make_table
from relbench.treatments import Treatment

_LOSS = (Column("loss", "loss", "share"), interval("loss"))


def _loss(cell: Cell | None) -> tuple[Any, Any]:
    if cell is None or not cell.testable:
        return None, None
    return cell.delta.loss, cell.delta.loss_interval


def cumulativity_table(steps: Sequence[Step]) -> Table:
    """Recall of the masked relation over mask size."""
    return make_table(
        "cumulativity",
        "Cumulativity: recall of the masked relation as more units are off",
        "Facts that cannot be copied; Clopper–Pearson intervals. Random: mean over masks of the same size.",
        (
            *MASK,
            Column("testable", "testable", "flag"),
            Column("recall_before", "recall before", "share"),
            Column("recall_after", "recall after", "share"),
            interval("recall_after"),
            *_LOSS,
            Column("random_recall", "random: recall after", "share"),
            Column("random_loss", "random: loss", "share"),
            Column("random_masks", "random masks", "count"),
        ),
        [
            (
                *mask_values(step.treatment),
                step.testable,
                step.delta.before,
                step.delta.after,
                step.delta.after_interval,
                *((step.delta.loss, step.delta.loss_interval) if step.testable else (None, None)),
                step.random_recall,
                step.random_loss if step.testable else None,
                step.seeds,
            )
            for step in steps
        ],
    )


def band_table(bands: Sequence[BandLoss]) -> Table:
    """Rank bands alone against the whole."""

    def row(one: BandLoss) -> tuple[Any, ...]:
        tested = one.testable
        named = [f"({band.band[0]}, {band.band[1]}]" for band in one.bands if band.band]
        return (
            *mask_values(one.whole),
            ", ".join(named),
            len(one.bands),
            tested,
            one.right,
            one.band_loss if tested else None,
            one.band_loss_interval if tested else None,
            one.whole_loss if tested else None,
            one.whole_loss_interval if tested else None,
            one.only_whole,
            one.only_whole_share if tested else None,
            one.only_whole_interval if tested else None,
        )

    return make_table(
        "bands",
        "Cumulativity: rank bands alone against all units up to their end",
        "A band (k1, k2] holds the units of ranks above k1 up to k2. Where several bands are named, a fact counts "
        "as lost by a band when any of them alone loses it. Only the whole: facts that the whole set loses and no "
        "band alone, as a share of those that the whole loses. Clopper–Pearson intervals.",
        (
            *MASK,
            Column("bands", "bands", "text"),
            Column("n_bands", "number of bands", "count"),
            Column("testable", "testable", "flag"),
            Column("right", "right at baseline", "count"),
            Column("band_loss", "loss, band alone", "share"),
            interval("band_loss"),
            Column("whole_loss", "loss, whole", "share"),
            interval("whole_loss"),
            Column("only_whole", "lost by the whole only", "count"),
            Column("only_whole_share", "share lost by the whole only", "share"),
            interval("only_whole_share"),
        ),
        [row(one) for one in bands],
    )


_OVERLAP = (
    Column("shared", "shared units", "count"),
    Column("jaccard", "Jaccard index", "share"),
    Column("expected", "shared by random sets", "number"),
    Column("expected_interval", "their middle 95 %", "interval", of="expected"),
    Column("expected_by_layer", "shared by random sets of the same layers", "number"),
    Column("p", "p of as many by chance", "p"),
)


def _overlap(found: Overlap | None) -> tuple[Any, ...]:
    if found is None:
        return (None,) * len(_OVERLAP)
    return (
        found.shared,
        found.jaccard,
        found.expected,
        found.expected_interval,
        found.expected_by_layer,
        found.p,
    )


def versatility_table(found: Sequence[SharedUnits]) -> Table:
    """Units that the masks of two relations share, and what each does to the other."""
    return make_table(
        "versatility",
        "Versatility: units that two relations share",
        "Masks of one method, size and language. Random sets: of the same sizes, drawn from all units of the "
        "scored kinds (hypergeometric), and with as many in each layer. Loss on the other: what switching one "
        "relation's units off does to the other relation.",
        (
            *MASK,
            Column("other", "other relation", "text"),
            Column("other_k", "its units", "count"),
            *_OVERLAP,
            Column("loss_of_other", "loss of the other under this mask", "share"),
            interval("loss_of_other"),
            Column("loss_under_other", "loss of this under the other's mask", "share"),
            interval("loss_under_other"),
        ),
        [
            (
                *mask_values(one.first),
                relation_of(str(one.second.concept)),
                one.second.k,
                *_overlap(one.overlap),
                *_loss(one.loss_of_second),
                *_loss(one.loss_of_first),
            )
            for one in found
        ],
    )


def transfer_table(found: Sequence[Transfer]) -> Table:
    """Units found in one language, recall in another."""
    return make_table(
        "transfer",
        "Transfer between languages: units found in one, recall in another",
        "Loss in the other language under this mask, in its own, and what the units found in the other language "
        "do there; units that both masks share, against random sets of the same sizes.",
        (
            *MASK,
            Column("language", "evaluated language", "text"),
            Column("testable", "testable", "flag"),
            Column("recall_before", "recall before", "share"),
            Column("recall_after", "recall after", "share"),
            interval("recall_after"),
            *_LOSS,
            Column("own_loss", "loss in its own language", "share"),
            interval("own_loss"),
            Column("native_loss", "loss under the other language's own units", "share"),
            interval("native_loss"),
            *_OVERLAP,
        ),
        [
            (
                *mask_values(one.treatment),
                language_of(one.other.evaluated),
                one.other.testable,
                one.other.delta.before,
                one.other.delta.after,
                one.other.delta.after_interval,
                *_loss(one.other),
                *_loss(one.own),
                *_loss(one.native),
                *_overlap(one.overlap),
            )
            for one in found
        ],
    )


def interference_table(found: Sequence[Gain]) -> Table:
    """Facts that masks make right."""
    return make_table(
        "interference",
        "Interference: facts that become right when units are off",
        "Gain: share of the facts wrong at baseline that become right, over facts that cannot be copied, with its "
        "Clopper–Pearson interval. Random: mean gain under masks of the same size. Only masks and relations with "
        "a gained fact are listed.",
        (
            *MASK,
            Column("selection", "selection", "text"),
            *EVALUATED,
            Column("wrong", "wrong at baseline", "count"),
            Column("gained", "of these gained", "count"),
            Column("gain", "gain", "share"),
            interval("gain"),
            Column("random_gain", "random: gain", "share"),
            Column("random_masks", "random masks", "count"),
            Column("facts", "gained facts", "text"),
        ),
        [
            (
                *mask_values(one.cell.treatment),
                one.cell.treatment.selection,
                *evaluated_values(one.cell.evaluated),
                one.cell.delta.n - one.cell.delta.right,
                one.cell.delta.gained,
                one.cell.delta.gain,
                one.cell.delta.gain_interval,
                one.random_gain,
                one.seeds,
                ", ".join(one.facts),
            )
            for one in found
        ],
    )


def sufficiency_table(found: Sequence[Kept]) -> Table:
    """Recall that is left when only a mask's units are on."""
    return make_table(
        "sufficiency",
        "Sufficiency: recall with all units off but the chosen ones",
        "Kept: share of the facts right at baseline that stay right, over facts that cannot be copied, with its "
        "Clopper–Pearson interval. Random: when as many random units are kept; its interval is a bootstrap over "
        "seeds and subjects and takes ten seeds.",
        (
            *MASK,
            Column("testable", "testable", "flag"),
            Column("recall_before", "recall before", "share"),
            Column("recall_after", "recall after", "share"),
            interval("recall_after"),
            Column("kept", "kept", "share"),
            interval("kept"),
            Column("random_kept", "random: kept", "share"),
            interval("random_kept"),
            Column("random_masks", "random masks", "count"),
        ),
        [
            (
                *mask_values(one.treatment),
                one.testable,
                one.delta.before,
                one.delta.after,
                one.delta.after_interval,
                one.kept if one.testable else None,
                one.interval if one.testable else None,
                one.random_kept if one.testable else None,
                one.random_interval if one.testable else None,
                one.seeds,
            )
            for one in found
        ],
    )


def template_table(main: Setting, found: Sequence[tuple[Setting, Cell, Cell | None]]) -> Table:
    """Masks on their own relation, asked in other ways.

    Args:
        main: The setting that all other tables are about.
        found: A setting, what a mask does in it, and what it does in the main one.
    """
    return make_table(
        "templates",
        "Template transfer: the same masks, asked in other ways",
        f"Loss of the masked relation when it is asked by another template or with another number of few-shot "
        f"examples than everywhere else ({main.template}, {main.shots}). Clopper–Pearson intervals.",
        (
            *MASK,
            Column("template", "template", "text"),
            Column("shots", "few-shot examples", "count"),
            Column("testable", "testable", "flag"),
            Column("recall_before", "recall before", "share"),
            Column("recall_after", "recall after", "share"),
            interval("recall_after"),
            *_LOSS,
            Column("main_loss", "loss as asked elsewhere", "share"),
            interval("main_loss"),
        ),
        [
            (
                *mask_values(cell.treatment),
                setting.template,
                setting.shots,
                cell.testable,
                cell.delta.before,
                cell.delta.after,
                cell.delta.after_interval,
                *_loss(cell),
                *_loss(own),
            )
            for setting, cell, own in found
        ],
    )


def layer_table(masks: Sequence[Treatment], chosen: Mapping[str, Chosen]) -> Table:
    """Where the units of masks are, by layer and kind."""
    rows = []
    for mask in masks:
        if mask.id not in chosen:
            continue
        units, sites = chosen[mask.id]
        total = sum(len(indices) for indices in units.values())
        for site in sorted(sites, key=site_order):
            n = len(units.get(site, ()))
            rows.append((*mask_values(mask), *_site(site), n, n / total if total else None, n / sites[site]))
    return make_table(
        "layers",
        "Layers and kinds of the chosen units",
        "Units of each mask by layer and kind, as shares of the mask and of the layer's units of that kind.",
        (
            *MASK,
            Column("layer", "layer", "count"),
            Column("kind", "kind", "text"),
            Column("units", "units there", "count"),
            Column("share_of_mask", "share of the mask", "share"),
            Column("share_of_layer", "share of the layer", "share"),
        ),
        rows,
    )


def _site(site: Site) -> tuple[int, str]:
    return site.layer, site.kind
