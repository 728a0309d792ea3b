"""Facts that become right when units are off: the largest gains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relbench.reports.figures import style
from relbench.reports.figures.dots import ROW, Dots, dot_plot, handles
from relbench.reports.figures.named import Named
from relbench.tables import Table
from relbench.treatments import TOP_K

Row = Mapping[str, Any]

_PAIR = ("masked", "masked_language", "relation", "language")
# Rows of a panel.
MOST = 15


def draw(table: Table) -> Iterator[Named]:
    """`interference`, a panel for each method with its largest gains."""
    rows = [row for row in table.rows if row["selection"] == TOP_K and row["masked"] is not None]
    if rows:
        yield Named("interference", _figure(rows))


def _figure(rows: Sequence[Row]) -> Any:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    chosen = {}
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        # A gain of one fact of one is no large gain.
        own.sort(
            key=lambda row: (-row["gained"], -row["gain_interval"].low, row["treatment"], row["relation"])
        )
        # Of several sizes and modes of a mask that which gains most facts.
        pairs: dict[tuple[str, ...], Row] = {}
        for row in own:
            pairs.setdefault(tuple(row[key] for key in _PAIR), row)
        chosen[method] = (list(pairs.values())[:MOST], len(pairs))
    n_rows, n_columns = style.grid_of(len(methods), 2)
    longest = max(len(one) for one, _ in chosen.values())
    figure, axes = style.panels(n_rows, n_columns, width=5.6, height=ROW * longest + 0.7, extra=1.2)
    flat = [one for row in axes for one in row]
    several = {key: len({row[key] for row in rows}) > 1 for key in ("language", "k", "mode", "positions")}
    shown: Sequence[Dots] = ()
    for number, (one, method) in enumerate(zip(flat, methods, strict=False)):
        own, every = chosen[method]
        shown = (
            Dots(
                "gain",
                "#0072B2",
                "o",
                False,
                [row["gain"] for row in own],
                [row["gain_interval"] for row in own],
            ),
            Dots(
                "gain under random masks (mean)",
                style.GREY,
                "s",
                True,
                [row["random_gain"] for row in own],
                [None] * len(own),
            ),
        )
        dot_plot(one, [_label(row, several) for row in own], shown)
        one.set_xlim(-0.03, 1.03)
        left_out = f"\n{len(own)} of {every}, most facts first" if every > len(own) else ""
        one.set_title(f"{style.method_name(method)}{left_out}")
        if number + n_columns >= len(methods):
            one.set_xlabel("gain")
    for one in flat[len(methods) :]:
        one.set_visible(False)
    style.title(
        figure,
        "Interference: share of the facts wrong at baseline that become right\n"
        "masked relation → evaluated relation, units, and numbers of facts",
    )
    style.figure_legend(figure, handles(shown))
    return figure


def _label(row: Row, several: Mapping[str, bool]) -> str:
    masked, evaluated = style.words(row["masked"]), style.words(row["relation"])
    if several["language"]:
        masked, evaluated = f"{masked} ({row['masked_language']})", f"{evaluated} ({row['language']})"
    what = [f"{row['k']:,}"] if several["k"] else []
    what += [row[key] for key in ("mode", "positions") if several[key]]
    return f"{masked} → {evaluated}{', ' if what else ''}{', '.join(what)}  {row['gained']}/{row['wrong']}"
