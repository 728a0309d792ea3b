"""What a model recalls without any mask, beside what one constant answer would recall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relbench.analysis.intervals import proportion_interval
from relbench.languages import LANGUAGES
from relbench.samples import BASELINE, Sample
from relbench.tables import Interval


@dataclass(frozen=True)
class Recall:
    """Recall of one relation in one language, over all facts.

    Attributes:
        relation, language: Which.
        n: Number of facts.
        recall: Share of facts whose greedy continuation is an accepted answer.
        interval: Its Clopper–Pearson interval.
        majority: Share of the most common canonical answer.
    """

    relation: str
    language: str
    n: int
    recall: float
    interval: Interval
    majority: float


def recalls(samples: Iterable[Sample]) -> list[Recall]:
    """Recall of every relation and language among the baseline samples, sorted by relation."""
    grouped: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.intervention == BASELINE:
            grouped.setdefault((sample.relation, sample.language), []).append(sample)
    return [_recall(relation, language, members) for (relation, language), members in sorted(grouped.items())]


def _recall(relation: str, language: str, samples: Sequence[Sample]) -> Recall:
    n, right = len(samples), sum(sample.recall for sample in samples)
    common = Counter(sample.answer_id for sample in samples).most_common(1)[0][1]
    interval = proportion_interval(right, n)
    assert interval is not None
    return Recall(relation, language, n, right / n, interval, common / n)


def recall_markdown(rows: Sequence[Recall]) -> str:
    """A Markdown table: a relation a row, a language a column, and the majority baseline.

    The majority is over canonical answers and so the same in every language.
    """
    languages = [code for code in LANGUAGES if any(row.language == code for row in rows)]
    found = {(row.relation, row.language): row for row in rows}
    lines = [
        f"| relation | facts | {' | '.join(languages)} | majority |",
        f"|---|---:|{'---:|' * len(languages)}---:|",
    ]
    for relation in sorted({row.relation for row in rows}):
        own = [found[relation, code] for code in languages if (relation, code) in found]
        cells = [
            f"{found[relation, code].recall:.2f}" if (relation, code) in found else "" for code in languages
        ]
        lines.append(f"| {relation} | {own[0].n} | {' | '.join(cells)} | {own[0].majority:.2f} |")
    means = [
        sum(row.recall for row in rows if row.language == code) / sum(row.language == code for row in rows)
        for code in languages
    ]
    lines.append(f"| **mean** | | {' | '.join(f'**{value:.2f}**' for value in means)} | |")
    return "\n".join(lines) + "\n"
