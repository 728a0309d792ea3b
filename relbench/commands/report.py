"""`relbench report`: tables, figures and a page from a sweep directory."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("directory", type=click.Path())
def report(directory: str) -> None:
    """Print what a sweep DIRECTORY found, and write deltas, tables, figures and a page into it.

    deltas.csv and deltas.parquet have every mask on every relation; tables/ everything else as CSV, Markdown and
    LaTeX; figures/ SVG and PNG; report.html all of it, to open in a browser.
    """
    show_report(Path(directory))


def show_report(directory: Path) -> None:
    """Print a sweep's tables, and write and name its files."""
    from relbench.console import console
    from relbench.findings import make_findings
    from relbench.reports.terminal import terminal_tables
    from relbench.reports.write import write_report

    findings = make_findings(directory)
    terminal = console()
    for table in terminal_tables(findings):
        terminal.print(table)
    written = write_report(directory, findings)
    for place, paths in _by_place(directory, written).items():
        click.echo(f"wrote {place}" + (f" ({len(paths)} files)" if len(paths) > 1 else ""))
    click.echo(f"samples: {directory / 'samples.jsonl'}")


def _by_place(directory: Path, written: list[Path]) -> dict[str, list[Path]]:
    """Files of the directory itself by name, those of a folder together."""
    places: dict[str, list[Path]] = {}
    for path in written:
        inside = path.parent != directory
        places.setdefault(f"{path.parent}/" if inside else str(path), []).append(path)
    return places
