"""What a sweep found, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from relbench.analysis.cells import Cell, headline_cells
from relbench.analysis.curve import ALL_LANGUAGES
from relbench.analysis.selectivity import Selectivity
from relbench.analysis.testability import Testability
from relbench.findings import Findings
from relbench.reports.formats import NOTHING, show
from relbench.tables import Interval, Kind, Table
from relbench.treatments import RANDOM, TOP_K, Treatment

if TYPE_CHECKING:
    from rich.table import Table as RichTable

NOT_TESTABLE = "not testable"


def terminal_tables(findings: Findings) -> list[RichTable]:
    """A table for each method, size, mode and positions, then the methods' headline; without masks the recall."""
    masks = [one for one in findings.selectivities if one.treatment.selection == TOP_K]
    if not masks:
        return [_recall_table(findings.table("recall"))]
    groups: dict[_Group, list[Selectivity]] = {}
    for one in masks:
        groups.setdefault(_group(one.treatment), []).append(one)
    look_up = _LookUp(headline_cells(findings.cells), {one.concept: one for one in findings.testability})
    made = [_mask_table(group, members, look_up, findings.cells) for group, members in groups.items()]
    headline = [table for table in findings.tables if table.name == "methods"]
    return [*made, *map(_method_table, headline)]


class _Group(NamedTuple):
    method: str
    k: int
    mode: str
    positions: str


class _LookUp(NamedTuple):
    cells: Mapping[tuple[str, str], Cell]
    judged: Mapping[str, Testability]


def _group(treatment: Treatment) -> _Group:
    return _Group(treatment.method, treatment.k or 0, treatment.mode, treatment.positions)


def _table(title: str, caption: str, columns: Sequence[str], texts: int) -> RichTable:
    """A table whose first `texts` columns are text."""
    from rich.table import Table as RichTable

    table = RichTable(title=title, caption=caption)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < texts else "right", no_wrap=True)
    return table


def _add(table: RichTable, cells: Sequence[str]) -> None:
    from rich.text import Text

    # Names come from users' files; rich would read brackets in them as styles.
    table.add_row(*(Text(cell) for cell in cells))


def _mask_table(
    group: _Group, members: Sequence[Selectivity], look_up: _LookUp, cells: Sequence[Cell]
) -> RichTable:
    controls: dict[str, list[float]] = {}
    seeds = set()
    for cell in cells:
        treatment = cell.treatment
        if (
            treatment.method == RANDOM
            and treatment.selection == TOP_K
            and _group(treatment)[1:] == group[1:]
            and cell.facts == "headline"
        ):
            seeds.add(treatment.id)
            controls.setdefault(cell.evaluated, []).append(cell.delta.delta)
    reasons = {
        str(one.treatment.concept): look_up.judged[str(one.treatment.concept)].why_not
        for one in members
        if str(one.treatment.concept) in look_up.judged
        and not look_up.judged[str(one.treatment.concept)].testable
    }
    caption = [
        "facts whose answer cannot be copied from the subject; Δ: change of recall, off target the mean over "
        "testable relations",
        "selectivity: share lost of the masked relation's right facts, less that of the others; [95 % interval]",
    ]
    if seeds:
        caption.append(f"random: mean of {len(seeds)} masks of the same size")
    caption += [f"{concept}: {NOT_TESTABLE}: {why}" for concept, why in reasons.items()]
    variant = [part for part, plain in ((group.mode, "zero"), (group.positions, "all")) if part != plain]
    table = _table(
        f"{group.method}: {group.k:,} units off" + (f" ({', '.join(variant)})" if variant else ""),
        "\n".join(caption),
        (
            "masked relation",
            "facts",
            "recall before",
            "after",
            "target Δ",
            "off-target Δ",
            "random Δ",
            "selectivity",
        ),
        1,
    )
    for one in members:
        concept = str(one.treatment.concept)
        own = look_up.cells.get((one.treatment.id, concept))
        if own is None:
            continue
        delta, tested, random = own.delta, own.testable, controls.get(concept)
        _add(
            table,
            [
                concept,
                show(delta.n, "count"),
                _with(delta.before, delta.before_interval),
                _with(delta.after, delta.after_interval),
                _with(delta.delta, delta.delta_interval, "delta") if tested else NOT_TESTABLE,
                _with(_off_target(one, look_up), None, "delta"),
                _with(mean(random), None, "delta") if random and tested else NOTHING,
                _with(one.selectivity, one.interval, "delta"),
            ],
        )
    return table


def _off_target(one: Selectivity, look_up: _LookUp) -> float | None:
    """Mean change on the relations that the mask's off-target loss rests on."""
    if one.basis is None:
        return None
    found = [look_up.cells[one.treatment.id, other] for other in one.off_target[one.basis].concepts]
    return mean(cell.delta.delta for cell in found)


def _with(value: float | None, interval: Interval | None, kind: Kind = "share") -> str:
    """Two decimals, and the interval where there is one."""
    shown = NOTHING if value is None else show(round(value, 2) + 0.0, kind)
    return shown if interval is None else f"{shown} {show(interval, 'interval', kind)}"


def _method_table(methods: Table) -> RichTable:
    table = _table(
        "methods: what else is lost by the time that half of the target is",
        "off-target loss where the target loss reaches 50 %, interpolated between mask sizes; [95 % interval],\n"
        "∞: not reached in that part of the draws; selectivity: target − off-target loss, mean over the sizes",
        (
            "method",
            "units",
            "masks",
            "off-target loss at 50 %",
            "units there",
            "mean selectivity",
            "relations",
            "sizes",
        ),
        3,
    )
    for row in methods.rows:
        half, bounds = row["off_target_at_half"], row["off_target_at_half_interval"]
        _add(
            table,
            [
                row["method"],
                _variant(row),
                "all" if row["language"] == ALL_LANGUAGES else row["language"],
                "not reached" if half is None else _with(half, bounds),
                show(row["k_at_half"], "number"),
                _with(row["mean_selectivity"], row["mean_selectivity_interval"], "delta"),
                show(row["targets"], "count"),
                show(row["sizes"], "count"),
            ],
        )
    return table


def _variant(row: Mapping[str, Any]) -> str:
    return row["mode"] if row["positions"] == "all" else f"{row['mode']}, {row['positions']}"


def _recall_table(recall: Table) -> RichTable:
    table = _table(
        "recall without any mask",
        "most common: what one constant answer would recall; [95 % interval]",
        ("relation", "lang", "facts", "recall", "most common", "testable"),
        2,
    )
    for row in recall.rows:
        _add(
            table,
            [
                row["relation"],
                row["language"],
                show(row["n"], "count"),
                _with(row["recall"], row["recall_interval"]),
                show(row["majority"], "share"),
                show(row["testable"], "flag"),
            ],
        )
    return table
