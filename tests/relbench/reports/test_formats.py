"""How values are shown."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relbench.reports.formats import bounded_kind, show, show_rows
from relbench.tables import Column, Interval, Kind, make_table


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("share", 0.57, ".57"),
        ("share", 1.0, "1.00"),
        ("share", 0.0, ".00"),
        ("share", 0.996, "1.00"),
        ("share", 0.005, ".01"),
        ("share", 0.0028846, ".0029"),
        ("share", 0.003, ".003"),
        ("share", 0.0001, ".0001"),
        ("delta", 9.3e-18, ".00"),
        ("delta", -9.3e-18, ".00"),
        ("delta", 0.12, "+.12"),
        ("delta", -0.12, "−.12"),
        ("delta", -1.0, "−1.00"),
        ("delta", 0.0, ".00"),
        ("delta", -0.004, "−.004"),
        ("logprob", -12.345, "−12.35"),
        ("count", 46080, "46,080"),
        ("number", 461.4, "461"),
        ("number", 12.345, "12.3"),
        ("number", 1.04, "1.04"),
        ("number", 0.0123, "0.012"),
        ("number", 0, "0"),
        ("p", 0.0004, "<.001"),
        ("p", 0.0131, ".013"),
        ("p", 1.0, "1"),
        ("seconds", 3.14, "3.1 s"),
        ("seconds", 221, "3 min 41 s"),
        ("seconds", 3599.7, "1 h 00 min"),
        ("bytes", 999, "999 B"),
        ("bytes", 1500, "1.5 kB"),
        ("bytes", 538_000_000, "538 MB"),
        ("flag", True, "yes"),
        ("flag", False, "no"),
        ("text", "- as it is", "- as it is"),
        ("share", None, "–"),
        ("text", None, "–"),
        ("share", inf, "not reached"),
    ],
)
def test_values(kind: Kind, value: Any, shown: str) -> None:
    assert show(value, kind) == shown


def test_intervals_are_shown_as_what_they_bound() -> None:
    table = make_table(
        "made-up",
        "",
        "",
        (
            Column("loss", "loss", "share"),
            Column("loss_interval", "95 % interval", "interval", of="loss"),
            Column("delta", "change", "delta"),
            Column("delta_interval", "95 % interval", "interval", of="delta"),
            Column("shared", "shared", "number"),
            Column("shared_interval", "95 % interval", "interval", of="shared"),
        ),
        [(0.5, Interval(0.41, 0.72), -0.1, Interval(-0.2, 0.1), 3.0, Interval(0.0, 12.0)), (None,) * 6],
    )
    assert show_rows(table) == [
        [".50", "[.41, .72]", "−.10", "[−.20, +.10]", "3.00", "[0, 12.0]"],
        ["–"] * 6,
    ]
    assert [bounded_kind(table, column) for column in table.columns[::2]] == ["share", "delta", "number"]
    assert show(Interval(0.41, inf), "interval", "share") == "[.41, ∞]"
    assert show(Interval(-0.004, 0.0009), "interval", "delta") == "[.00, .00]"
    assert show(Interval(inf, inf), "interval", "share") == "not reached"


@given(st.floats(-1, 1).filter(lambda value: abs(value) >= 1e-9))
def test_no_change_reads_as_none_and_every_one_has_its_sign(value: float) -> None:
    shown = show(value, "delta")
    assert shown[0] == ("+" if value > 0 else "−")
    assert float(shown.replace("−", "-")) == pytest.approx(value, rel=0.06, abs=0.0050001)
    assert any(digit in "123456789" for digit in shown)
