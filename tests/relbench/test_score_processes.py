"""`relbench score` under torchrun writes the same file as one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_model, tiny_tokenizer


@pytest.mark.slow
def test_torchrun_writes_the_same_bytes(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    score = [
        "-m",
        "relbench",
        "score",
        "average-precision",
        "--model",
        str(tmp_path / "model"),
        "--limit",
        "8",
    ]
    score += ["--relations", "country_capital,star_constellation", "--kinds", "act,down"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for command, out in (([], "one"), (torchrun, "two")):
        subprocess.run(
            [sys.executable, *command, *score, "-o", str(tmp_path / out)],
            env=environment,
            check=True,
            timeout=300,
        )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
