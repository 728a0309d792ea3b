"""Samples evaluated again: a real sweep is believed, and tampering that statistics cannot see is found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from relbench.cli import relbench
from relbench.leaderboards.add import add
from relbench.leaderboards.rerun import Rerun, rerun
from relbench.leaderboards.rules import Board, Rules
from relbench.leaderboards.submission import read_submissions
from relbench.leaderboards.verify import verify
from relbench.sweep import run_sweep
from relbench.sweep_config import SweepConfig
from tests.relbench.leaderboards.made import STATEMENT, edit_lines, problems

# Boards for a sweep of seconds.
RULES = Rules(
    protocol=1,
    split="eval",
    template="completion",
    shots=1,
    shots_seed=0,
    limit=4,
    boards={"methods": Board("methods", fractions=(0.1,), mode="zero", positions="all", control_seeds=2)},
)
N = 12


@pytest.fixture(scope="module")
def swept(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = {
        "model": str(tiny_checkpoint),
        "device": "cpu",
        "relations": ["country_capital", "star_constellation"],
        "shots": 1,
        "methods": ["average-precision"],
        "fractions": [0.1],
        "controls": {"seeds": 2},
        "limit": 4,
        "detect_limit": 4,
    }
    directory = tmp_path_factory.mktemp("tiny") / "run"
    return run_sweep(SweepConfig.from_dict(raw, "test"), directory, progress=False)


@pytest.fixture(scope="module")
def added(swept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rerun") / "leaderboards"
    add(swept, root, replace(STATEMENT, mask_url="files"), rules=RULES)
    return root


@pytest.fixture
def root(added: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(added, tmp_path / "leaderboards"))


def _again(root: Path, model: Path, masks: Path | None, n: int = N) -> Rerun:
    found = verify(root, rules=RULES)
    assert found.problems == ()
    return rerun(found.submissions, root, n, model=str(model), masks=masks)


def test_a_real_sweep_comes_out_the_same(root: Path, swept: Path, tiny_checkpoint: Path) -> None:
    done = _again(root, tiny_checkpoint, swept)
    assert (done.checked, done.problems, done.notes) == (N, [], [])


def test_all_samples_when_more_are_asked_for_than_there_are(
    root: Path, swept: Path, tiny_checkpoint: Path
) -> None:
    done = _again(root, tiny_checkpoint, swept, n=1000)
    # Baseline, a mask for each relation and two random ones, on two tasks of four facts.
    assert (done.checked, done.problems) == (5 * 2 * 4, [])


def test_masks_below_the_leaderboards_folder_are_found(
    root: Path, swept: Path, tiny_checkpoint: Path
) -> None:
    shutil.copytree(swept / "masks", root / "files" / "masks")
    done = _again(root, tiny_checkpoint, None)
    assert (done.checked, done.problems, done.notes) == (N, [], [])


def test_without_masks_the_baseline_is_evaluated_and_the_rest_named(
    root: Path, tiny_checkpoint: Path
) -> None:
    done = _again(root, tiny_checkpoint, None, n=1000)
    assert (done.checked, done.problems) == (2 * 4, [])
    assert done.notes == [
        "made: 4 of 5 treatments not run again, their masks are not here; give the sweep's directory with --masks"
    ]


@pytest.mark.parametrize(("off", "n"), [(0.0005, 0), (0.01, 1)])
def test_a_log_probability_that_is_off_is_found(
    root: Path, swept: Path, tiny_checkpoint: Path, off: float, n: int
) -> None:
    (submission,) = root.glob("results/*/*/made.json")

    def change(lines: list[Any]) -> None:
        lines[3]["answers"][1][2] -= off

    edit_lines(submission, change)
    done = _again(root, tiny_checkpoint, swept, n=1000)
    assert len(done.problems) == n
    for problem in done.problems:
        assert problem.file.endswith("samples/made.jsonl.gz")
        assert problem.field.startswith(
            "relbench_country_capital_en document 3 (completion, 1 shots) under average-p"
        )
        assert problem.what.startswith("expected answer_logprob -")


def test_another_mask_under_the_same_name_is_found(root: Path, swept: Path, tiny_checkpoint: Path) -> None:
    masks = sorted((swept / "masks").iterdir())
    folder = root / "files" / "masks"
    folder.mkdir(parents=True)
    for mask, other in zip(masks, [*masks[1:], masks[0]], strict=True):
        shutil.copy(other, folder / mask.name)
    done = _again(root, tiny_checkpoint, None)
    assert [problem.field for problem in done.problems] == [f"masks[{i}].sha256" for i in range(4)]


def test_a_mask_that_a_link_leads_to_is_not_read(root: Path, swept: Path, tiny_checkpoint: Path) -> None:
    (root / "files").symlink_to(swept)
    assert len(_again(root, tiny_checkpoint, None).notes) == 5


def test_other_weights_are_not_used(root: Path, swept: Path, tmp_path: Path, tiny_checkpoint: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    other = tmp_path / "other"
    shutil.copytree(tiny_checkpoint, other)
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1)
    model.save_pretrained(other)
    done = _again(root, other, swept)
    assert (done.checked, done.problems) == (0, [])
    assert done.notes[0].startswith(f"made: not run again, {other} has other weights than ")


def test_a_model_that_is_not_here_is_named(root: Path) -> None:
    found = list(read_submissions(root))
    done = rerun(found, root, N)
    assert done.checked == 0
    (note,) = done.notes
    assert note.startswith("made: not run again, the model ") and note.endswith(
        "give its checkpoint with --model"
    )


def test_the_command_says_how_many(root: Path, swept: Path, tiny_checkpoint: Path) -> None:
    # By the real rules this sweep is too small; what is wrong is not run.
    arguments = ["--rerun", "3", "--model", str(tiny_checkpoint), "--masks", str(swept)]
    done = CliRunner().invoke(relbench, ["leaderboard", "verify", str(root), *arguments])
    assert done.exit_code == 2
    assert done.stdout == "0 samples evaluated again\n"
    assert done.stderr.splitlines() == problems(root)
    done = CliRunner().invoke(relbench, ["leaderboard", "verify", str(root), "--masks", str(swept)])
    assert done.exit_code != 0 and "are for --rerun N" in str(done.exception)
