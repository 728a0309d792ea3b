"""`relbench grade`: a scoring method against the planted model, whose units are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interventions.grading import Grade


@click.command()
@click.argument("methods", nargs=-1, metavar="METHOD...")
@click.option("--scores", "files", multiple=True, help="Grade a scores file made elsewhere; repeat.")
@click.option(
    "--noise",
    "noises",
    multiple=True,
    type=float,
    help="Of the planted model; repeat.  [default: 0, 0.5, 1, 2]",
)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    type=click.IntRange(0),
    help="Of the planted model; repeat.  [default: 0]",
)
@click.option(
    "--k", "ks", multiple=True, type=click.IntRange(1), help="Size of top sets; repeat.  [default: 24]"
)
@click.option("--template", help="completion, paraphrase, question or wordy  [default: the method's own]")
@click.option("--shots", type=click.IntRange(0, 10), help="Few-shot examples  [default: the method's own]")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the method; repeat."
)
@click.option("--by-relation", is_flag=True, help="A row for each relation rather than their mean.")
@click.option("--csv", "csv_file", type=click.Path(dir_okay=False), help="Write the rows as CSV too.")
def grade(
    methods: tuple[str, ...],
    files: tuple[str, ...],
    noises: tuple[float, ...],
    seeds: tuple[int, ...],
    ks: tuple[int, ...],
    template: str | None,
    shots: int | None,
    options: tuple[str, ...],
    by_relation: bool,
    csv_file: str | None,
) -> None:
    """Print precision, recall and AUPRC of each METHOD's act units against what was planted.

    METHOD is a scoring method's name, or `statistics` for all statistical ones. At most 24 units carry a
    relation (32 where some interfere), of 1,024. `confounds` is the share of the top set that fires on one
    answer or on filler words only.
    """
    from tqdm import tqdm

    from interventions.errors import UserError
    from interventions.grading import grade as run_grade
    from interventions.grading import grade_scores
    from interventions.planted.facts import Settings
    from interventions.scores import Scores
    from interventions.statistics import STATISTICS
    from relbench.commands.options import read_options

    names: list[str] = []
    for name in methods:
        names += [*STATISTICS, "random"] if name == "statistics" else [name]
    if not names and not files:
        raise UserError("name a scoring method, or a scores file with --scores")
    settings = [Settings(noise=n, seed=s) for n in noises or (0.0, 0.5, 1.0, 2.0) for s in seeds or (0,)]
    if files and len(settings) > 1 and not (noises and seeds):
        raise UserError("--scores needs the --noise and --seed that the planted model was written with")
    given = read_options(options)
    sizes = tuple(sorted(set(ks))) or (24,)
    grades: list[Grade] = []
    jobs = [(name, one) for name in names for one in settings]
    for name, one in tqdm(jobs, desc="grading", disable=None if len(jobs) > 1 else True, leave=False):
        grades += run_grade(name, one, ks=sizes, template=template, shots=shots, options=given)
    for file in files:
        scores = Scores.load(file)
        for one in settings:
            grades += grade_scores(scores, one, ks=sizes)
    rows = table_rows(grades, by_relation=by_relation)
    _print(rows)
    if csv_file:
        _write(rows, csv_file)


def table_rows(grades: Sequence[Grade], *, by_relation: bool = False) -> list[dict[str, object]]:
    """Rows of the table, each a mapping from column to value: means over seeds, and over relations or not."""
    groups: dict[tuple[str, float, str], list[Grade]] = {}
    for one in grades:
        relation = one.relation if by_relation else "mean"
        groups.setdefault((one.method, one.noise, relation), []).append(one)
    rows = []
    for (method, noise, relation), members in groups.items():
        row: dict[str, object] = {"method": method, "noise": noise, "relation": relation}
        for k in members[0].at:
            for field in ("precision", "recall", "confounds"):
                row[f"{field}@{k}"] = _mean([getattr(member.at[k], field) for member in members])
        row["AUPRC"] = _mean([member.auprc for member in members])
        rows.append(row)
    return rows


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)


def _print(rows: Sequence[dict[str, object]]) -> None:
    from rich.table import Table

    from relbench.console import console

    table = Table(title="Scoring methods on the planted model")
    hidden = {"relation"} if all(row["relation"] == "mean" for row in rows) else set()
    for column in rows[0]:
        if column not in hidden:
            table.add_column(column, justify="left" if column in ("method", "relation") else "right")
    for row in rows:
        table.add_row(*(_cell(column, value) for column, value in row.items() if column not in hidden))
    console().print(table)


def _cell(column: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if column == "noise" else f"{value:.2f}"


def _write(rows: Sequence[dict[str, object]], path: str) -> None:
    import csv

    from interventions.files import atomic_write

    with atomic_write(path) as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
