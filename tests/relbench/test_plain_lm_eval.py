"""An unmodified lm_eval runs the probes from the tasks folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from relbench.paths import tasks_dir


@pytest.mark.slow
def test_lm_eval_alone_runs_a_group(tiny_checkpoint: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lm_eval",
            "run",
            "--model",
            "hf",
            "--model_args",
            f"pretrained={tiny_checkpoint}",
            "--tasks",
            "relbench_en",
            "--include_path",
            str(tasks_dir()),
            "--limit",
            "1",
            "--device",
            "cpu",
            "--output_path",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Custom kwargs" not in done.stderr
    (path,) = tmp_path.rglob("results_*.json")
    results = json.loads(path.read_text())
    assert "recall,none" in results["groups"]["relbench_en"]
    assert results["results"]["relbench_country_capital_en"]["answer_logprob,none"] < 0


@pytest.mark.slow
def test_lm_eval_lists_every_task_and_group() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "ls", "tasks", "--include_path", str(tasks_dir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for path in tasks_dir().rglob("relbench*.yaml"):
        assert path.stem in done.stdout
