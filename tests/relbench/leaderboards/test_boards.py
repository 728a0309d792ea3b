"""Boards: ranks by hand and as properties, and what meets on a board and what must not."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relbench.leaderboards.boards import MethodEntry, make_boards
from relbench.leaderboards.ranking import Score, ranks
from relbench.leaderboards.submission import Submission
from relbench.tables import Interval
from tests.relbench.leaderboards.entries import english, method, two_languages


def _score(value: float | None, low: float, high: float) -> Score:
    return Score(value, Interval(low, high))


def test_ranks_by_hand() -> None:
    scores = [
        _score(0.15, 0.1, 0.2),
        _score(0.2, 0.15, 0.3),
        _score(0.3, 0.25, 0.4),
        _score(0.9, 0.8, inf),
        _score(None, inf, inf),
        _score(None, 0.1, inf),
        Score(0.05, None),
    ]
    # The second overlaps the first and the third; only the first lies wholly below the third. What is not reached
    # competes with its interval; what has none is not ranked and pushes nobody back.
    assert [str(rank) for rank in ranks(scores)] == ["1=", "1=", "2", "4=", "4=", "1=", "–"]


def test_higher_can_be_better() -> None:
    scores = [_score(0.9, 0.8, 0.95), _score(0.5, 0.3, 0.7), _score(0.85, 0.7, 0.9)]
    assert [rank.number for rank in ranks(scores, lower_is_better=False)] == [1, 2, 1]


_SCORES = st.lists(
    st.one_of(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(
            lambda three: _score(sorted(three)[1], min(three), max(three))
        ),
        st.just(_score(None, inf, inf)),
    ),
    min_size=1,
    max_size=8,
)


@given(_SCORES, st.randoms())
def test_ranks_depend_on_no_order_and_never_favour_what_is_worse_beyond_doubt(
    scores: list[Score], random: object
) -> None:
    found = [rank.number or 0 for rank in ranks(scores)]
    assert min(found) == 1
    assert [rank.number for rank in ranks(scores[::-1])] == found[::-1]
    for score, number in zip(scores, found, strict=True):
        for other, beside in zip(scores, found, strict=True):
            assert score.interval is not None and other.interval is not None
            if score.value is not None and score.interval.high < other.interval.low:
                assert number < beside


def _entries(*submissions: Submission) -> list[MethodEntry]:
    (entries,) = make_boards(submissions).methods.values()
    return list(entries)


def test_methods_stand_with_their_numbers_and_the_random_control_unranked_below() -> None:
    good, poor, random = _entries(english())
    assert [entry.name for entry in (good, poor, random)] == ["good", "poor", "random"]
    assert (str(good.rank), str(poor.rank), str(random.rank)) == ("1", "2", "–")
    # Half of the target is lost at 10 units already, and a fifth of that off it: 3 of 30 facts.
    assert good.off_target_at_half == pytest.approx(3 / 30)
    assert poor.off_target_at_half is None
    assert good.mean_selectivity == pytest.approx(((0.5 - 0.1) + (1.0 - 0.2)) / 2)
    assert good.random_loss == mean(point.target for point in random.points) == 0.0
    assert [(point.k, point.target) for point in good.points] == [(10, 0.5), (30, 1.0)]
    assert (good.method and good.method.seconds, good.basis) == (12.5, "held-out")


def test_languages_are_ranked_by_themselves() -> None:
    found = [(entry.language, entry.name, str(entry.rank)) for entry in _entries(two_languages())]
    assert found == [
        (language, name, rank)
        for language in ("all", "de", "en")
        for name, rank in (("good", "1"), ("random", "–"))
    ]


def test_another_laboratory_is_ranked_among_the_first() -> None:
    again = replace(english(), id="again")
    entries = _entries(english(), again)
    assert [str(entry.rank) for entry in entries] == ["1=", "1=", "3=", "3=", "–", "–"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"data_version": "0" * 16}, id="data"),
        pytest.param({"protocol": 2}, id="rules"),
        pytest.param({"methods": (method("good", kinds=("gate", "up")), method("poor"))}, id="unit kinds"),
        pytest.param({"config": {"shots_seed": 1}}, id="shots"),
        pytest.param({"config": {"concepts": ["country_capital@en"]}}, id="masked"),
        pytest.param({"config": {"fractions": [0.5]}}, id="sizes"),
        pytest.param({"model": {"fingerprint": "0" * 64}}, id="weights"),
        pytest.param({"dtype": "bfloat16"}, id="type of numbers"),
        pytest.param(
            {"methods": (method("good", contrast_relations=("thing_color",)), method("poor"))}, id="contrast"
        ),
    ],
)
def test_what_differs_in_anything_but_the_method_is_another_section(other: dict[str, object]) -> None:
    first = english()
    changes = dict(other)
    if "config" in changes:
        changes["config"] = {**first.config, **changes["config"]}  # type: ignore[dict-item]
    if "model" in changes:
        identity = replace(first.model.id, **changes["model"])  # type: ignore[arg-type]
        changes["model"] = replace(first.model, id=identity)
    if "dtype" in changes:
        changes["model"] = replace(first.model, dtype=str(changes.pop("dtype")))
    second = replace(first, id="second", **changes)  # type: ignore[arg-type]
    sections = make_boards([first, second]).methods
    assert len(sections) == 2
    for entries in sections.values():
        good = [entry for entry in entries if entry.name == "good"]
        assert len(good) <= 1
        assert all(str(entry.rank) == "1" for entry in good)


def test_recalls_meet_on_the_same_task_only_and_agreeing_submissions_are_one_entry() -> None:
    first, second = english(), two_languages()
    again = replace(first, id="again")
    entries = make_boards([first, again, second]).models
    capitals = [entry for entry in entries if entry.task.relation == "country_capital"]
    assert [(entry.task.language, entry.model.name, str(entry.rank)) for entry in capitals] == [
        ("de", "org/other", "1"),
        ("en", "made-up", "1="),
        ("en", "org/other", "1="),
    ]
    assert [one.id for one in capitals[1].submissions] == ["again", "english"]
    assert (capitals[0].recall, capitals[1].recall) == (24 / 30, 1.0)
    changed = replace(
        second, tasks={name: replace(task, hash="0" * 64) for name, task in second.tasks.items()}
    )
    capitals = [e for e in make_boards([first, changed]).models if e.task.relation == "country_capital"]
    assert [str(entry.rank) for entry in capitals] == ["1", "1", "1"]


def test_recalls_that_contradict_each_other_both_stand() -> None:
    first = english()
    rows = [{**row, "recall": 0.5, "recall_interval": Interval(0.3, 0.7)} for row in first.table("recall")]
    other = replace(first, id="other", results={**first.results, "recall": rows})
    capitals = [e for e in make_boards([first, other]).models if e.task.relation == "country_capital"]
    assert [(entry.recall, str(entry.rank), len(entry.submissions)) for entry in capitals] == [
        (1.0, "1", 1),
        (0.5, "2", 1),
    ]


def test_transfer_is_the_mean_over_relations() -> None:
    boards = make_boards([two_languages()])
    assert [matrix.first.k for matrix in boards.matrices] == [10, 30]
    matrix = boards.matrices[1]
    assert matrix.languages == ("de", "en")
    rows = [
        row
        for row in two_languages().table("transfer")
        if row["k"] == 30 and (row["masked_language"], row["language"]) == ("en", "de")
    ]
    assert matrix.cells["en", "de"] == (pytest.approx(mean(row["loss"] for row in rows)), 4)
    # A mask loses all of its own facts in its own language, and the first half of them in the other: of the German
    # ones the first 6 of 30 were not known anyway.
    assert matrix.cells["en", "en"].loss == matrix.cells["de", "de"].loss == 1.0
    assert matrix.cells["en", "de"].loss == pytest.approx((15 - 6) / 24)
    assert matrix.cells["de", "en"].loss == pytest.approx(15 / 30)


def test_a_submission_stands_on_the_boards_that_it_is_for_and_no_other() -> None:
    boards = make_boards([replace(two_languages(), boards=("models",))])
    assert boards.models
    assert not (boards.methods or boards.relations or boards.transfer or boards.matrices)


def test_tables_of_any_content_make_boards() -> None:
    """What passes the schema may still be nonsense; `verify` says so, and boards do not break."""
    rows = [{"method": "good", "language": 3, "off_target_at_half": "high", "mean_selectivity": True}]
    results = {name: rows for name in ("recall", "methods", "curves", "masks", "transfer")}
    boards = make_boards([replace(english(), results=results, config={"relations": 1, "fractions": "all"})])
    ((entry,),) = boards.methods.values()
    assert (entry.off_target_at_half, entry.mean_selectivity, str(entry.rank)) == (None, None, "–")
