"""The probes are found from a clone, an editable install and a wheel; another `relbench` is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.relbench.installs import ROOT, Environment, build_wheel

pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel, installed."""
    environment = Environment(tmp_path_factory.mktemp("wheel") / "env")
    environment.install(str(build_wheel(tmp_path_factory.mktemp("dist"))))
    return environment


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The clone, installed with `pip install -e`."""
    environment = Environment(tmp_path_factory.mktemp("editable") / "env")
    environment.install("--editable", str(ROOT))
    return environment


@pytest.fixture
def other_project(tmp_path: Path) -> Path:
    """What the unrelated distribution of the same name leaves in site-packages."""
    folder = tmp_path / "other"
    (folder / "relbench").mkdir(parents=True)
    (folder / "relbench" / "__init__.py").write_text("raise ImportError('torch_frame is missing')\n")
    information = folder / "relbench-3.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: relbench\nVersion: 3.0\n")
    return folder


def copy_over(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


def test_a_clone_uses_its_own_tasks() -> None:
    command = [sys.executable, "-c", "from relbench.paths import tasks_dir; print(tasks_dir())"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()) == ROOT / "tasks"


def test_an_editable_install_uses_the_clones_tasks(editable: Environment) -> None:
    run = editable.run("relbench", "tasks", "path")
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()) == ROOT / "tasks"
    copied = {path.name for path in editable.packages.iterdir() if "relbench" in path.name}
    assert not {"relbench", "relbench_lm.py"} & copied


def test_a_wheel_uses_the_tasks_in_it(installed: Environment) -> None:
    run = installed.run("relbench", "tasks", "path")
    assert run.returncode == 0, run.stderr
    tasks = Path(run.stdout.strip())
    assert tasks == (installed.packages / "relbench" / "_tasks").resolve()
    shipped = {path.relative_to(tasks) for path in tasks.rglob("*") if path.suffix in (".yaml", ".jsonl")}
    cloned = {path.relative_to(ROOT / "tasks") for path in (ROOT / "tasks").rglob("*")}
    assert shipped
    assert shipped == {path for path in cloned if path.suffix in (".yaml", ".jsonl")}


def test_a_folder_called_tasks_beside_a_wheel_is_not_taken_for_ours(installed: Environment) -> None:
    foreign = installed.packages / "tasks"
    foreign.mkdir()
    try:
        assert installed.run("relbench", "tasks", "path").stdout.strip().endswith("_tasks")
    finally:
        foreign.rmdir()


def assert_one_line(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert run.stderr.startswith("relbench: error: the package `relbench` of another distribution")
    assert "pip uninstall -y relbench relbench-lm" in run.stderr


def test_another_relbench_that_hides_ours_is_one_line(
    editable: Environment, other_project: Path, tmp_path: Path
) -> None:
    assert_one_line(editable.run("relbench", "tasks", "path", PYTHONPATH=str(other_project)))


def test_another_relbench_written_over_ours_is_one_line(other_project: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(str(build_wheel(tmp_path / "dist")))
    copy_over(other_project, environment.packages)
    assert_one_line(environment.run("relbench", "tasks", "path"))


def test_tasks_dir_says_it_too_where_our_command_is_not_used(
    installed: Environment, other_project: Path
) -> None:
    information = other_project / "relbench-3.0.dist-info"
    target = installed.packages / information.name
    target.mkdir()
    (target / "METADATA").write_bytes((information / "METADATA").read_bytes())
    try:
        run = installed.run("python", "-c", "from relbench.paths import tasks_dir; tasks_dir()")
        assert "UserError: the package `relbench` of another distribution" in run.stderr.splitlines()[-1]
    finally:
        (target / "METADATA").unlink()
        target.rmdir()
