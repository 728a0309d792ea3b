"""Target loss against off-target loss, a line a method: what else is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relbench.analysis.curve import ALL_LANGUAGES, AT
from relbench.reports.figures import style
from relbench.reports.figures.named import Named
from relbench.tables import Table
from relbench.treatments import RANDOM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`curves`, a panel for each mode and positions; with several languages `curves-languages`, a panel each."""
    rows = table.rows
    whole = [row for row in rows if row["language"] == ALL_LANGUAGES]
    if whole:
        yield _figure("curves", whole, lambda row: style.variant_name(row["mode"], row["positions"]), rows)
    apart = [row for row in rows if row["language"] != ALL_LANGUAGES]
    if apart:
        yield _figure(
            "curves-languages",
            apart,
            lambda row: (
                f"{style.language_name(row['language'])}\n{style.variant_name(row['mode'], row['positions'])}"
            ),
            rows,
        )


def _figure(name: str, rows: Sequence[Row], panel: Any, every: Sequence[Row]) -> Named:
    by_panel: dict[str, list[Row]] = {}
    for row in rows:
        by_panel.setdefault(panel(row), []).append(row)
    look = style.looks(row["method"] for row in every)
    n_rows, n_columns = style.grid_of(len(by_panel), 3)
    single = len(by_panel) == 1
    size = 4.8 if single else 3.3
    figure, axes = style.panels(n_rows, n_columns, width=size, height=size, share=True, extra=1.3)
    most = max(_reach(row["off_target_loss"], row["off_target_loss_interval"]) for row in rows)
    top = min(1.02, max(0.3, most + 0.03))
    handles: dict[str, Any] = {}
    flat = [one for row in axes for one in row]
    for one, (title, members) in zip(flat, by_panel.items(), strict=False):
        one.set_title(title)
        _panel(one, members, look, handles)
        one.set_xlim(-0.02, 1.02)
        one.set_ylim(-0.02 * top, top)
    for one in flat[len(by_panel) :]:
        one.set_visible(False)
    for number, one in enumerate(flat[: len(by_panel)]):
        if number % n_columns == 0:
            one.set_ylabel("off-target loss (mean over other relations)")
        if number + n_columns >= len(by_panel):
            one.set_xlabel("target loss")
            one.tick_params(labelbottom=True)
    sizes = list(dict.fromkeys(_size(row) for row in sorted(rows, key=lambda row: row["k"])))
    style.title(
        figure,
        "What else is lost on the way to the target's loss\n"
        f"{_sizes(sizes)}\nthin lines and grey boxes: 95 % intervals",
    )
    style.figure_legend(figure, handles)
    return Named(name, figure)


def _panel(axes: Axes, rows: Sequence[Row], look: Mapping[str, style.Look], handles: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    (diagonal,) = axes.plot([0, 1], [0, 1], color="#b0b0b0", linewidth=0.8, zorder=1)
    handles.setdefault("as much off target as on it", diagonal)
    axes.axvline(AT, color="#b0b0b0", linewidth=0.8, linestyle=":", zorder=1)
    for method in sorted({row["method"] for row in rows}, key=list(look).index):
        members = sorted((row for row in rows if row["method"] == method), key=lambda row: row["k"])
        color, marker, line = look[method]
        x = [0.0, *(row["target_loss"] for row in members)]
        y = [0.0, *(row["off_target_loss"] for row in members)]
        is_random = method == RANDOM
        axes.plot(
            x, y, color=color, linestyle=line, linewidth=3 if is_random else 1.4, zorder=2 if is_random else 4
        )
        for number, row in enumerate(members):
            on, off = row["target_loss_interval"], row["off_target_loss_interval"]
            where = (row["target_loss"], row["off_target_loss"])
            if is_random and on is not None and off is not None:
                band = Rectangle((on.low, off.low), on.high - on.low, off.high - off.low)
                band.set(facecolor=color, alpha=0.2, linewidth=0, zorder=1.5)
                axes.add_patch(band)
            elif not is_random:
                if on is not None:
                    axes.plot(on, [where[1]] * 2, color=color, linewidth=0.7, alpha=0.5, zorder=3)
                if off is not None:
                    axes.plot([where[0]] * 2, off, color=color, linewidth=0.7, alpha=0.5, zorder=3)
            axes.plot(
                *where,
                color=color,
                marker=marker,
                markersize=4 + 5 * (number + 1) / len(members),
                markeredgecolor="white",
                markeredgewidth=0.6,
                zorder=5,
            )
        handles.setdefault(style.method_name(method), style.method_handle(look[method], method))


def _reach(value: float, interval: Any) -> float:
    return value if interval is None else max(value, interval.high)


def _size(row: Row) -> str:
    return f"{row['k']:,} units" if row["fraction"] is None else style.percent(row["fraction"])


def _sizes(sizes: Sequence[str]) -> str:
    if len(sizes) == 1:
        return f"masks of {sizes[0]} of the FFN neurons" if "%" in sizes[0] else f"masks of {sizes[0]}"
    named = ", ".join(sizes) if len(sizes) <= 3 else f"{sizes[0]} … {sizes[-1]}"
    return f"markers grow with the mask: {named}"
