"""`relbench compare`: paired deltas of two lm-eval runs with logged samples."""

from __future__ import annotations

import click


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
        title="Paired change", caption="loss: share of right answers that became wrong; gain: the reverse"
    )
    for column in ("task", "metric", "samples", "base", "masked", "Δ [95 % interval]", "loss", "gain"):
        table.add_column(column, justify="left" if column in ("task", "metric") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.task,
            row.metric,
            str(row.n),
            f"{row.before:.4f}",
            f"{row.after:.4f}",
            f"{row.delta:+.4f} [dim]\\[{row.interval.low:+.3f}, {row.interval.high:+.3f}][/dim]",
            "" if row.loss is None else f"{row.loss:.3f}",
            "" if row.gain is None else f"{row.gain:.3f}",
        )
    console().print(table)
    for remark in remarks:
        click.echo(f"note: {remark}")
