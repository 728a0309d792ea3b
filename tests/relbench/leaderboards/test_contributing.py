"""The way to an entry in CONTRIBUTING.md, walked as it stands, on a model small enough for tests."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_an_entry_is_added_as_the_guide_says(tiny_checkpoint: Path, tmp_path: Path) -> None:
    text = (ROOT / "leaderboards" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"<!-- a test runs these blocks as they stand -->\n```bash\n(.*?)```", text, flags=re.DOTALL
    )
    assert len(blocks) == 3
    # All but the model is taken literally.
    script = "".join(blocks).replace("model: smollm2-135m", f"model: {tiny_checkpoint}")
    assert str(tiny_checkpoint) in script
    command = tmp_path / "bin" / "relbench"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m relbench "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 submission" in done.stdout
    names = {path.name for path in (tmp_path / "leaderboards" / "results").glob("*/*/*.json")}
    assert names == {"my-model.json", "model_meta.json"}
