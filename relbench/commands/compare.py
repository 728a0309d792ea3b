"""`relbench compare`: paired deltas of two lm-eval runs with logged samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from relbench.tables import Interval


@click.command()
@click.argument("base", type=click.Path())
@click.argument("masked", type=click.Path())
def compare(base: str, masked: str) -> None:
    """Pair the samples of two lm_eval output folders, BASE and MASKED, and show each metric's change.

    Both runs need --log_samples; their tasks, prompts and data must be the same.
    """
    from rich.table import Table

    from relbench.comparison import compare_runs
    from relbench.console import console

    rows, remarks = compare_runs(base, masked)
    table = Table(
        title="Paired change",
        caption="loss: share of right answers that became wrong; gain: the reverse; [95 % intervals]\n"
        "p: McNemar's exact test where a subject occurs once, else a sign-flip test over subjects",
    )
    for column in ("task", "metric", "samples", "base", "masked", "Δ", "p", "loss", "gain"):
        table.add_column(column, justify="left" if column in ("task", "metric") else "right", no_wrap=True)
    filters = {(row.task, row.filter) for row in rows}
    several = {row.task for row in rows if sum(task == row.task for task, _ in filters) > 1}
    for row in rows:
        table.add_row(
            f"{row.task} ({row.filter})" if row.task in several else row.task,
            row.metric,
            str(row.n),
            f"{row.before:.4f}",
            f"{row.after:.4f}",
            _with_bounds(f"{row.delta:+.4f}", row.interval, "+.3f"),
            f"{row.p:.3f}" if row.p >= 0.001 else "< .001",
            "" if row.loss is None else _with_bounds(f"{row.loss:.3f}", row.loss_interval, ".2f"),
            "" if row.gain is None else _with_bounds(f"{row.gain:.3f}", row.gain_interval, ".2f"),
        )
    console().print(table)
    for remark in remarks:
        click.echo(f"note: {remark}")


def _with_bounds(value: str, interval: Interval | None, form: str) -> str:
    if interval is None:
        return value
    return f"{value} [dim]\\[{interval.low:{form}}, {interval.high:{form}}][/dim]"
