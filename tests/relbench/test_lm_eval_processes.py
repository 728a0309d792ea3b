"""`relbench lm-eval` under torchrun gives what one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interventions.masks import Mask
from interventions.model_id import ModelId
from interventions.units import Site
from tests.tiny import tiny_model

TASKS = "relbench_country_capital_en,relbench_star_constellation_en_mc,relbench_star_constellation_en_gen"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def _run(checkpoint: Path, mask: Path, out: Path, launcher: list[str], limit: int) -> Any:
    command = [
        *launcher, "-m", "relbench", "lm-eval", "run", "--model", "relbench",
        "--model_args", f"pretrained={checkpoint},mask={mask}", "--tasks", TASKS, "--limit", str(limit),
        "--num_fewshot", "1", "--device", "cpu", "--output_path", str(out), "--log_samples",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def _same(ours: Any, theirs: Any) -> None:
    """Equal, numbers up to rounding: batches, and the order in which means are summed, differ."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            _same(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            _same(one, other)
    elif isinstance(ours, str) and ours != theirs:
        # lm-eval logs responses as text.
        assert float(ours) == pytest.approx(float(theirs), abs=1e-4)
    else:
        assert ours == (pytest.approx(theirs, abs=1e-4) if isinstance(ours, float) else theirs)


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tiny_checkpoint: Path, tmp_path: Path) -> None:
    mask = tmp_path / "capital.mask"
    units = {Site(layer, "act"): np.arange(24, dtype=np.int32) for layer in range(3)}
    identity = ModelId.of(tiny_model("llama", max_position_embeddings=2048))
    Mask(units, identity, {"operation": "top_k", "concept": "country_capital@en"}).save(mask)
    for name, launcher in (("one", []), ("two", TORCHRUN)):
        done = _run(tiny_checkpoint, mask, tmp_path / name, launcher, limit=5)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("recall_baseline") == 2
        if launcher:
            # An odd number of documents: three for one process, two for the other.
            assert "on rank 1" in done.stderr
            assert "3/3" in done.stderr and "2/2" in done.stderr and "5/5" not in done.stderr
    files = {name: sorted((tmp_path / name).rglob("*.json*")) for name in ("one", "two")}
    assert len(files["one"]) == len(files["two"]) == 2 * (1 + 3)
    for one, two in zip(files["one"], files["two"], strict=True):
        if one.name.startswith("samples"):
            read = [[json.loads(line) for line in path.read_text().splitlines()] for path in (one, two)]
            assert [sample["doc_id"] for sample in read[1]] == list(range(5))
            for sample in read[1]:
                # lm-eval evens out the shares by asking a last request again, and logs its answer twice.
                sample["resps"] = [answers[:1] for answers in sample["resps"]]
        else:
            loaded = [json.loads(path.read_text()) for path in (one, two)]
            read = [{key: results[key] for key in ("results", "n-samples", "configs")} for results in loaded]
        _same(*read)
    refused = _run(tiny_checkpoint, mask, tmp_path / "few", TORCHRUN, limit=1)
    assert refused.returncode != 0
    assert "without a document" in refused.stderr
