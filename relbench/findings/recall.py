"""Table of the baseline's recall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relbench.analysis.testability import Testability
from relbench.findings.columns import interval
from relbench.prompts import concept
from relbench.recall import Recall
from relbench.tables import Column, Table, make_table


def recall_table(recalled: Sequence[Recall], judged: Mapping[str, Testability]) -> Table:
    """Recall without any mask, and whether a loss could be seen."""
    rows = []
    for row in recalled:
        one = judged[concept(row.relation, row.language)]
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
            interval("recall"),
            Column("majority", "most common answer", "share"),
            Column("headline_n", "facts, copyable left out", "count"),
            Column("right", "of these right", "count"),
            Column("headline_recall", "recall, copyable left out", "share"),
            interval("headline_recall"),
            Column("testable", "testable", "flag"),
            Column("why_not", "why not testable", "text"),
            Column("detectable_loss", "detectable loss", "share"),
        ),
        rows,
    )
