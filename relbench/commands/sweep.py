"""`relbench sweep`: a baseline and many interventions over probe tasks."""

from __future__ import annotations

import click


@click.command()
@click.argument("config", type=click.Path())
@click.option(
    "-o", "--out", required=True, type=click.Path(), help="Sweep directory; an unfinished one is continued."
)
@click.option("--quiet", is_flag=True, help="No progress bars.")
def sweep(config: str, out: str, quiet: bool) -> None:
    """Run the sweep that CONFIG (YAML) describes and write its report into the directory."""
    from relbench.commands.report import show_report
    from relbench.sweep import run_sweep
    from relbench.sweep_config import SweepConfig

    show_report(run_sweep(SweepConfig.from_yaml(config), out, progress=not quiet))
