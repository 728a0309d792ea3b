"""`relbench leaderboard`: submissions from sweeps, their verification, and the boards made from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

_ROOT = "leaderboards"


@click.group()
def leaderboard() -> None:
    """Submissions from sweeps, their verification, the boards made from them, and other formats."""


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
@click.argument("root", type=click.Path(path_type=Path), default=_ROOT)
def recompute(root: Path) -> None:
    """Make the results of every submission under ROOT again from its samples, after a statistic has changed.

    Nothing but results changes. A submission that does not verify otherwise is left as it is; its problems are
    printed, one a line, and the exit status is 2.
    """
    from relbench.leaderboards.recompute import recompute as again

    done = again(root, progress=_say)
    for path in done.changed:
        click.echo(f"wrote {path}")
    if done.problems:
        _refuse([str(problem) for problem in done.problems])
    if not done.changed:
        click.echo("all results are what the samples give")


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


@leaderboard.command()
@click.argument("root", type=click.Path(path_type=Path), default=_ROOT)
@click.option("--check", is_flag=True, help="Write nothing; fail and name what is stale.")
def build(root: Path, check: bool) -> None:
    """Render the boards under ROOT: README.md, tables/ and site/. The same submissions give the same bytes."""
    from relbench.leaderboards.build import build as render

    built = render(root, check=check)
    if check:
        if built.stale:
            click.echo(f"relbench: error: stale; run `relbench leaderboard build {root}`", err=True)
            _refuse([str(root / name) for name in built.stale])
        click.echo(f"{len(built.files)} files are fresh")
        return
    for name in built.removed:
        click.echo(f"removed {root / name}")
    for name in built.changed:
        click.echo(f"wrote {root / name}")
    if not built.stale:
        click.echo(f"{len(built.files)} files were fresh")


@leaderboard.command()
@click.argument("root", type=click.Path(path_type=Path), default=_ROOT)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
)
def serve(root: Path, port: int) -> None:
    """Show the site under ROOT at 127.0.0.1, for this machine only, until Ctrl-C."""
    from relbench.leaderboards.serve import make_server

    with make_server(root, port) as server:
        click.echo(f"http://{server.server_address[0]!s}:{server.server_port}/  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("")


@leaderboard.command()
@click.argument("submission", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "form",
    required=True,
    type=click.Choice(["model-index", "eval-results", "every-eval-ever"]),
    help="model-index: metadata of a Hugging Face model card; eval-results: a file for .eval_results/; "
    "every-eval-ever: a record of that schema.",
)
@click.option("--dataset", help="With eval-results: the benchmark's dataset on the hub, <org>/<name>.")
@click.option(
    "--relationship",
    type=click.Choice(["first_party", "third_party", "collaborative", "other"]),
    help="With every-eval-ever: of the submitter to the model's developer  [default: third_party].",
)
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def export(submission: Path, form: str, dataset: str | None, relationship: str | None, out: Path) -> None:
    """Write the results of a SUBMISSION in another format."""
    from interventions.errors import UserError
    from interventions.files import atomic_write
    from relbench.leaderboards.exports.every_eval_ever import every_eval_ever
    from relbench.leaderboards.exports.hub import eval_results, model_index
    from relbench.leaderboards.submission import read_submission

    if (dataset is not None) != (form == "eval-results"):
        raise UserError("--dataset belongs to --as eval-results, which needs it")
    if relationship is not None and form != "every-eval-ever":
        raise UserError("--relationship is for --as every-eval-ever")
    read = read_submission(submission, submission.name)
    if isinstance(read, list):
        raise UserError(str(read[0]))
    if form == "model-index":
        text = model_index(read)
    elif dataset is not None:
        text = eval_results(read, dataset)
    else:
        text = every_eval_ever(read, relationship or "third_party")
    with atomic_write(out) as file:
        file.write(text)
    click.echo(f"wrote {out}")


@leaderboard.command()
@click.argument("submission", type=click.Path(path_type=Path))
@click.option("--repo", required=True, metavar="ORG/NAME", help="The dataset on the hub; it must exist.")
@click.option("--pull-request", is_flag=True, help="Propose the commit instead of making it.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@click.option("--yes", is_flag=True, help="Send without asking.")
def push(submission: Path, repo: str, pull_request: bool, dry_run: bool, yes: bool) -> None:
    """Send the files of a SUBMISSION to a dataset on the Hugging Face hub."""
    from relbench.leaderboards.push import push as send
    from relbench.leaderboards.push import uploads

    read, files = uploads(submission)
    for one in files:
        click.echo(f"{one.target}  {one.size:,} bytes")
    if dry_run:
        click.echo(f"nothing is sent to {repo}: --dry-run")
        return
    if not yes:
        click.confirm(f"Send these {len(files)} files to the dataset {repo}?", abort=True)
    click.echo(send(read, files, repo, pull_request=pull_request))


def _say(what: str) -> None:
    """Progress, for people only."""
    if sys.stderr.isatty():
        click.echo(what, err=True)


def _refuse(problems: list[str]) -> NoReturn:
    """Print problems, one a line, and stop with the status of a user's mistake."""
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(2)
