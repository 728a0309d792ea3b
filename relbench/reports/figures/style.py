"""How figures look: fonts, colours that colour-blind readers tell apart, markers and lines that need no colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from interventions.files import atomic_write
from relbench.analysis.runs import language_of, relation_of
from relbench.languages import LANGUAGES
from relbench.treatments import RANDOM

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#7f7f7f"
# Signed changes: red for losses, blue for gains, white at zero; the numbers in the cells say the same in grey.
DIVERGING = "RdBu"
# Shares: light to dark, also in grey.
SEQUENTIAL = "Blues"

_RC: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "figure.titlesize": 11,
    # The same figure has the same bytes.
    "svg.hashsalt": "relbench",
}


class Look(NamedTuple):
    """How one method is drawn."""

    color: str
    marker: str
    line: Any


# Okabe and Ito's colours, dark and light by turns, each with its own marker and line.
_LOOKS = (
    Look("#0072B2", "o", "-"),
    Look("#E69F00", "s", "--"),
    Look("#000000", "^", "-."),
    Look("#D55E00", "v", (0, (1, 1))),
    Look("#56B4E9", "D", (0, (6, 1.5, 1, 1.5, 1, 1.5))),
    Look("#CC79A7", "P", (0, (8, 2))),
    Look("#009E73", "X", (0, (3, 1))),
    Look("#5D3A9B", "*", (0, (2, 3))),
)


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Method → how it is drawn everywhere; random masks are grey. After eight, colours meet other markers."""
    others = [method for method in dict.fromkeys(methods) if method != RANDOM]
    n = len(_LOOKS)
    found = {
        method: _LOOKS[i % n]._replace(marker=_LOOKS[(i + i // n) % n].marker)
        for i, method in enumerate(others)
    }
    return {**found, RANDOM: Look(GREY, ".", "-")}


def make_figure(width: float, height: float) -> Figure:
    """An empty figure (inches) that lays itself out."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(
    rows: int, columns: int, *, width: float, height: float, share: bool = False, extra: float = 0.6
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels.

    Args:
        rows, columns: How many.
        width, height: Of one panel, in inches.
        share: Whether all have the same axes.
        extra: Height for title and legend, in inches.
    """
    figure = make_figure(columns * width, rows * height + extra)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    return figure, [list(row) for row in axes]


def grid_of(number: int, most: int) -> tuple[int, int]:
    """(rows, columns) for `number` panels, at most `most` beside each other."""
    columns = min(number, most)
    return -(-number // columns), columns


def concept_labels(concepts: Sequence[str]) -> dict[str, str]:
    """`<relation>@<lang>` in words; the language only where there are several."""
    several = len({language_of(concept) for concept in concepts}) > 1
    return {
        concept: words(relation_of(concept)) + (f" ({language_of(concept)})" if several else "")
        for concept in concepts
    }


def words(name: str) -> str:
    """A relation's name for readers."""
    return name.replace("_", " ")


def language_name(code: str) -> str:
    """A language in English."""
    return LANGUAGES[code].name if code in LANGUAGES else code


def method_name(method: str) -> str:
    """A method for readers."""
    return "random masks" if method == RANDOM else method


def size_name(row: Mapping[str, Any]) -> str:
    """A mask's size in a row of a table: the share of all FFN neurons and the number of units."""
    units = f"{row['k']:,} units"
    return units if row["fraction"] is None else f"{percent(row['fraction'])} ({units})"


def percent(share: float) -> str:
    """A share as a percentage without needless digits."""
    return f"{100 * share:.3g} %"


def variant_name(mode: str, positions: str) -> str:
    """What is done to the units, and where, in words."""
    done = "units set to zero" if mode == "zero" else f"mode {mode}"
    return f"{done}, {'all positions' if positions == 'all' else f'positions: {positions}'}"


class Part(NamedTuple):
    """The rows of one figure out of several.

    Attributes:
        parts: What tells it apart, for its file name; empty where there is one figure.
        title: The same in words, to be added to a title.
        rows: Its rows.
    """

    parts: tuple[str, ...]
    title: str
    rows: list[Mapping[str, Any]]


def split(rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> list[Part]:
    """Rows by the values of `keys`, of which those with one value only need not be told apart."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    told = [i for i in range(len(keys)) if len({key[i] for key in groups}) > 1]
    return [
        Part(
            tuple(key[i] for i in told),
            "".join(f"\n{_NAMES[keys[i]](key[i])}" for i in told),
            members,
        )
        for key, members in groups.items()
    ]


_NAMES: dict[str, Callable[[str], str]] = {
    "method": lambda method: method_name(method),
    "masked_language": lambda code: f"masks of {language_name(code)} relations",
    "mode": lambda mode: "units set to zero" if mode == "zero" else f"mode {mode}",
    "positions": lambda positions: f"positions: {positions}",
}


def figure_legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """One legend for all panels, below them, in as many columns as fit beside each other."""
    if handles:
        longest = max(map(len, handles))
        fitting = int(figure.get_figwidth() / (0.075 * longest + 0.55))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=max(1, min(fitting, len(handles))),
        )


def method_handle(look: Look, name: str) -> Any:
    """What stands for a method in a legend."""
    from matplotlib.lines import Line2D

    width = 3 if name == RANDOM else 1.4
    return Line2D([], [], color=look.color, marker=look.marker, linestyle=look.line, linewidth=width)


def title(figure: Figure, text: str) -> None:
    """A figure's title, at its left, in lines that fit."""
    fitting = int(figure.get_figwidth() / 0.083)
    lines = [part for line in text.splitlines() for part in wrap(line, fitting)]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9.5)


def draw_in_style() -> Any:
    """The context that figures are drawn and saved in."""
    import matplotlib

    return matplotlib.rc_context(_RC)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as `<stem>.svg` and `<stem>.png`; the same figure gives the same bytes."""
    written = []
    # Laid out once, which takes longer than drawing does.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        path = stem.with_name(f"{stem.name}.{kind}")
        with atomic_write(path, "wb") as file:
            figure.savefig(file, format=kind, dpi=150, metadata=metadata)
        written.append(path)
    return written
