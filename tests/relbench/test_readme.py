"""The README's walk-through for a new relation, run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _blocks_to_run() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(
        r"<!-- a test runs this block as it stands -->\n```bash\n(.*?)```", text, flags=re.DOTALL
    )


def test_a_relation_is_added_as_the_readme_says(tmp_path: Path) -> None:
    (block,) = _blocks_to_run()
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("relbench", "interventions"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "relbench_lm.py", clone)
    shutil.copytree(ROOT / "tasks" / "country_capital", clone / "tasks" / "country_capital")
    shutil.copy(ROOT / "tasks" / "subjects.csv", clone / "tasks")
    command = clone / "bin" / "relbench"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m relbench "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=clone,
        env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 facts with 13 answers" in done.stdout
    assert "0 errors" in done.stdout
    assert (clone / "tasks" / "river_mouth" / "relbench_river_mouth_en.yaml").is_file()
    assert done.stdout.count("flows into the\n") == 2
