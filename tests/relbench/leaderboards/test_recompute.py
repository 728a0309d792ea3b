"""After a statistic has changed: results are made again from samples, and nothing else is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from relbench.cli import relbench
from relbench.leaderboards.limits import PROBLEMS
from relbench.leaderboards.recompute import recompute
from tests.relbench.leaderboards.made import edit, edit_lines, problems, put


def _of_other_statistics(submission: Path) -> None:
    """Results as another version may have computed them: every number moved, and a table that is new."""

    def change(raw: dict[str, object]) -> None:
        tables = raw["results"]
        assert isinstance(tables, dict)
        moved = 0
        for table in tables.values():
            for row in table["rows"]:
                for place, value in enumerate(row):
                    if isinstance(value, float):
                        row[place], moved = value + 0.01, moved + 1
        assert moved > PROBLEMS, "more than are listed of one file"
        del tables["counts"]

    edit(submission, change)


def test_results_come_back_as_they_were(root: Path, submission: Path) -> None:
    """Byte for byte those of the submission that was made from the sweep."""
    before = submission.read_bytes()
    _of_other_statistics(submission)
    assert problems(root)
    assert recompute(root).changed == (submission,)
    assert submission.read_bytes() == before
    assert problems(root) == []


def test_what_is_right_is_not_written(root: Path, submission: Path) -> None:
    before = submission.stat().st_mtime_ns
    done = recompute(root)
    assert (done.changed, done.problems) == ((), ())
    assert submission.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("path", "value", "field"), [("created", "yesterday", "created"), ("samples.sha256", "0" * 64, "")]
)
def test_what_is_wrong_otherwise_is_left_alone(
    root: Path, submission: Path, path: str, value: str, field: str
) -> None:
    """Computing must not give a submission numbers that it has no ground for."""
    _of_other_statistics(submission)
    edit(submission, put(path, value))
    before = submission.read_bytes()
    done = recompute(root)
    assert done.changed == ()
    assert [problem.field for problem in done.problems] == [field]
    assert submission.read_bytes() == before


def test_samples_of_other_answers_are_not_made_right(root: Path, submission: Path) -> None:
    """An answer that was taken out leaves samples that are no whole sweep's."""
    edit_lines(submission, lambda lines: lines[0]["answers"].pop())
    before = submission.read_bytes()
    done = recompute(root)
    assert done.changed == () and done.problems
    assert submission.read_bytes() == before


def test_the_command(root: Path, submission: Path) -> None:
    _of_other_statistics(submission)
    run = CliRunner().invoke(relbench, ["leaderboard", "recompute", str(root)])
    assert (run.exit_code, run.output) == (0, f"wrote {submission}\n")
    again = CliRunner().invoke(relbench, ["leaderboard", "recompute", str(root)])
    assert (again.exit_code, again.output) == (0, "all results are what the samples give\n")
    edit(submission, put("licence", "do what you like"))
    refused = CliRunner().invoke(relbench, ["leaderboard", "recompute", str(root)])
    assert refused.exit_code == 2 and "licence" in refused.output
    assert json.loads(submission.read_text())["licence"] == "do what you like"
