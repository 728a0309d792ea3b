"""What the model says instead of lost answers: shares of classes, stacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relbench.analysis.continuations import CLASSES
from relbench.reports.figures import style
from relbench.reports.figures.named import Named, file_name
from relbench.tables import Table
from relbench.treatments import RANDOM, TOP_K

Row = Mapping[str, Any]

# Light and dark by turns, and hatched.
_FILLS = (("#0072B2", ""), ("#E69F00", "//"), ("#56B4E9", ".."), ("#333333", ""), ("#dddddd", "xx"))


def draw(table: Table) -> Iterator[Named]:
    """`continuations`: bars for each method and size, the masked relation beside others."""
    rows = [row for row in table.rows if row["flip"] == "lost" and row["selection"] == TOP_K]
    for parts, title, members in style.split(rows, ("mode", "positions")):
        yield Named(file_name("continuations", parts), _figure(title, members))


def _figure(title: str, rows: Sequence[Row]) -> Any:
    bars = sorted(
        {(row["method"] == RANDOM, row["method"], row["k"] or 0) for row in rows},
    )
    figure, axes = style.panels(1, 2, width=3.4, height=0.27 * len(bars) + 0.6, share=True, extra=1.3)
    figure.set_size_inches(figure.get_figwidth() + 2.6, figure.get_figheight())
    shown = {}
    for one, on_target in zip(axes[0], (True, False), strict=True):
        for place, (_, method, k) in enumerate(bars):
            own = [
                row
                for row in rows
                if (row["method"], row["k"] or 0) == (method, k)
                and (row["masked"] == row["relation"]) == on_target
            ]
            facts = sum(row["n"] for row in own)
            if not facts:
                continue
            left = 0.0
            for name, (color, hatch) in zip(CLASSES, _FILLS, strict=True):
                share = sum(row["n"] * row[name.replace(" ", "_")] for row in own) / facts
                bar = one.barh(
                    place,
                    share,
                    left=left,
                    color=color,
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0.5,
                    height=0.8,
                )
                shown[name] = bar
                left += share
            one.text(1.02, place, f"{facts:,}", va="center", fontsize=7)
        one.set_title("the masked relation" if on_target else "other relations (of random masks: all)")
        one.set_xlabel("share of lost facts (at the right: their number)")
        one.set_xlim(0, 1)
    axes[0][0].set_yticks(range(len(bars)), [f"{style.method_name(m)}, {k:,} units" for _, m, k in bars])
    axes[0][0].set_ylim(len(bars) - 0.4, -0.6)
    style.title(figure, f"What the model says in the place of an answer that it lost{title}")
    style.figure_legend(figure, shown)
    return figure
