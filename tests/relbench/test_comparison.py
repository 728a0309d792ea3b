"""Two logged runs compared, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interventions.errors import UserError
from relbench.comparison import compare_runs
from relbench.logged import read_logged


def _run(folder: Path, scores: list[float], when: str = "2026-01-01T00-00-00.000000", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "doc_id": number,
            "doc": {"question": f"q{number}"},
            "doc_hash": f"d{number}",
            "prompt_hash": f"p{number}",
            "target_hash": f"t{number}",
            "filter": "none",
            "metrics": ["acc", "margin"],
            "acc": score,
            "margin": 2 * score - 0.5 * number,
            **changes,
        }
        for number, score in enumerate(scores)
    ]
    (folder / f"samples_task_{when}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_by_hand(tmp_path: Path) -> None:
    base, masked = _run(tmp_path / "a", [1, 1, 0, 0]), _run(tmp_path / "b", [1, 0, 1, 1])
    (acc, margin), remarks = compare_runs(base, masked)
    assert remarks == []
    assert (acc.task, acc.metric, acc.n, acc.before, acc.after, acc.delta) == (
        "task",
        "acc",
        4,
        0.5,
        0.75,
        0.25,
    )
    assert (acc.loss, acc.gain) == (0.5, 1.0)
    assert acc.interval.low <= acc.delta <= acc.interval.high
    assert margin.delta == 0.5
    assert (margin.loss, margin.gain) == (None, None)
    assert margin.interval.low <= 0.5 <= margin.interval.high


def test_equal_runs_do_not_differ(tmp_path: Path) -> None:
    base = _run(tmp_path / "a", [1, 0, 1])
    changes, _ = compare_runs(base, base)
    assert [change.delta for change in changes] == [0, 0]
    assert changes[1].interval == (0, 0)


def test_metrics_of_one_run_only_are_reported(tmp_path: Path) -> None:
    base = _run(tmp_path / "a", [1, 0])
    masked = _run(tmp_path / "b", [1, 0], metrics=["acc"])
    changes, remarks = compare_runs(base, masked)
    assert [change.metric for change in changes] == ["acc"]
    assert "margin" in remarks[0]


def test_a_number_that_is_none_is_left_out(tmp_path: Path) -> None:
    base, masked = _run(tmp_path / "a", [1, 0]), _run(tmp_path / "b", [1, float("nan")])
    changes, remarks = compare_runs(base, masked)
    assert "acc" not in {change.metric for change in changes}
    assert any("acc is not a finite number" in remark for remark in remarks)


def test_the_newest_file_of_a_task_counts(tmp_path: Path) -> None:
    folder = _run(tmp_path / "a", [0, 0])
    _run(folder, [1, 1], when="2026-02-01T00-00-00.000000")
    assert [sample.metrics["acc"] for sample in read_logged(folder)] == [1, 1]


@pytest.mark.parametrize(
    ("second", "message"),
    [([1, 0], "do not pair"), ([1, 0, 1, 1], "do not pair")],
)
def test_other_documents_do_not_pair(tmp_path: Path, second: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare_runs(_run(tmp_path / "a", [1, 0, 1]), _run(tmp_path / "b", second))


def test_folders_without_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="log_samples"):
        compare_runs(tmp_path, tmp_path)
    (tmp_path / "samples_task_2026-01-01T00-00-00.000000.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="line 1"):
        compare_runs(tmp_path, tmp_path)
