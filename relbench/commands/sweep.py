"""`relbench sweep`: a baseline and many interventions over probe tasks."""

from __future__ import annotations

import click


@click.command()
@click.argument("config", type=click.Path())
@click.option("-o", "--out", type=click.Path(), help="Sweep directory; an unfinished one is continued.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Who does the work: this process (or torchrun's), or the workers of a Ray cluster.",
)
@click.option(
    "--dry-run", is_flag=True, help="Say what would be done and about how long it takes; write nothing."
)
def sweep(config: str, out: str | None, quiet: bool, executor: str, dry_run: bool) -> None:
    """Run the sweep that CONFIG (YAML) describes and write its report into the directory.

    Under `torchrun --nproc_per_node N -m relbench sweep …` the processes share the work.
    """
    from interventions.errors import UserError
    from interventions.parallel import world
    from relbench.commands.report import show_report
    from relbench.dry_run import describe, estimate
    from relbench.sweep import run_sweep
    from relbench.sweep_config import SweepConfig

    if dry_run:
        made = SweepConfig.from_yaml(config)
        click.echo(describe(estimate(made), made))
        return
    if out is None:
        raise UserError("say where the sweep goes: -o DIR")
    directory = run_sweep(SweepConfig.from_yaml(config), out, progress=not quiet, executor=executor)
    if world().rank == 0:
        show_report(directory)
