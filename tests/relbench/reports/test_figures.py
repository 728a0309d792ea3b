"""Figures: that they draw the numbers of their tables, and can be told apart without colour."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from relbench.reports.figures import curves, deltas, perplexity, style, transfer
from relbench.reports.figures.named import file_name
from relbench.tables import Column, Interval, Kind, Table, make_table

LABELS: dict[str, Kind] = {"k": "count", "fraction": "share", "testable": "flag"}


def _table(name: str, rows: list[dict[str, object]]) -> Table:
    columns = [Column(key, key, LABELS.get(key, "text")) for key in rows[0]]
    return make_table(name, name, "", columns, [list(row.values()) for row in rows])


def test_curves_start_at_nothing_and_go_through_their_points() -> None:
    rows: list[dict[str, object]] = [
        {
            "method": method,
            "mode": "zero",
            "positions": "all",
            "language": "all",
            "fraction": k / 1000,
            "k": k,
            "target_loss": target,
            "target_loss_interval": Interval(target - 0.05, target + 0.05),
            "off_target_loss": off,
            "off_target_loss_interval": None,
        }
        for method, k, target, off in [
            ("a", 20, 0.8, 0.3),
            ("a", 10, 0.4, 0.1),
            ("b", 10, 0.2, 0.2),
            ("random", 10, 0.1, 0.1),
        ]
    ]
    with style.draw_in_style():
        (made,) = curves.draw(_table("curves", rows))
    assert made.name == "curves"
    (axes,) = made.figure.axes
    drawn = [np.column_stack(line.get_data()).tolist() for line in axes.lines]
    assert [[0, 0], [0.4, 0.1], [0.8, 0.3]] in drawn
    assert [[0, 0], [0.2, 0.2]] in drawn
    # The reference, the interval of a point, and where half the target is lost.
    assert [[0, 0], [1, 1]] in drawn
    assert [[pytest.approx(0.75), 0.3], [pytest.approx(0.85), 0.3]] in drawn
    assert [[0.5, 0], [0.5, 1]] in drawn
    labels = [text.get_text() for text in made.figure.legends[0].get_texts()]
    assert labels == ["as much off target as on it", "a", "b", "random masks"]


def test_heat_maps_have_the_target_on_the_diagonal_and_random_masks_below() -> None:
    changes = {("x", "x"): -0.9, ("x", "y"): -0.1, ("y", "x"): 0.2, ("y", "y"): None}
    rows: list[dict[str, object]] = [
        {
            "method": "m" if masked else "random",
            "masked": masked,
            "masked_language": "en" if masked else None,
            "fraction": 0.01,
            "k": 5,
            "mode": "zero",
            "positions": "all",
            "selection": "top-k",
            "relation": relation,
            "language": "en",
            "facts": "headline",
            "delta": changes[masked, relation] if masked else value,
        }
        for masked in ("y", "x", None)
        for relation in ("x", "y")
        for value in ((None,) if masked else (-0.1, -0.3) if relation == "x" else (None, None))
    ]
    with style.draw_in_style():
        (made,) = deltas.draw(_table("deltas", rows))
    assert made.name == "deltas-m"
    axes = made.figure.axes[0]
    image = axes.images[0]
    expected = [[np.nan, 0.2], [-0.1, -0.9], [np.nan, -0.2]]
    np.testing.assert_allclose(image.get_array().filled(np.nan), expected)
    assert image.get_clim() == (-1, 1)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["y", "x"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["y", "x", "random masks (mean)"]
    assert sorted(text.get_text() for text in axes.texts) == sorted(["+.20", "−.10", "−.90", "−.20"])


def test_transfer_is_a_mean_over_relations_and_own_losses_count_once() -> None:
    rows: list[dict[str, object]] = [
        {
            "method": "m",
            "masked": relation,
            "masked_language": "en",
            "fraction": None,
            "k": 5,
            "mode": "zero",
            "positions": "all",
            "language": language,
            "testable": testable,
            "loss": loss,
            "own_loss": own,
        }
        for relation, language, testable, loss, own in [
            ("x", "de", True, 0.2, 0.5),
            ("y", "de", True, 0.4, 0.9),
            ("x", "ja", True, 0.1, 0.5),
            ("y", "ja", False, None, 0.9),
        ]
    ]
    with style.draw_in_style():
        (made,) = transfer.draw(_table("transfer", rows))
    np.testing.assert_allclose(made.figure.axes[0].images[0].get_array(), [[0.7, 0.3, 0.1]])


def test_perplexity_marks_the_geometric_mean() -> None:
    rows: list[dict[str, object]] = [
        {
            "method": "m",
            "masked": "x",
            "k": 5,
            "mode": "zero",
            "positions": "all",
            "selection": "top-k",
            "text": "neutral text",
            "language": "en",
            "ratio": ratio,
            "random_ratio": None,
        }
        for ratio in (2.0, 8.0)
    ]
    with style.draw_in_style():
        (made,) = perplexity.draw(_table("perplexity", rows))
    heights = [line.get_ydata() for line in made.figure.axes[0].lines]
    assert [pytest.approx(4.0)] in [list(height) for height in heights]


def test_methods_can_be_told_apart_without_colour() -> None:
    names = [f"m{i}" for i in range(20)]
    found = style.looks([*names, "random", names[0]])
    assert list(found) == [*names, "random"]
    shapes = [(found[name].marker, str(found[name].line)) for name in names]
    assert len(set(shapes)) == 20
    first = [found[name] for name in names[:8]]
    assert len({look.marker for look in first}) == len({str(look.line) for look in first}) == 8

    def grey(color: str) -> float:
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    # The first, which are most often compared, differ in grey too.
    shades = sorted(grey(look.color) for look in first[:4])
    assert min(b - a for a, b in pairwise(shades)) > 30


def test_file_names_are_names() -> None:
    assert file_name("deltas", ["m/../x y", "en"]) == "deltas-m-..-x-y-en"


def test_figures_split_only_where_there_is_something_to_tell_apart() -> None:
    rows = [{"method": m, "mode": "zero"} for m in ("a", "b", "a")]
    parts = style.split(rows, ("method", "mode"))
    assert [(part.parts, part.title, len(part.rows)) for part in parts] == [
        (("a",), "\na", 2),
        (("b",), "\nb", 1),
    ]
