"""Everything that a sweep found, computed from its `sweep.yaml` and `samples.jsonl` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relbench.analysis.delta import SUBSETS, Delta, deltas_of, subsets
from relbench.analysis.runs import Runs, paired_runs
from relbench.analysis.testability import Testability, testability
from relbench.recall import Recall, recalls
from relbench.samples import read_samples
from relbench.sweep_state import read_treatments
from relbench.tables import Column, Table, make_table
from relbench.treatments import Treatment


@dataclass(frozen=True)
class Cell:
    """One treatment on one evaluated concept, over one of the `SUBSETS` of facts."""

    treatment: Treatment
    evaluated: str
    facts: str
    testable: bool
    delta: Delta


@dataclass(frozen=True)
class Findings:
    """What a sweep found.

    Attributes:
        recalls: Recall of the baseline, over all facts.
        testability: Which evaluated concepts are testable.
        cells: Every treatment on every evaluated concept.
        tables: All of it as tables.
    """

    recalls: tuple[Recall, ...]
    testability: tuple[Testability, ...]
    cells: tuple[Cell, ...]
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """The table called `name`.

        Raises:
            KeyError: There is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)


def make_findings(directory: str | Path) -> Findings:
    """Compare every treatment of a finished sweep with its baseline.

    Raises:
        UserError: The directory is no finished sweep, or its samples do not pair.
    """
    directory = Path(directory)
    runs = paired_runs(read_treatments(directory), read_samples(directory / "samples.jsonl"))
    recalled, judged = recalls(runs.baseline), testability(runs.baseline)
    cells = _cells(runs, judged)
    tables = [recall_table(recalled, list(judged.values()))]
    if cells:
        tables.append(cell_table(cells))
    return Findings(tuple(recalled), tuple(judged.values()), tuple(cells), tuple(tables))


def _cells(runs: Runs, judged: dict[str, Testability]) -> list[Cell]:
    groups = [
        (treatment, evaluated, facts, members)
        for treatment in runs.treatments
        for evaluated, pairs in runs.pairs[treatment.id].items()
        for facts, members in subsets(pairs).items()
        if members
    ]
    deltas = deltas_of([members for *_, members in groups])
    return [
        Cell(treatment, evaluated, facts, judged[evaluated].testable, delta)
        for (treatment, evaluated, facts, _), delta in zip(groups, deltas, strict=True)
    ]


def recall_table(recalled: Sequence[Recall], judged: Sequence[Testability]) -> Table:
    """Recall without any mask, and whether a loss could be seen."""
    by_concept = {one.concept: one for one in judged}
    rows = []
    for row in recalled:
        one = by_concept[f"{row.relation}@{row.language}"]
        rows.append(
            (
                row.relation,
                row.language,
                row.n,
                row.recall,
                row.interval,
                row.majority,
                one.n,
                one.right,
                one.recall,
                one.interval,
                one.testable,
                one.why_not,
                one.detectable,
            )
        )
    return make_table(
        "recall",
        "Recall without any mask",
        "Recall over all facts, and over those whose answer cannot be copied from the subject, with "
        "Clopper–Pearson intervals. Most common answer: what one constant answer would recall. Testable: at "
        "least 20 such facts right, and the interval above the most common answer's share. Detectable loss: "
        "the smallest that McNemar's exact test (α = .05) finds with probability .8.",
        (
            Column("relation", "relation", "text"),
            Column("language", "language", "text"),
            Column("n", "facts", "count"),
            Column("recall", "recall", "share"),
            Column("recall_interval", "95 % interval", "interval", of="recall"),
            Column("majority", "most common answer", "share"),
            Column("headline_n", "facts, copyable left out", "count"),
            Column("right", "of these right", "count"),
            Column("headline_recall", "recall, copyable left out", "share"),
            Column("headline_recall_interval", "95 % interval", "interval", of="headline_recall"),
            Column("testable", "testable", "flag"),
            Column("why_not", "why not testable", "text"),
            Column("detectable_loss", "detectable loss", "share"),
        ),
        rows,
    )


def cell_table(cells: Sequence[Cell]) -> Table:
    """Every treatment on every evaluated concept, for each subset of facts."""
    rows = []
    for cell in cells:
        treatment, delta = cell.treatment, cell.delta
        relation, _, language = cell.evaluated.rpartition("@")
        rows.append(
            (
                treatment.id,
                treatment.method,
                treatment.concept,
                treatment.fraction,
                treatment.k,
                treatment.seed,
                relation,
                language,
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
                delta.delta,
                delta.delta_interval,
                delta.loss,
                delta.loss_interval,
                delta.gain,
                delta.gain_interval,
                delta.p,
                delta.logprob,
                delta.logprob_interval,
            )
        )
    named = "; ".join(f"{name}: {what}" for name, what in SUBSETS.items())
    return make_table(
        "deltas",
        "Change of recall under every mask on every relation",
        f"Facts: {named}. Loss: share of the facts right at baseline that become wrong; gain: share of the "
        "wrong that become right. Clopper–Pearson intervals; Newcombe's for the change of recall; Student's "
        "t over subjects for the log probability. p: McNemar's exact test, two-sided, not adjusted.",
        (
            Column("treatment", "mask", "text"),
            Column("method", "method", "text"),
            Column("masked", "masked relation", "text"),
            Column("fraction", "share of units masked", "share"),
            Column("k", "units masked", "count"),
            Column("seed", "seed", "count"),
            Column("relation", "evaluated relation", "text"),
            Column("language", "language", "text"),
            Column("facts", "facts", "text"),
            Column("testable", "testable", "flag"),
            Column("n", "number of facts", "count"),
            Column("right", "right at baseline", "count"),
            Column("lost", "of these lost", "count"),
            Column("gained", "wrong ones gained", "count"),
            Column("recall_before", "recall before", "share"),
            Column("recall_before_interval", "95 % interval", "interval", of="recall_before"),
            Column("recall_after", "recall after", "share"),
            Column("recall_after_interval", "95 % interval", "interval", of="recall_after"),
            Column("delta", "change of recall", "delta"),
            Column("delta_interval", "95 % interval", "interval", of="delta"),
            Column("loss", "loss", "share"),
            Column("loss_interval", "95 % interval", "interval", of="loss"),
            Column("gain", "gain", "share"),
            Column("gain_interval", "95 % interval", "interval", of="gain"),
            Column("p", "p", "p"),
            Column("logprob", "change of answer log probability", "logprob"),
            Column("logprob_interval", "95 % interval", "interval", of="logprob"),
        ),
        rows,
    )
