"""Perplexity under masks over perplexity without, by kind of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from statistics import mean
from typing import TYPE_CHECKING, Any

from relbench.reports.figures import style
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table
from relbench.treatments import RANDOM, TOP_K

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`perplexity`, panels by language and kind of text; mode and positions where there are several."""
    rows = [row for row in table.rows if row["selection"] == TOP_K and row["masked"] is not None]
    look = style.looks(table.column("method"))
    for parts, title, members in style.split(rows, ("mode", "positions")):
        yield Named(file_name("perplexity", parts), _figure(title, members, look))


def _figure(title: str, rows: Sequence[Row], look: Mapping[str, style.Look]) -> Any:
    languages = list(dict.fromkeys(row["language"] for row in rows))
    texts = list(dict.fromkeys(row["text"] for row in rows))
    sizes = sorted({row["k"] for row in rows})
    width = max(2.6, 0.9 * len(sizes))
    figure, axes = style.panels(len(languages), len(texts), width=width, height=2.3, share=True, extra=1.3)
    shown: dict[str, Any] = {}
    for line, language in zip(axes, languages, strict=True):
        for one, text in zip(line, texts, strict=True):
            own = [row for row in rows if (row["language"], row["text"]) == (language, text)]
            _panel(one, own, sizes, look, shown)
            one.set_title(f"{style.language_name(language)}\n{text}" if len(languages) > 1 else text)
        line[0].set_ylabel("perplexity after / before")
    for one in axes[-1]:
        one.set_xlabel("units off")
    axes[0][0].set_yscale("log")
    axes[0][0].set_xticks(range(len(sizes)), [f"{k:,}" for k in sizes])
    axes[0][0].set_xlim(-0.5, len(sizes) - 0.5)
    _plain_ticks(axes[0][0])
    style.title(
        figure, f"Perplexity under masks: a small marker a mask, a large one their geometric mean{title}"
    )
    style.figure_legend(figure, shown)
    return figure


def _panel(
    axes: Axes,
    rows: Sequence[Row],
    sizes: Sequence[int],
    look: Mapping[str, style.Look],
    shown: dict[str, Any],
) -> None:
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    methods = [method for method in look if any(row["method"] == method for row in rows)]
    places = [*methods, RANDOM]
    for place, k in enumerate(sizes):
        for number, method in enumerate(places):
            if method == RANDOM:
                ratios = [r["random_ratio"] for r in rows if r["k"] == k and r["random_ratio"] is not None]
            else:
                ratios = [row["ratio"] for row in rows if (row["method"], row["k"]) == (method, k)]
            if not ratios:
                continue
            x = place + 0.7 * ((number + 0.5) / len(places) - 0.5)
            color, marker, _ = look[method]
            marker = "s" if method == RANDOM else marker
            axes.plot(
                [x] * len(ratios),
                ratios,
                color=color,
                marker=marker,
                markersize=3,
                alpha=0.4,
                linestyle="none",
            )
            middle = exp(mean(log(ratio) for ratio in ratios))
            axes.plot(
                x,
                middle,
                color=color,
                marker=marker,
                markersize=6.5,
                markeredgecolor="white",
                linestyle="none",
            )
            shown.setdefault(
                style.method_name(method), style.method_handle(style.Look(color, marker, "none"), method)
            )


def _plain_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(plain)
