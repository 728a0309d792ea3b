"""The README's walk-throughs, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from relbench.sweep_state import read_treatments
from tests.tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[2]


def _block(remark: str) -> str:
    """The block of commands under a remark."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"<!-- {remark} -->\n```bash\n(.*?)```", text, flags=re.DOTALL)
    return str(found)


def _programs(folder: Path, *modules: str) -> Path:
    """A folder of commands that run modules of this Python."""
    folder.mkdir()
    for module in modules:
        path = folder / module
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def _run(block: str, cwd: Path, programs: Path, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=cwd,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_relation_is_added_as_the_readme_says(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("relbench", "interventions"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "relbench_lm.py", clone)
    shutil.copytree(ROOT / "tasks" / "country_capital", clone / "tasks" / "country_capital")
    shutil.copy(ROOT / "tasks" / "subjects.csv", clone / "tasks")
    programs = _programs(clone / "bin", "relbench")
    block = _block("a test runs this block as it stands")
    stdout = _run(block, clone, programs, PYTHONPATH=str(clone))
    assert "30 facts with 13 answers" in stdout
    assert "0 errors" in stdout
    assert (clone / "tasks" / "river_mouth" / "relbench_river_mouth_en.yaml").is_file()
    assert stdout.count("flows into the\n") == 2


@pytest.mark.slow
def test_a_scoring_method_is_added_as_the_readme_says(tmp_path: Path) -> None:
    block = _block("a test runs this block as it stands, on a tiny model")
    literal = "model: smollm2-135m"
    assert block.count(literal) == 1
    # Wide enough for three sizes of the board to differ.
    model = tmp_path / "model"
    tiny_model("llama", max_position_embeddings=2048, intermediate_size=1200).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    packages = tmp_path / "packages"
    _run(
        block.replace(literal, f"model: {model}"),
        tmp_path,
        _programs(tmp_path / "bin", "relbench", "pip"),
        PYTHONPATH=f"{packages}:{ROOT}",
        OMP_NUM_THREADS="1",
        # Into a folder of its own, without a network. (0 switches pip's negative option on.)
        PIP_TARGET=str(packages),
        PIP_NO_INDEX="1",
        PIP_NO_DEPS="1",
        PIP_NO_BUILD_ISOLATION="0",
    )
    treatments = read_treatments(tmp_path / "runs" / "peaks")
    assert {treatment.method for treatment in treatments} >= {"peaks", "average-precision"}
    assert (tmp_path / "runs" / "peaks" / "report.html").is_file()
    # A random model recalls nothing, so that no relation is testable and no method is ranked.
    (entry,) = (tmp_path / "leaderboards" / "results").glob("*/*/peaks.json")
    submission = json.loads(entry.read_text(encoding="utf-8"))
    assert submission["board"]["names"] == ["methods"]
    assert {method["name"] for method in submission["methods"]} == {"peaks", "average-precision"}
    assert (tmp_path / "leaderboards" / "README.md").is_file()
