"""A table made up for tests: every kind of column, and cells that formats must guard against."""

from __future__ import annotations

from math import inf

from relbench.tables import Column, Interval, Table, make_table

NASTY = [
    '=HYPERLINK("http://example.org")',
    " +1+1",
    "@SUM(1)",
    "-2",
    "a | b",
    "*_x_* <b> [c](d) `e` ~~f~~ $g$ & # \\ {h} ^ %",
    "two\nlines",
    "東京, «Paris»",
    "[1]",
    "m.country_capital@en.k20",
]


def made_up() -> Table:
    """One row for each text of `NASTY`."""
    return make_table(
        "made_up",
        "A title with 50 % & more",
        "A caption: a_b, <c>.",
        (
            Column("text", "text & more", "text"),
            Column("mode", "mode", "text"),
            Column("n", "number", "count"),
            Column("loss", "loss", "share"),
            Column("loss_interval", "95 % interval", "interval", of="loss"),
            Column("delta", "change", "delta"),
            Column("expected", "by chance", "number"),
            Column("expected_interval", "their middle 95 %", "interval", of="expected"),
            Column("p", "p", "p"),
            Column("testable", "testable", "flag"),
            Column("empty", "never there", "share"),
        ),
        [
            (
                text,
                "zero",
                1000 + i,
                i / 7,
                Interval(i / 8, inf) if i else None,
                -i / 7,
                float(i),
                Interval(0.0, 2.0 * i),
                10.0**-i,
                i % 2 == 0,
                None,
            )
            for i, text in enumerate(NASTY)
        ],
    )
