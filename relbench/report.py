"""The report of a sweep: per method a table of target and off-target deltas, as CSV too, and heat maps."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from interventions.errors import UserError
from interventions.files import atomic_write
from relbench.deltas import Delta, Interval, Pair, delta_of, headline, mean_delta_interval, pair, split_by
from relbench.prompts import concept
from relbench.recall import Recall, recall_markdown, recalls
from relbench.samples import BASELINE, Sample, read_samples
from relbench.sweep_state import read_treatments
from relbench.treatments import RANDOM, Treatment

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Cell:
    """One treatment on one evaluated concept, over the facts of one subset.

    `facts` is "headline" (without copyable answers), "seen" or "unseen" (headline facts whose answer
    does or does not also occur among the scored facts), or "all".
    """

    treatment: Treatment
    evaluated: str
    facts: str
    delta: Delta


@dataclass(frozen=True)
class Row:
    """One masked concept under one method: target against off-target against random masks."""

    method: str
    concept: str
    k: int
    target: Delta
    off_target: float
    off_target_interval: Interval
    random: float
    n_random: int


@dataclass(frozen=True)
class Report:
    """What a sweep found: the baseline's recall, every cell, and a row for each mask."""

    recalls: tuple[Recall, ...]
    cells: tuple[Cell, ...]
    rows: tuple[Row, ...]


def make_report(directory: str | Path) -> Report:
    """Compare every treatment of a finished sweep with its baseline.

    Raises:
        UserError: The directory is no finished sweep, or its samples do not pair.
    """
    directory = Path(directory)
    treatments = read_treatments(directory)
    by_treatment: dict[str, list[Sample]] = {}
    for sample in read_samples(directory / "samples.jsonl"):
        by_treatment.setdefault(sample.intervention, []).append(sample)
    missing = [treatment.id for treatment in treatments if treatment.id not in by_treatment]
    if missing:
        raise UserError(f"{directory} has no samples of {missing[0]}; finish the sweep first")
    pairs = {
        treatment.id: split_by(
            pair(by_treatment[BASELINE], by_treatment[treatment.id]),
            lambda sample: concept(sample.relation, sample.language),
        )
        for treatment in treatments
        if treatment.id != BASELINE
    }
    cells = tuple(
        Cell(treatment, evaluated, facts, delta_of(chosen))
        for treatment in treatments
        if treatment.id != BASELINE
        for evaluated, members in pairs[treatment.id].items()
        for facts, chosen in _subsets(members)
        if chosen
    )
    rows = tuple(
        _row(treatment, pairs[treatment.id], _controls(treatment, treatments, pairs))
        for treatment in treatments
        if treatment.concept is not None and headline(pairs[treatment.id].get(treatment.concept, ()))
    )
    return Report(tuple(recalls(by_treatment[BASELINE])), cells, rows)


def _subsets(pairs: Sequence[Pair[Sample]]) -> Iterator[tuple[str, list[Pair[Sample]]]]:
    kept = headline(pairs)
    yield "headline", kept
    yield "seen", [p for p in kept if p.before.answer_seen]
    yield "unseen", [p for p in kept if not p.before.answer_seen]
    yield "all", list(pairs)


def _controls(
    treatment: Treatment,
    treatments: Sequence[Treatment],
    pairs: Mapping[str, Mapping[str, list[Pair[Sample]]]],
) -> list[list[Pair[Sample]]]:
    """Pairs on the treatment's own concept under each random mask of its size."""
    assert treatment.concept is not None
    return [
        headline(pairs[control.id][treatment.concept])
        for control in treatments
        if control.method == RANDOM and control.k == treatment.k
    ]


def _row(
    treatment: Treatment, pairs: Mapping[str, list[Pair[Sample]]], controls: Sequence[list[Pair[Sample]]]
) -> Row:
    assert treatment.concept is not None and treatment.k is not None
    target = delta_of(headline(pairs[treatment.concept]))
    others = {name: headline(members) for name, members in pairs.items() if name != treatment.concept}
    others = {name: members for name, members in others.items() if members}
    return Row(
        method=treatment.method,
        concept=treatment.concept,
        k=treatment.k,
        target=target,
        off_target=mean(delta_of(members).delta for members in others.values()) if others else float("nan"),
        off_target_interval=mean_delta_interval(others),
        random=mean(delta_of(members).delta for members in controls) if controls else float("nan"),
        n_random=len(controls),
    )


def write_report(directory: str | Path, report: Report) -> list[Path]:
    """Write `recall.csv` and `recall.md`, and with masks `summary.csv`, `deltas.csv` and heat maps.

    Returns:
        The files written, in that order; a heat map for each method and size.
    """
    directory = Path(directory)
    recall, table = directory / "recall.csv", directory / "recall.md"
    _write_csv(recall, [_recall_record(row) for row in report.recalls])
    with atomic_write(table) as file:
        file.write(recall_markdown(report.recalls))
    if not report.rows:
        return [recall, table]
    summary, cells = directory / "summary.csv", directory / "deltas.csv"
    _write_csv(summary, [_row_record(row) for row in report.rows])
    _write_csv(cells, [_cell_record(cell) for cell in report.cells])
    return [recall, table, summary, cells, *_write_heat_maps(directory, report)]


def _write_csv(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, records[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.6f}" if isinstance(value, float) else value for key, value in record.items()}
            for record in records
        )


def _recall_record(row: Recall) -> dict[str, Any]:
    return {
        "relation": row.relation,
        "language": row.language,
        "n": row.n,
        "recall": row.recall,
        "recall_low": row.interval.low,
        "recall_high": row.interval.high,
        "majority": row.majority,
    }


def _row_record(row: Row) -> dict[str, Any]:
    return {
        "method": row.method,
        "concept": row.concept,
        "k": row.k,
        "n": row.target.n,
        "recall_baseline": row.target.before,
        "recall_baseline_low": row.target.before_interval.low,
        "recall_baseline_high": row.target.before_interval.high,
        "recall": row.target.after,
        "recall_low": row.target.after_interval.low,
        "recall_high": row.target.after_interval.high,
        "target_delta": row.target.delta,
        "target_delta_low": row.target.delta_interval.low,
        "target_delta_high": row.target.delta_interval.high,
        "off_target_delta": row.off_target,
        "off_target_delta_low": row.off_target_interval.low,
        "off_target_delta_high": row.off_target_interval.high,
        "random_delta": row.random,
        "random_masks": row.n_random,
    }


def _cell_record(cell: Cell) -> dict[str, Any]:
    delta = cell.delta
    return {
        "treatment": cell.treatment.id,
        "method": cell.treatment.method,
        "masked": cell.treatment.concept or "",
        "fraction": cell.treatment.fraction,
        "k": cell.treatment.k,
        "seed": "" if cell.treatment.seed is None else cell.treatment.seed,
        "evaluated": cell.evaluated,
        "facts": cell.facts,
        "n": delta.n,
        "recall_baseline": delta.before,
        "recall": delta.after,
        "recall_low": delta.after_interval.low,
        "recall_high": delta.after_interval.high,
        "delta": delta.delta,
        "delta_low": delta.delta_interval.low,
        "delta_high": delta.delta_interval.high,
        "loss": delta.loss,
        "loss_low": delta.loss_interval.low,
        "loss_high": delta.loss_interval.high,
        "gain": delta.gain,
        "gain_low": delta.gain_interval.low,
        "gain_high": delta.gain_interval.high,
        "answer_logprob_change": delta.logprob,
    }


def recall_table(report: Report) -> Table:
    """The baseline's recall, for the terminal."""
    from rich.table import Table

    table = Table(title="recall without any mask", caption="majority: what one constant answer would recall")
    for column in ("relation", "lang", "facts", "recall", "majority"):
        table.add_column(column, justify="left" if column in ("relation", "lang") else "right")
    for row in report.recalls:
        table.add_row(
            row.relation,
            row.language,
            str(row.n),
            f"{row.recall:.2f} {_bounds(row.interval)}",
            f"{row.majority:.2f}",
        )
    return table


def method_tables(report: Report) -> list[Table]:
    """A table for each method and mask size, for the terminal."""
    from rich.table import Table

    tables = []
    for method, k in sorted({(row.method, row.k) for row in report.rows}):
        rows = [row for row in report.rows if (row.method, row.k) == (method, k)]
        table = Table(
            title=f"{method}: {k:,} units off",
            caption="recall on facts whose answer cannot be copied from the subject; [95 % interval]\n"
            f"random: mean of {rows[0].n_random} masks with the same layers, illustrative, no interval",
        )
        for column in (
            "masked relation",
            "facts",
            "recall before",
            "after",
            "target Δ",
            "off-target Δ",
            "random Δ",
        ):
            table.add_column(column, justify="left" if column == "masked relation" else "right", no_wrap=True)
        for row in rows:
            table.add_row(
                row.concept,
                str(row.target.n),
                f"{row.target.before:.2f} {_bounds(row.target.before_interval)}",
                f"{row.target.after:.2f} {_bounds(row.target.after_interval)}",
                f"{row.target.delta:+.2f} {_bounds(row.target.delta_interval)}",
                f"{row.off_target:+.2f} {_bounds(row.off_target_interval)}",
                f"{row.random:+.2f}" if row.n_random else "–",
            )
        tables.append(table)
    return tables


def _bounds(interval: Interval) -> str:
    return f"[dim]\\[{interval.low:.2f}, {interval.high:.2f}][/dim]"


def _write_heat_maps(directory: Path, report: Report) -> list[Path]:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("heat maps need matplotlib; install relbench-lm[plots]") from error
    matplotlib.use("Agg")
    written = []
    for method, k in sorted({(row.method, row.k) for row in report.rows}):
        path = directory / f"heatmap-{method}-k{k}.png"
        _heat_map(path, report, method, k)
        written.append(path)
    return written


def _heat_map(path: Path, report: Report, method: str, k: int) -> None:
    """Masked concept × evaluated concept, coloured by the change of recall; random masks below."""
    import matplotlib.pyplot as plt
    import numpy as np

    cells = [
        cell
        for cell in report.cells
        if cell.facts == "headline" and cell.treatment.k == k and cell.treatment.method in (method, RANDOM)
    ]
    masked = list(dict.fromkeys(c.treatment.concept for c in cells if c.treatment.concept))
    evaluated = list(dict.fromkeys(cell.evaluated for cell in cells))
    # A mask without a row of its own evaluation sits after those that have one.
    evaluated.sort(key=lambda name: masked.index(name) if name in masked else len(masked))
    rows = [*masked, RANDOM]
    values = np.full((len(rows), len(evaluated)), np.nan)
    for i, name in enumerate(rows):
        for j, other in enumerate(evaluated):
            deltas = [
                c.delta.delta
                for c in cells
                if c.evaluated == other and (c.treatment.concept or RANDOM) == name
            ]
            if deltas:
                values[i, j] = mean(deltas)
    size = 0.62 * len(evaluated) + 3.6
    figure, axes = plt.subplots(figsize=(size + 0.8, 0.5 * len(rows) + 3.0), layout="constrained")
    image = axes.imshow(values, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    labels = _labels([*rows, *evaluated])
    axes.set_xticks(range(len(evaluated)), [labels[name] for name in evaluated], rotation=40, ha="right")
    axes.set_yticks(range(len(rows)), [labels[name] for name in rows])
    axes.axhline(len(masked) - 0.5, color="black", linewidth=1)
    for i in range(len(rows)):
        for j in range(len(evaluated)):
            if not np.isnan(values[i, j]):
                dark = abs(values[i, j]) > 0.6
                axes.text(
                    j, i, f"{values[i, j]:+.2f}", ha="center", va="center", fontsize=8,
                    color="white" if dark else "black",
                )  # fmt: skip
    axes.set_xlabel("evaluated relation")
    axes.set_ylabel("masked relation")
    axes.set_title(f"Change of recall with {k:,} units off\n{method}", loc="left", fontsize=11)
    figure.colorbar(image, ax=axes, label="change of recall", shrink=0.9)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, dpi=150, format="png", metadata={"Software": None})
    plt.close(figure)


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Concepts in words; the language only where there are several."""
    languages = {name.rpartition("@")[2] for name in names if name != RANDOM}
    words = {}
    for name in names:
        relation, _, language = name.rpartition("@")
        words[name] = relation.replace("_", " ") + (f" ({language})" if len(languages) > 1 else "")
    return {**words, RANDOM: "random masks (mean)"}
