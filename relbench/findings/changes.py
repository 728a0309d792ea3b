"""Tables of changes: cell by cell, mask by mask, and method by method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from relbench.analysis.cells import Cell
from relbench.analysis.contest import Contest
from relbench.analysis.curve import Curve
from relbench.analysis.delta import SUBSETS
from relbench.analysis.offtarget import CONTRASTED, GROUPS, HELD_OUT, OTHER_LANGUAGE, SAME_TYPE
from relbench.analysis.selectivity import OffTarget, Selectivity
from relbench.findings.columns import EVALUATED, MASK, evaluated_values, interval, mask_values
from relbench.tables import Column, Table, make_table

_GROUP_KEYS = {
    HELD_OUT: "held_out",
    CONTRASTED: "contrasted",
    SAME_TYPE: "same_type",
    OTHER_LANGUAGE: "other_languages",
}


def delta_table(cells: Sequence[Cell]) -> Table:
    """Every treatment on every evaluated concept, for each subset of facts."""
    named = "; ".join(f"{name}: {what}" for name, what in SUBSETS.items())
    return make_table(
        "deltas",
        "Change of recall under every mask on every relation",
        f"Facts: {named}. Loss: share of the facts right at baseline that become wrong; gain: share of the "
        "wrong that become right. Intervals: Clopper–Pearson; Newcombe's for the change of recall; Student's t "
        "over subjects for the log probability. p: McNemar's exact test, two-sided (a sign-flip test over "
        "subjects where one occurs twice); corrected by Holm where a mask meets its own relation, by "
        "Benjamini–Hochberg elsewhere, among the testable relations under one method. Relations that are not "
        "testable have no loss, change or p.",
        (
            *MASK,
            Column("selection", "selection", "text"),
            Column("seed", "seed", "count"),
            *EVALUATED,
            Column("on_target", "own relation", "flag"),
            Column("facts", "facts", "text"),
            Column("testable", "testable", "flag"),
            Column("n", "number of facts", "count"),
            Column("right", "right at baseline", "count"),
            Column("lost", "of these lost", "count"),
            Column("gained", "wrong ones gained", "count"),
            Column("recall_before", "recall before", "share"),
            interval("recall_before"),
            Column("recall_after", "recall after", "share"),
            interval("recall_after"),
            Column("delta", "change of recall", "delta"),
            interval("delta"),
            Column("loss", "loss", "share"),
            interval("loss"),
            Column("gain", "gain", "share"),
            interval("gain"),
            Column("p", "p", "p"),
            Column("p_adjusted", "p, corrected", "p"),
            Column("logprob", "change of answer log probability", "logprob"),
            interval("logprob"),
        ),
        [_cell_row(cell) for cell in cells],
    )


def _cell_row(cell: Cell) -> tuple[Any, ...]:
    delta = cell.delta

    def tested(value: Any) -> Any:
        return value if cell.testable else None

    return (
        *mask_values(cell.treatment),
        cell.treatment.selection,
        cell.treatment.seed,
        *evaluated_values(cell.evaluated),
        cell.on_target,
        cell.facts,
        cell.testable,
        delta.n,
        delta.right,
        delta.lost,
        delta.gained,
        delta.before,
        delta.before_interval,
        delta.after,
        delta.after_interval,
        tested(delta.delta),
        tested(delta.delta_interval),
        tested(delta.loss),
        tested(delta.loss_interval),
        delta.gain,
        delta.gain_interval,
        tested(delta.p),
        cell.p_adjusted,
        delta.logprob,
        delta.logprob_interval,
    )


def mask_table(found: Sequence[Selectivity]) -> Table:
    """Selectivity of every mask, beside its random controls."""
    named = "; ".join(f"{name}: {what}" for name, what in GROUPS.items())
    columns = [
        *MASK,
        Column("selection", "selection", "text"),
        Column("target_loss", "target loss", "share"),
        interval("target_loss"),
        Column("basis", "off-target relations are", "text"),
        Column("off_target_loss", "mean off-target loss", "share"),
        interval("off_target_loss"),
        Column("off_target_relations", "off-target relations", "count"),
        Column("worst_loss", "worst off-target loss", "share"),
        Column("worst_relation", "on", "text"),
        Column("selectivity", "selectivity", "delta"),
        interval("selectivity"),
        Column("random_masks", "random masks", "count"),
        Column("random_target_loss", "random: target loss", "share"),
        interval("random_target_loss"),
        Column("random_off_target_loss", "random: mean off-target loss", "share"),
        interval("random_off_target_loss"),
        Column("random_selectivity", "random: selectivity", "delta"),
        interval("random_selectivity"),
    ]
    for group, key in _GROUP_KEYS.items():
        columns += [
            Column(f"{key}_loss", f"mean loss, {group}", "share"),
            interval(f"{key}_loss"),
            Column(f"{key}_worst_loss", f"worst loss, {group}", "share"),
            Column(f"{key}_worst_relation", "on", "text"),
        ]
    return make_table(
        "masks",
        "Target loss and off-target loss of every mask",
        "Over facts that cannot be copied and relations that are testable. Selectivity: target loss − mean "
        f"off-target loss. Off-target relations, in the mask's own language unless said otherwise: {named}; "
        "the mean rests on those held out where there are any, else on the contrasted ones. Intervals: "
        "Clopper–Pearson for a single relation; a bootstrap over relations and subjects for means (10,000 "
        "draws), with few relations a rough one; both joined for selectivity; over seeds too for random masks, "
        "of which it takes ten.",
        columns,
        [_mask_row(one) for one in found],
    )


def _mask_row(one: Selectivity) -> tuple[Any, ...]:
    off = one.off_target.get(one.basis) if one.basis else None
    control = one.control
    return (
        *mask_values(one.treatment),
        one.treatment.selection,
        one.target,
        one.target_interval,
        one.basis,
        off.mean if off else None,
        off.interval if off else None,
        len(off.concepts) if off else 0,
        off.worst if off else None,
        off.worst_concept if off else None,
        one.selectivity,
        one.interval,
        control.seeds if control else 0,
        control.target if control else None,
        control.target_interval if control else None,
        control.off_target if control else None,
        control.off_target_interval if control else None,
        control.selectivity if control else None,
        control.selectivity_interval if control else None,
        *(value for group in _GROUP_KEYS for value in _group_values(one.off_target.get(group))),
    )


def _group_values(off: OffTarget | None) -> tuple[Any, ...]:
    return (None,) * 4 if off is None else (off.mean, off.interval, off.worst, off.worst_concept)


_METHOD = (
    Column("method", "method", "text"),
    Column("mode", "what is done to the units", "text"),
    Column("positions", "at which positions", "text"),
    Column("language", "masks of which language", "text"),
)


def method_table(curves: Sequence[Curve]) -> Table:
    """The headline of every scoring method."""
    return make_table(
        "methods",
        "Scoring methods: off-target loss at 50 % target loss",
        "What else is lost by the time that half of the target is: both losses averaged over relations, and "
        "interpolated between mask sizes on the logarithm. A dash: half the target was not lost at any size; an "
        "infinite bound: nor in that part of the bootstrap draws (10,000, over relations and subjects). Mean "
        "selectivity: target − off-target loss, averaged over the mask sizes. Language: that of the masked "
        "relations; all of them together, and with several each alone. Random masks that are matched to all masks "
        "together average the same losses for target and off-target, so that their selectivity is about 0 whatever "
        "they do: read their losses.",
        (
            *_METHOD,
            Column("off_target_at_half", "off-target loss at 50 % target loss", "share"),
            interval("off_target_at_half"),
            Column("reached", "draws that reach 50 %", "share"),
            Column("k_at_half", "units there", "number"),
            Column("mean_selectivity", "mean selectivity", "delta"),
            interval("mean_selectivity"),
            Column("basis", "off-target relations are", "text"),
            Column("targets", "masked relations", "count"),
            Column("sizes", "mask sizes", "count"),
        ),
        [
            (
                curve.method,
                curve.mode,
                curve.positions,
                curve.language,
                curve.off_target_at_half,
                curve.off_target_at_half_interval,
                curve.reached,
                curve.k_at_half,
                curve.mean_selectivity,
                curve.mean_selectivity_interval,
                curve.basis,
                len(curve.targets),
                len(curve.points),
            )
            for curve in curves
        ],
    )


def contest_table(found: Iterable[Contest]) -> Table:
    """Scoring methods compared two by two."""
    return make_table(
        "contests",
        "Scoring methods two by two: difference in mean selectivity",
        "On the same facts, relations and mask sizes. Intervals: a bootstrap over relations and subjects that "
        "draws the same for both (10,000 draws), not corrected for the number of pairs. Methods whose own intervals "
        "overlap can differ, since what is hard for one is hard for the other.",
        (
            Column("method", "method", "text"),
            Column("second", "other method", "text"),
            *_METHOD[1:],
            Column("difference", "difference in mean selectivity", "delta"),
            interval("difference"),
            Column("basis", "off-target relations are", "text"),
            Column("targets", "masked relations", "count"),
        ),
        [
            (
                one.first.method,
                one.second.method,
                one.first.mode,
                one.first.positions,
                one.first.language,
                one.difference,
                one.interval,
                one.first.basis,
                len(one.first.targets),
            )
            for one in found
        ],
    )


def curve_table(curves: Sequence[Curve]) -> Table:
    """The loss–loss curve of every scoring method."""
    return make_table(
        "curves",
        "Target loss against off-target loss, by mask size",
        "Both averaged over the masked relations that are testable, off-target loss over each mask's off-target "
        "relations first; intervals are bootstraps over relations and subjects. A mask of no units stands at 0, 0.",
        (
            *_METHOD,
            Column("fraction", "share of all FFN neurons", "share"),
            Column("k", "units", "count"),
            Column("target_loss", "target loss", "share"),
            interval("target_loss"),
            Column("off_target_loss", "off-target loss", "share"),
            interval("off_target_loss"),
        ),
        [
            (
                curve.method,
                curve.mode,
                curve.positions,
                curve.language,
                point.fraction,
                point.k,
                point.target,
                point.target_interval,
                point.off_target,
                point.off_target_interval,
            )
            for curve in curves
            for point in curve.points
        ],
    )
