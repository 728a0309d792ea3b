"""`relbench demo`: the main job on an embedded model."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--model", default="smollm2-135m", show_default=True, help="Embedded model, hub id or local path."
)
@click.option("--quick", is_flag=True, help="Two relations and a few facts, in about two minutes.")
@click.option(
    "--out", type=click.Path(), help="Sweep directory  [default: a folder of runs/ named by the options]"
)
@click.option("--shots", type=click.IntRange(0), help="Few-shot examples of the evaluation  [default: 5]")
@click.option("--fractions", help="Mask sizes as shares of all act units, comma-separated  [default: 0.01]")
def demo(model: str, quick: bool, out: str | None, shots: int | None, fractions: str | None) -> None:
    """Score units for each English relation two ways, mask the top ones, and show how recall changes.

    A sweep on a packaged config and its report; run again, it reuses what it has.
    """
    import json
    import time
    from importlib.resources import files
    from pathlib import Path

    import yaml

    from interventions.errors import UserError
    from interventions.files import sha256_json
    from relbench.commands.report import show_report
    from relbench.models import EMBEDDED, pull
    from relbench.sweep import run_sweep
    from relbench.sweep_config import SweepConfig

    packaged = files("relbench") / "configs" / ("demo-quick.yaml" if quick else "demo.yaml")
    raw = yaml.safe_load(packaged.read_text(encoding="utf-8"))
    raw["model"] = model
    if shots is not None:
        raw["shots"] = shots
    if fractions is not None:
        try:
            raw["fractions"] = [float(part) for part in fractions.split(",")]
        except ValueError as error:
            raise UserError(f"--fractions takes numbers such as 0.01,0.03, not {fractions!r}") from error
    config = SweepConfig.from_dict(raw, "demo")
    if model in EMBEDDED:
        pull(model)
    if out is None:
        # Other options are another sweep, and should not be refused in the folder of the first.
        name = "demo-quick" if quick else "demo"
        out = f"runs/{name}-{Path(model).name}-{sha256_json(config.to_dict())[:8]}"
    started = time.perf_counter()
    directory = run_sweep(config, out)
    show_report(directory)
    spent = json.loads((directory / "run.json").read_text())["seconds"]
    click.echo(
        f"this call took {time.perf_counter() - started:.0f} s; the sweep's computing "
        + ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in spent.items())
    )
