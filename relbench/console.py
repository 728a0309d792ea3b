"""The terminal that tables are printed to."""

from __future__ import annotations

from rich.console import Console

# Width of a pipe or file, which has none of its own; tables should not wrap there.
PIPE_WIDTH = 140


def console() -> Console:
    """A console on stdout, wide enough for the tables where stdout is no terminal."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=PIPE_WIDTH)
