"""`relbench planted`: write the planted model, its prompts and the truth about its units."""

from __future__ import annotations

import click


@click.command()
@click.option("-o", "--out", required=True, type=click.Path(file_okay=False), help="Folder to make.")
@click.option("--noise", default=0.5, show_default=True, help="Blur of the units; 0 is exact.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of facts and noise.")
@click.option("--subjects", default=200, show_default=True, help="Number of subjects.")
def planted(out: str, noise: float, seed: int, subjects: int) -> None:
    """Write a tiny Llama, built by hand, in which it is known which units carry which relation.

    The folder holds a checkpoint in `model/`, the prompts (`prompts.jsonl`, split by split), which units were
    planted (`truth.json`), and for each relation a mask of its units (`masks/<relation>.mask`). Score the
    model's `act` units with a method of your own and grade the scores: `relbench grade --scores FILE`.
    """
    import os
    import shutil
    import tempfile
    from pathlib import Path

    from interventions.errors import UserError
    from interventions.planted.facts import Settings

    settings = Settings(noise=noise, seed=seed, subjects=subjects)
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty; name a new folder")

    from interventions.planted.files import write
    from interventions.planted.model import Planted

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: made beside its place, then moved.
    working = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        write(Planted(settings), working)
        working.chmod(0o755)
        os.replace(working, folder)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    click.echo(folder)
