"""Figures of what a sweep found, one module a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from relbench.reports.figures import (
    bands,
    continuations,
    cumulativity,
    curves,
    deltas,
    interference,
    layers,
    perplexity,
    style,
    sufficiency,
    templates,
    transfer,
    versatility,
)
from relbench.reports.figures.named import Named
from relbench.tables import Table

# Table → its figures, in the order of the report.
DRAWN: dict[str, Callable[[Table], Iterator[Named]]] = {
    "curves": curves.draw,
    "deltas": deltas.draw,
    "cumulativity": cumulativity.draw,
    "bands": bands.draw,
    "versatility": versatility.draw,
    "interference": interference.draw,
    "transfer": transfer.draw,
    "layers": layers.draw,
    "sufficiency": sufficiency.draw,
    "templates": templates.draw,
    "continuations": continuations.draw,
    "perplexity": perplexity.draw,
}


def write_figures(folder: Path, tables: Iterable[Table]) -> list[Path]:
    """Draw what there are tables of, as SVG and PNG.

    Args:
        folder: Where the files go.
        tables: Of findings.

    Returns:
        The files, of each figure the SVG first. A file's name begins with the name of its table.

    Raises:
        ImportError: matplotlib is not installed.
    """
    by_name = {table.name: table for table in tables}
    written = []
    with style.draw_in_style():
        for name, draw in DRAWN.items():
            if name in by_name:
                for figure in draw(by_name[name]):
                    written += style.save(figure.figure, folder / figure.name)
    return written
