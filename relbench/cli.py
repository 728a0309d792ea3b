"""The `relbench` command: a lazy table of subcommands and the one place where errors become exit codes.

Nothing heavy is imported here, so that `relbench --help` answers at once.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import NoReturn

import click

from interventions.errors import UserError
from relbench import __version__

# name -> ("module:command", one-line help). Help stands here so that listing imports nothing.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("relbench.commands.demo:demo", "Run the main job on an embedded model: a sweep and its report."),
    "models": ("relbench.commands.models:models", "Fetch and list the embedded models."),
    "tasks": ("relbench.commands.tasks:tasks", "List, show, check, build, add and import relation probes."),
    "score": ("relbench.commands.score:score", "Score every unit for relations with one method."),
    "mask": ("relbench.commands.mask:mask", "Make, combine, compare, show, import and export masks."),
    "lm-eval": ("relbench.commands.lm_eval:lm_eval", "lm_eval's own command line with the model `relbench`."),
    "sweep": ("relbench.commands.sweep:sweep", "Baseline and many interventions over tasks, one model load."),
    "report": ("relbench.commands.report:report", "Tables and figures from a sweep directory."),
    "compare": ("relbench.commands.compare:compare", "Paired change between two logged lm-eval runs."),
    "explain": ("relbench.commands.explain:explain", "One prediction: layers, value and query neurons."),
    "planted": ("relbench.commands.planted:planted", "Write the planted model, whose units are known."),
    "grade": ("relbench.commands.grade:grade", "Grade a scoring method against the planted model."),
    "leaderboard": (
        "relbench.commands.leaderboard:leaderboard",
        "Submissions and boards: add, verify, build, serve.",
    ),
    "attribution-table": (
        "relbench.commands.attribution_table:attribution_table",
        "The attribution paper's experiment on any model.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="relbench")
def relbench() -> None:
    """Evaluate where a language model keeps a relation.

    Probes are lm-eval tasks; masks switch neurons off while they run; recall is reported on the
    masked relation, on all others, and under random masks.
    """


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning as a user reads it, without the place in the code that gave it."""
    return f"relbench: warning: {' '.join(str(message).split())}\n"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a `UserError` becomes one line on stderr and exit status 2.

    So does what the system says of a file or a connection: no such folder, permission denied, disk full.
    """
    warnings.formatwarning = _one_line
    try:
        relbench.main(args=arguments, prog_name="relbench", standalone_mode=True)
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        name = error.filename2 or error.filename
        _fail(f"{name}: {error.strerror}" if name and error.strerror else str(error))


def _fail(message: str) -> NoReturn:
    click.echo(f"relbench: error: {' '.join(message.split())}", err=True)
    sys.exit(2)
