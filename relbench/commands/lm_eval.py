"""`relbench lm-eval`: lm_eval's own command line with the model `relbench` and the probes on its path."""

from __future__ import annotations

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lm_eval(arguments: tuple[str, ...]) -> None:
    """Everything that lm_eval takes, with --model relbench and its intervention arguments."""
    from relbench.lm_eval_cli import run

    run(arguments)
