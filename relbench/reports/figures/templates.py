"""The same masks, asked in another way: loss against loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relbench.reports.figures import style
from relbench.reports.figures.named import Named
from relbench.tables import Table

Row = Mapping[str, Any]


def draw(table: Table) -> Iterator[Named]:
    """`templates`, a panel for each template and number of few-shot examples, a point a mask."""
    rows = [row for row in table.rows if row["loss"] is not None and row["main_loss"] is not None]
    if rows:
        yield Named("templates", _figure(rows, style.looks(table.column("method"))))


def _figure(rows: Sequence[Row], look: Mapping[str, style.Look]) -> Any:
    panels = list(dict.fromkeys((row["template"], row["shots"]) for row in rows))
    n_rows, n_columns = style.grid_of(len(panels), 3)
    figure, axes = style.panels(
        n_rows, n_columns, width=4.6 if len(panels) == 1 else 3.3, height=3.1, share=True, extra=1.3
    )
    flat = [one for row in axes for one in row]
    sizes = sorted({row["k"] for row in rows})
    shown: dict[str, Any] = {}
    for number, (one, (template, shots)) in enumerate(zip(flat, panels, strict=False)):
        (same,) = one.plot([0, 1], [0, 1], color="#b0b0b0", linewidth=0.8, zorder=1)
        shown.setdefault("the same loss", same)
        for method in look:
            own = [r for r in rows if (r["template"], r["shots"], r["method"]) == (template, shots, method)]
            for row in own:
                one.plot(
                    row["main_loss"],
                    row["loss"],
                    color=look[method].color,
                    marker=look[method].marker,
                    markersize=3.5 + 3 * (sizes.index(row["k"]) + 1) / len(sizes),
                    markeredgecolor="white",
                    markeredgewidth=0.5,
                    alpha=0.85,
                    linestyle="none",
                )
            if own:
                shown.setdefault(
                    style.method_name(method), style.method_handle(look[method]._replace(line="none"), method)
                )
        one.set_title(f"{template}, {shots} few-shot example{'' if shots == 1 else 's'}")
        if number % n_columns == 0:
            one.set_ylabel("loss, asked this way")
        if number + n_columns >= len(panels):
            one.set_xlabel("loss, as asked elsewhere")
            one.tick_params(labelbottom=True)
    for one in flat[len(panels) :]:
        one.set_visible(False)
    flat[0].set_xlim(-0.03, 1.03)
    flat[0].set_ylim(-0.03, 1.03)
    style.title(
        figure,
        "Loss of masked relations when asked in another way\na marker a mask, larger for more units",
    )
    style.figure_legend(figure, shown)
    return figure
