"""The boards as flat tables: one row an entry, with everything that it should not be compared across."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from relbench.leaderboards.boards import (
    Asked,
    Boards,
    MethodEntry,
    ModelEntry,
    ModelName,
    RelationEntry,
    Section,
    TransferEntry,
    model_name,
    where,
)
from relbench.leaderboards.inert import csv_text
from relbench.leaderboards.submission import Method, Submission
from relbench.tables import Column, Table, make_table

_MODEL = (
    Column("model", "model", "text"),
    Column("revision", "revision", "text"),
    Column("weights", "fingerprint of the weights", "text"),
    Column("dtype", "type of numbers", "text"),
)
_ASKED = (
    Column("protocol", "protocol", "count"),
    Column("template", "template", "text"),
    Column("shots", "few-shot examples", "count"),
    Column("shots_seed", "seed of their choice", "count"),
    Column("split", "facts", "text"),
)
_SECTION = (
    *_MODEL,
    Column("kinds", "unit kinds", "text"),
    Column("data", "data version", "text"),
    *_ASKED,
    Column("mode", "what is done to the units", "text"),
    Column("positions", "at which positions", "text"),
)
_METHOD = (
    Column("method", "method", "text"),
    Column("scores", "kind of scores", "text"),
    Column("preset", "preset", "text"),
    Column("tuned_on", "tuned on", "text"),
)
_SUBMISSION = (
    Column("submission", "submission", "text"),
    Column("submitter", "submitter", "text"),
    Column("licence", "licence", "text"),
)
_SIZE = (
    Column("fraction", "share of all FFN neurons", "share"),
    Column("k", "units", "count"),
)


def board_tables(boards: Boards) -> tuple[Table, ...]:
    """All boards as tables, also those without rows."""
    return (
        _methods(boards),
        _relations(boards),
        _models(boards),
        _transfer(boards),
    )


def csv_file(table: Table) -> str:
    """A table as CSV: text that computes nothing, six significant digits, an interval in two columns.

    A bound that was not reached is `inf`; what is not there is empty.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for column in table.columns for name in _csv_names(column)])
    for row in table.rows:
        writer.writerow(
            [cell for column in table.columns for cell in _csv_cells(row[column.key], column.kind)]
        )
    return out.getvalue()


def _csv_names(column: Column) -> list[str]:
    return [f"{column.of}_low", f"{column.of}_high"] if column.kind == "interval" else [column.key]


def _csv_cells(value: Any, kind: str) -> list[str]:
    if kind == "interval":
        low, high = (None, None) if value is None else value
        return [*_csv_cells(low, "number"), *_csv_cells(high, "number")]
    if value is None:
        return [""]
    if kind == "text":
        return [csv_text(str(value))]
    if kind == "flag":
        return ["true" if value else "false"]
    return [f"{value:.6g}" if isinstance(value, float) else str(value)]


def _interval(of: str) -> Column:
    return Column(f"{of}_interval", "95 % interval", "interval", of=of)


def _methods(boards: Boards) -> Table:
    return make_table(
        "methods",
        "Methods",
        "Scoring methods: off-target loss at 50 % target loss.",
        (
            *_SECTION,
            Column("language", "masks of which language", "text"),
            Column("rank", "rank", "count"),
            *_METHOD,
            Column("off_target_at_half", "off-target loss at 50 % target loss", "share"),
            _interval("off_target_at_half"),
            Column("reached", "draws that reach 50 %", "share"),
            Column("k_at_half", "units there", "number"),
            Column("mean_selectivity", "mean selectivity", "delta"),
            _interval("mean_selectivity"),
            Column("random_loss", "target loss of random masks", "share"),
            Column("basis", "off-target relations are", "text"),
            Column("targets", "masked relations", "count"),
            Column("seconds", "seconds of scoring", "seconds"),
            Column("bytes", "bytes of scores", "bytes"),
            *_SUBMISSION,
        ),
        [_method_row(section, entry) for section, entries in boards.methods.items() for entry in entries],
    )


def _method_row(section: Section, entry: MethodEntry) -> Iterator[Any]:
    yield from _section_values(section)
    yield entry.language
    yield entry.rank.number
    yield from _method_values(entry.method, entry.name)
    yield entry.off_target_at_half
    yield entry.off_target_at_half_interval
    yield entry.reached
    yield entry.k_at_half
    yield entry.mean_selectivity
    yield entry.mean_selectivity_interval
    yield entry.random_loss
    yield entry.basis
    yield entry.targets
    yield entry.method.seconds if entry.method else None
    yield entry.method.bytes if entry.method else None
    yield from _submission_values(entry.submission)


def _relations(boards: Boards) -> Table:
    return make_table(
        "relations",
        "Methods, relation by relation",
        "Target loss and off-target loss of every mask.",
        (
            *_SECTION,
            Column("relation", "masked relation", "text"),
            Column("language", "its language", "text"),
            *_METHOD,
            *_SIZE,
            Column("target_loss", "target loss", "share"),
            _interval("target_loss"),
            Column("off_target_loss", "off-target loss", "share"),
            _interval("off_target_loss"),
            Column("selectivity", "selectivity", "delta"),
            _interval("selectivity"),
            Column("random_selectivity", "selectivity of random masks", "delta"),
            *_SUBMISSION,
        ),
        [_relation_row(section, entry) for section, entries in boards.relations.items() for entry in entries],
    )


def _relation_row(section: Section, entry: RelationEntry) -> Iterator[Any]:
    yield from _section_values(section)
    yield entry.relation
    yield entry.language
    yield from _method_values(entry.method, entry.method.id)
    yield entry.fraction
    yield entry.k
    yield entry.target_loss
    yield entry.target_loss_interval
    yield entry.off_target_loss
    yield entry.off_target_loss_interval
    yield entry.selectivity
    yield entry.selectivity_interval
    yield entry.random_selectivity
    yield from _submission_values(entry.submission)


def _models(boards: Boards) -> Table:
    return make_table(
        "models",
        "Models",
        "Recall without any mask.",
        (
            Column("relation", "relation", "text"),
            Column("language", "language", "text"),
            Column("task", "hash of the task", "text"),
            *_ASKED,
            Column("rank", "rank", "count"),
            *_MODEL,
            Column("n", "facts", "count"),
            Column("recall", "recall", "share"),
            _interval("recall"),
            Column("majority", "most common answer", "share"),
            Column("testable", "testable", "flag"),
            *_SUBMISSION,
        ),
        [_model_row(entry) for entry in boards.models],
    )


def _model_row(entry: ModelEntry) -> Iterator[Any]:
    yield entry.task.relation
    yield entry.task.language
    yield entry.task.hash
    yield from _asked_values(entry.task.asked)
    yield entry.rank.number
    yield from _model_values(entry.model)
    yield entry.task.n
    yield entry.recall
    yield entry.interval
    yield entry.majority
    yield entry.testable
    yield from _submission_values(entry.submissions[0])


def _transfer(boards: Boards) -> Table:
    return make_table(
        "transfer",
        "Transfer",
        "Units found in one language, recall in another.",
        (
            *_MODEL,
            Column("data", "data version", "text"),
            *_METHOD,
            Column("kinds", "unit kinds", "text"),
            Column("mode", "what is done to the units", "text"),
            Column("positions", "at which positions", "text"),
            *_SIZE,
            Column("relation", "relation", "text"),
            Column("found", "language found", "text"),
            Column("tested", "language tested", "text"),
            Column("loss", "loss there", "share"),
            _interval("loss"),
            Column("own_loss", "loss in the language found", "share"),
            Column("native_loss", "loss under the units found there", "share"),
            *_SUBMISSION,
        ),
        [_transfer_row(entry) for entry in boards.transfer],
    )


def _transfer_row(entry: TransferEntry) -> Iterator[Any]:
    yield from _model_values(model_name(entry.submission))
    yield entry.submission.data_version
    yield from _method_values(entry.method, entry.method.id)
    yield " ".join(sorted(entry.method.kinds))
    yield entry.mode
    yield entry.positions
    yield entry.fraction
    yield entry.k
    yield entry.relation
    yield entry.found
    yield entry.tested
    yield entry.loss
    yield entry.loss_interval
    yield entry.own_loss
    yield entry.native_loss
    yield from _submission_values(entry.submission)


def _section_values(section: Section) -> tuple[Any, ...]:
    return (
        *_model_values(section.model),
        " ".join(section.kinds),
        section.data_version,
        *_asked_values(section.asked),
        section.mode,
        section.positions,
    )


def _model_values(model: ModelName) -> Sequence[Any]:
    return tuple(model)


def _asked_values(asked: Asked) -> Sequence[Any]:
    return tuple(asked)


def _method_values(method: Method | None, name: str) -> Sequence[Any]:
    return (name, method.name, method.preset, method.tuned_on) if method else (name, None, None, None)


def _submission_values(submission: Submission) -> Sequence[Any]:
    return (where(submission), submission.submitter.name, submission.licence)
