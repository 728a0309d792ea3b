"""`relbench leaderboard`: submissions from sweeps, their verification, and the boards made from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

_ROOT = "leaderboards"


@click.group()
def leaderboard() -> None:
    """Add sweeps to the leaderboards, and check that every number there comes from its samples."""


@leaderboard.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--root", type=click.Path(path_type=Path), default=_ROOT, show_default=True, help="Leaderboards folder."
)
@click.option("--name", required=True, help="Who submits.")
@click.option("--link", default="", help="http(s) address of the submitter, their paper or their code.")
@click.option(
    "--licence", required=True, help="Licence of the submission, an SPDX identifier such as CC-BY-4.0."
)
@click.option("--id", "identifier", default="", help="Its name  [default: made from the directory's].")
@click.option(
    "--board",
    "boards",
    multiple=True,
    type=click.Choice(["methods", "models", "transfer"]),
    help="A board that it is for; may be given again  [default: all whose rules it keeps].",
)
@click.option(
    "--tuned-on",
    multiple=True,
    metavar="METHOD=tune|nothing",
    help="What a method's settings were chosen on; may be given again  [default: what its preset says].",
)
@click.option("--mask-url", help="Where the masks can be had: the address of a folder that holds masks/.")
@click.option("--created", default="", metavar="YYYY-MM-DD", help="Day of the submission  [default: today].")
def add(
    directory: Path,
    root: Path,
    name: str,
    link: str,
    licence: str,
    identifier: str,
    boards: tuple[str, ...],
    tuned_on: tuple[str, ...],
    mask_url: str | None,
    created: str,
) -> None:
    """Make a submission from a finished sweep DIRECTORY.

    It is verified before anything is put in place; what would not pass is said, and nothing is added.
    """
    from interventions.errors import UserError
    from relbench.leaderboards.add import NotAdded, Statement
    from relbench.leaderboards.add import add as make

    tuned = {}
    for item in tuned_on:
        method, equals, split = item.partition("=")
        if not equals or split not in ("tune", "nothing"):
            raise UserError(f"--tuned-on takes METHOD=tune or METHOD=nothing, not {item!r}")
        tuned[method] = split
    statement = Statement(name, link, licence, identifier, boards, tuned, mask_url, created)
    try:
        path = make(directory, root, statement, progress=_say)
    except NotAdded as refused:
        click.echo("relbench: error: the submission is not added", err=True)
        _refuse([str(problem) for problem in refused.problems])
    click.echo(f"added {path}")


@leaderboard.command()
@click.argument("root", type=click.Path(path_type=Path), default=_ROOT)
@click.option(
    "--rerun", type=click.IntRange(1), metavar="N", help="Also evaluate N samples of each submission again."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which N samples.")
@click.option("--model", help="Checkpoint to evaluate with, in place of a cached embedded model.")
@click.option(
    "--masks",
    type=click.Path(path_type=Path),
    help="Folder that holds masks/, such as a sweep directory  [default: a mask's url below ROOT].",
)
def verify(root: Path, rerun: int | None, seed: int, model: str | None, masks: Path | None) -> None:
    """Check every submission under ROOT: form, hashes, tasks, grids, duplicates, and every number from its samples.

    All problems are printed, one a line; the exit status is 2 when there are any.
    """
    from interventions.errors import UserError
    from relbench.leaderboards.rerun import rerun as evaluate_again
    from relbench.leaderboards.verify import verify as check

    if rerun is None and (model is not None or masks is not None):
        raise UserError("--model and --masks are for --rerun N")
    found = check(root, progress=_say)
    problems = [*found.problems]
    if rerun is not None:
        # What does not verify is not run: its masks and config may be anything.
        wrong = {problem.file for problem in problems}
        good = [
            one
            for one in found.submissions
            if one.path and one.path.relative_to(root).as_posix() not in wrong
        ]
        again = evaluate_again(good, root, rerun, seed=seed, model=model, masks=masks, progress=_say)
        problems += again.problems
        for note in again.notes:
            click.echo(note)
        click.echo(f"{again.checked} samples evaluated again")
    if problems:
        _refuse([str(problem) for problem in problems])
    n = len(found.submissions)
    click.echo(f"{n} submission{'s' * (n != 1)} verified")


@leaderboard.command()
@click.argument("submission", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="The config's file.")
def config(submission: Path, out: Path) -> None:
    """Write the config that makes a SUBMISSION's sweep again, for `relbench sweep`."""
    import yaml

    from interventions.errors import UserError
    from interventions.files import atomic_write
    from relbench.leaderboards.checks import parsed_config
    from relbench.leaderboards.submission import read_submission

    read = read_submission(submission, submission.name)
    if isinstance(read, list):
        raise UserError(str(read[0]))
    made = parsed_config(read)
    if isinstance(made, list):
        raise UserError(f"{submission.name}: {made[0].field}: {made[0].what}")
    with atomic_write(out) as file:
        yaml.safe_dump(made.to_dict(), file, sort_keys=False, allow_unicode=True)
    click.echo(f"wrote {out}")


def _say(what: str) -> None:
    """Progress, for people only."""
    if sys.stderr.isatty():
        click.echo(what, err=True)


def _refuse(problems: list[str]) -> NoReturn:
    """Print problems, one a line, and stop with the status of a user's mistake."""
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(2)
