"""`relbench report`: tables and figures from a sweep directory."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("directory", type=click.Path())
def report(directory: str) -> None:
    """Print the tables of a sweep DIRECTORY and write CSV files and heat maps into it."""
    show_report(Path(directory))


def show_report(directory: Path) -> None:
    """Print a sweep's tables, and write and name its files."""
    from relbench.console import console
    from relbench.report import make_report, method_tables, recall_table, write_report

    made = make_report(directory)
    terminal = console()
    for table in method_tables(made) or [recall_table(made)]:
        terminal.print(table)
    for path in write_report(directory, made):
        click.echo(f"wrote {path}")
    click.echo(f"samples: {directory / 'samples.jsonl'}")
