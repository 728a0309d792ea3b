"""Sweeps that are killed, that run out of disk, that several processes share: the same final files, byte for byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from interventions.errors import UserError
from relbench.blocks import Block
from relbench.executors import share
from relbench.sweep import run_sweep
from relbench.sweep_config import SweepConfig

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def _write_config(model: Path, path: Path) -> Path:
    raw = {
        "model": str(model),
        "device": "cpu",
        "relations": ["country_capital", "star_constellation"],
        "languages": ["en", "de"],
        "shots": 1,
        "methods": [{"name": "mean-difference"}, {"name": "gradient-activation", "shots": 0}],
        "ks": [10, 40],
        "continuations": True,
        "perplexity": str(path.with_suffix(".txt")),
        "limit": 3,
        "detect_limit": 3,
    }
    path.with_suffix(".txt").write_text("A first text.\n\nAnd a second one.\n")
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_config(tiny_checkpoint, tmp_path_factory.mktemp("config") / "config.yaml")


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    return run_sweep(SweepConfig.from_yaml(config), directory, progress=False)


def final_bytes(directory: Path) -> dict[str, bytes]:
    """Everything but what may differ: dates, the lock, and which process journalled what."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("run.json", ".lock") and path.parent.name != "journal"
    }


def _command(config: Path, out: Path, *before: str) -> list[str]:
    return [sys.executable, *before, "-m", "relbench", "sweep", str(config), "-o", str(out), "--quiet"]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}


def _run(config: Path, out: Path, *before: str) -> None:
    command = _command(config, out, *before)
    done = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _forked(config: SweepConfig, directory: Path) -> int:
    """Run a sweep in a fork of this process, which has everything imported; its process id."""
    child = os.fork()
    if not child:
        # Whatever happens, the child must not go on as a test.
        try:
            run_sweep(config, directory, progress=False)
        finally:
            os._exit(0)
    return child


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    config: Path, whole: Path, tmp_path: Path, kills: int
) -> None:
    made = SweepConfig.from_yaml(config)
    generator, directory, done, finished = random.Random(kills), tmp_path / "0", 0, 0
    while done < kills:
        child = _forked(made, directory)
        time.sleep(generator.uniform(0.0, 2.0))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done += 1
        if (directory / "run.json").exists():
            assert final_bytes(directory) == final_bytes(whole)
            finished += 1
            directory = tmp_path / str(finished)
    run_sweep(made, directory, progress=False)
    assert final_bytes(directory) == final_bytes(whole)


def test_a_full_disk_is_one_line_and_the_rest_is_done_later(
    config: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    written, real = [0], os.fsync

    def full(descriptor: int) -> None:
        written[0] += 1
        if written[0] == 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    made = SweepConfig.from_yaml(config)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"no space left.*same command"):
        patch.setattr(os, "fsync", full)
        run_sweep(made, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "samples.jsonl").exists()
    run_sweep(made, tmp_path / "run", progress=False)
    assert final_bytes(tmp_path / "run") == final_bytes(whole)


def test_a_mask_that_was_changed_is_refused(config: Path, whole: Path, tmp_path: Path) -> None:
    import shutil

    from relbench.sweep_state import read_treatments
    from relbench.treatments import interventions_of

    directory = tmp_path / "run"
    shutil.copytree(whole, directory)
    first, second = [t for t in read_treatments(directory) if t.mask][:2]
    shutil.copy(directory / str(first.mask), directory / str(second.mask))
    with pytest.raises(UserError, match="not the mask that this sweep made"):
        interventions_of(SweepConfig.from_yaml(config), second, directory)
    changed = (directory / str(second.mask)).read_bytes()
    (directory / "run.json").unlink()
    with pytest.raises(UserError, match="not the mask that this sweep made; delete it"):
        run_sweep(SweepConfig.from_yaml(config), directory, progress=False)
    assert (directory / str(second.mask)).read_bytes() == changed
    (directory / str(second.mask)).unlink()
    run_sweep(SweepConfig.from_yaml(config), directory, progress=False)
    assert final_bytes(directory) == final_bytes(whole)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_block_is_in_one_share_and_shares_are_even(size: int) -> None:
    generator = random.Random(size)
    blocks = [Block("recall", f"t{number}", "task") for number in range(200)]
    costs = [generator.randint(1, 50) for _ in blocks]
    shares = [share(blocks, costs, rank, size) for rank in range(size)]
    assert [block for part in shares for block in part] == blocks
    loads = [sum(costs[blocks.index(block)] for block in part) for part in shares]
    assert max(loads) - min(loads) <= 2 * max(costs)


@pytest.mark.slow
def test_torchrun_writes_the_bytes_of_one_process(config: Path, whole: Path, tmp_path: Path) -> None:
    _run(config, tmp_path / "two", *TORCHRUN)
    journals = sorted(path.name for path in (tmp_path / "two/journal").iterdir())
    assert journals == ["0.jsonl", "1.jsonl"]
    assert '"processes": 2' in (tmp_path / "two/run.json").read_text()
    assert final_bytes(tmp_path / "two") == final_bytes(whole)


@pytest.mark.slow
def test_with_a_worker_killed_another_number_of_processes_goes_on(
    config: Path, whole: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    process = subprocess.Popen(
        _command(config, directory, *TORCHRUN),
        env=_environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_for(directory / "journal" / "1.jsonl", process)
    victims = _children(process.pid)
    os.kill(victims[-1], signal.SIGKILL)
    assert process.wait(timeout=300) != 0
    _run(config, directory)
    assert final_bytes(directory) == final_bytes(whole)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    for _ in range(3000):
        if path.exists() or process.poll() is not None:
            return
        time.sleep(0.05)


def _children(parent: int) -> Sequence[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.mark.ray
def test_ray_workers_write_the_bytes_of_one_process(
    config: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RELBENCH_RAY_WORKERS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, configure_logging=False)
    try:
        killer = subprocess.Popen([sys.executable, "-c", _KILL_A_WORKER, str(tmp_path / "run")])
        run_sweep(SweepConfig.from_yaml(config), tmp_path / "run", progress=False, executor="ray")
        assert killer.wait(timeout=60) == 0, "no worker was killed"
    finally:
        ray.shutdown()
    assert final_bytes(tmp_path / "run") == final_bytes(whole)


# Waits for the first block, then kills one of the workers.
_KILL_A_WORKER = """
import os, pathlib, signal, sys, time
journal = pathlib.Path(sys.argv[1]) / "journal" / "0.jsonl"
for _ in range(2400):
    if journal.exists():
        break
    time.sleep(0.05)
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        if path.read_bytes().startswith(b"ray::Worker"):
            os.kill(int(path.parent.name), signal.SIGKILL)
            sys.exit(0)
    except OSError:
        continue
sys.exit(1)
"""
