"""Heat maps with a number in each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relbench.reports.formats import show
from relbench.tables import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches of a cell.
CELL = 0.42


def heat_map(
    axes: Axes,
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    cmap: str,
    limits: tuple[float, float],
    kind: Kind | None,
    text: Callable[[int, int], str] | None = None,
) -> Any:
    """Draw values [row][column]; where there is none the cell is hatched.

    Args:
        axes: Where.
        values: Of the cells.
        rows, columns: Their labels.
        cmap: Name of the colour map.
        limits: Values at its ends.
        kind: How values are written into cells; None writes none.
        text: What else a cell says (row, column) → text, in the place of its value.

    Returns:
        The image, for a colour bar.
    """
    import numpy as np

    array = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=float)
    axes.patch.set(facecolor="#ececec", edgecolor="#b5b5b5", hatch="////", linewidth=0)
    image = axes.imshow(array, cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(-0.5, len(columns)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(rows)), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if kind is None:
        return image
    colors = image.to_rgba(array)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value is None:
                continue
            shade = _luminance(colors[i, j])
            axes.text(
                j,
                i,
                text(i, j) if text else _short(value, kind),
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if shade < 0.45 else "black",
            )
    return image


def _short(value: float, kind: Kind) -> str:
    """Two decimals, however small."""
    return show(round(value, 2) + 0.0, kind)


def _luminance(color: Any) -> float:
    red, green, blue = color[:3]
    return float(0.299 * red + 0.587 * green + 0.114 * blue)
