"""The boards as Markdown, for those who read them where the repository is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import isinf
from typing import Any
from urllib.parse import quote

from relbench.leaderboards import words
from relbench.leaderboards.boards import Boards, MethodEntry, ModelEntry, TransferMatrix, where
from relbench.leaderboards.inert import markdown
from relbench.leaderboards.submission import Submission
from relbench.reports.formats import show
from relbench.tables import Interval

_HEAD = """\
# relbench leaderboards

Where language models keep relations: which scoring method finds the most selective units, which model recalls
what, and what units found in one language do in another. Every number here is computed from the samples of a
submission under [`results/`](results), and `relbench leaderboard verify` recomputes them all.

This file, [`tables/`](tables) and [`site/`](site) are made by `relbench leaderboard build`: change nothing in
them by hand. `relbench leaderboard serve` shows the site, where tables can be sorted and filtered and every row
opens to the command that reproduces it. To add an entry, read [CONTRIBUTING.md](CONTRIBUTING.md).
"""

# Columns of a table: heading, whether it is read as numbers.
_Heading = tuple[str, bool]


def readme(boards: Boards) -> str:
    """`leaderboards/README.md`."""
    parts = [_HEAD, _contents(boards)]
    parts += ["## Methods\n", words.METHODS + "\n", words.RANKS + "\n"]
    parts += _methods(boards) or [_NONE]
    parts += ["## Models\n", words.MODELS + "\n"]
    parts += _models(boards.models) or [_NONE]
    parts += ["## Transfer\n", words.TRANSFER + "\n"]
    parts += list(map(_matrix, boards.matrices)) or [_NONE]
    return "\n".join(parts)


_NONE = "There are no entries yet.\n"


def _contents(boards: Boards) -> str:
    names = ", ".join(f"[`{name}.csv`](tables/{name}.csv)" for name in _CSVS)
    n = len(boards.submissions)
    return f"{n} submission{'' if n == 1 else 's'}. The same as data: {names}.\n"


_CSVS = ("methods", "relations", "models", "transfer")


def _methods(boards: Boards) -> list[str]:
    parts = []
    for section, entries in boards.methods.items():
        parts.append(
            f"### {markdown(section.model.name)}, {markdown(words.kinds(section.kinds))}\n\n"
            f"{markdown(words.revision(section.model))}; data version {markdown(section.data_version)}: "
            f"{len(section.relations)} relations in {markdown(', '.join(section.languages))}; "
            f"{markdown(words.question(section.asked))}; {markdown(words.deed(section))}; "
            f"mask sizes {markdown(words.sizes(section))} of the FFN neurons.\n"
        )
        for language, members in groupby(entries, lambda entry: entry.language):
            group = list(members)
            if len({entry.language for entry in entries}) > 1:
                parts.append(f"**{markdown(words.language(language))}**\n")
            parts.append(_method_table(group))
    return parts


def _method_table(entries: Sequence[MethodEntry]) -> str:
    headings = [
        ("rank", True),
        ("method", False),
        ("off-target loss at 50 % target loss", True),
        ("95 %", True),
        ("mean selectivity", True),
        ("95 %", True),
        ("random masks: target loss", True),
        ("off-target relations (targets)", False),
        ("scoring", True),
        ("scores", True),
        ("submission", False),
    ]
    return _table(headings, [_method_cells(entry) for entry in entries])


def _method_cells(entry: MethodEntry) -> list[str]:
    method = entry.method
    return [
        str(entry.rank),
        f"*{markdown(entry.name)}*" if method is None else markdown(entry.name),
        words.rank_values(entry.off_target_at_half),
        _reached(entry.off_target_at_half_interval),
        words.selectivity(entry.mean_selectivity),
        show(entry.mean_selectivity_interval, "interval", "delta"),
        show(entry.random_loss, "share"),
        markdown(entry.basis) + (f" ({entry.targets})" if entry.targets else ""),
        show(method.seconds if method else None, "seconds"),
        show(method.bytes if method else None, "bytes"),
        _link(entry.submission),
    ]


def _reached(interval: Interval | None) -> str:
    """The interval, unless hardly any draw reaches half: the estimate beside it says so already."""
    return "–" if interval is None or isinf(interval.low) else show(interval, "interval", "share")


def _models(entries: Sequence[ModelEntry]) -> list[str]:
    parts = []
    for language, members in groupby(entries, lambda entry: entry.task.language):
        group = list(members)
        models = sorted({entry.model for entry in group})
        headings = [
            ("relation", False),
            ("facts", True),
            ("most common answer", True),
            *((f"{markdown(model.name)} {markdown(f'({words.revision(model)})')}", True) for model in models),
        ]
        tasks = groupby(group, lambda entry: entry.task)
        rows = [_task_cells(list(recalls), models) for _, recalls in tasks]
        parts += [f"### {markdown(language)}\n", _table(headings, rows)]
    return parts


def _task_cells(entries: Sequence[ModelEntry], models: Sequence[Any]) -> list[str]:
    task = entries[0].task
    recalls = {
        model: "; ".join(_recall(entry) for entry in entries if entry.model == model) for model in models
    }
    return [
        f"{markdown(task.relation)} <sub>{markdown(task.hash[:6])}</sub>",
        str(task.n),
        show(entries[0].majority, "share"),
        *(recalls[model] or "–" for model in models),
    ]


def _recall(entry: ModelEntry) -> str:
    place = f" ({entry.rank})" if entry.rank.number is not None else ""
    return f"{show(entry.recall, 'share')} {show(entry.interval, 'interval', 'share')}{place}"


def _matrix(matrix: TransferMatrix) -> str:
    first = matrix.first
    size = show(first.k, "count")
    share = "" if first.fraction is None else f" ({words.percent(first.fraction)})"
    head = (
        f"### {markdown(first.submission.model.id.name)}: {markdown(first.method.id)}\n\n"
        f"{size} units{markdown(share)}; data version {markdown(first.submission.data_version)}; "
        f"{_link(first.submission)}.\n"
    )
    headings = [("found in ↓ tested in →", False), *((markdown(code), True) for code in matrix.languages)]
    rows = [
        [markdown(found), *(_cell(matrix, found, tested) for tested in matrix.languages)]
        for found in matrix.languages
    ]
    return f"{head}\n{_table(headings, rows)}"


def _cell(matrix: TransferMatrix, found: str, tested: str) -> str:
    cell = matrix.cells.get((found, tested))
    return "–" if cell is None else f"{show(cell.loss, 'share')} ({cell.relations})"


def _link(submission: Submission) -> str:
    path = f"results/{where(submission)}.json"
    return f"[{markdown(submission.id)}]({quote(path)})"


def _table(headings: Sequence[_Heading], rows: Iterable[Sequence[str]]) -> str:
    return "".join(_lines(headings, rows))


def _lines(headings: Sequence[_Heading], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(name for name, _ in headings)} |\n"
    yield f"| {' | '.join('--:' if numeric else ':--' for _, numeric in headings)} |\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"
