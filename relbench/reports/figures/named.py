"""A figure and its file name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Named(NamedTuple):
    """A figure.

    Attributes:
        name: Its file name without ending; begins with the name of the table that it shows.
        figure: What is drawn.
    """

    name: str
    figure: Figure


def file_name(table: str, parts: Iterable[str]) -> str:
    """A file name from a table's name and what tells its figures apart."""
    kept = "".join(c if c.isalnum() or c in "-._" else "-" for c in "-".join([table, *parts]))
    return kept
