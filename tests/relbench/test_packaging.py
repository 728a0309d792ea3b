"""What is declared, pinned and shipped agrees with what the code uses; help imports nothing heavy."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from relbench.languages import LANGUAGES
from tests.relbench.installs import ROOT, build_wheel

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("interventions", "relbench")
# Where a distribution and what one imports from it are named apart.
DISTRIBUTIONS = {
    "huggingface_hub": "huggingface-hub",
    "lm_eval": "lm-eval",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def declared() -> dict[str, Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def imported() -> dict[str, str]:
    """Top-level module → a file that imports it."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return found


def test_everything_imported_is_declared() -> None:
    known = {*sys.stdlib_module_names, *PACKAGES, "relbench_lm"}
    undeclared = {
        name: path
        for name, path in imported().items()
        if name not in known and canonicalize_name(DISTRIBUTIONS.get(name, name)) not in declared()
    }
    assert undeclared == {}


def test_everything_declared_is_pinned_to_a_version_that_it_allows() -> None:
    untested = {"ray"}
    for name, requirement in declared().items():
        if name not in untested:
            assert requirement.specifier.contains(pinned()[name]), requirement


def test_pins_are_plain_versions_in_order() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in pins)
    assert pins == sorted(pins, key=str.lower)


def test_interventions_stands_alone() -> None:
    """Imports point one way."""
    for path in (ROOT / "interventions").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (relbench|lm_eval)\b", path.read_text("utf-8"), re.M), path


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_the_command_answers_without_heavy_imports(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys, relbench_lm\n"
        f"sys.argv = ['relbench', *{arguments!r}]\n"
        "try:\n    relbench_lm.main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'transformers', 'lm_eval', 'datasets', 'numpy', 'pandas', 'sklearn'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_import_without_torch(package: str) -> None:
    code = f"import sys, {package}; print('torch' in sys.modules, 'transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_the_wheel_holds_the_packages_the_probes_and_the_entry_points(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        names = archive.namelist()
        (entries,) = (name for name in names if name.endswith("entry_points.txt"))
        points = configparser.ConfigParser()
        points.read_string(archive.read(entries).decode())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {*PACKAGES, "relbench_lm.py"}
    assert any(name.startswith("relbench/_tasks/") for name in names)
    assert {f"relbench/neutral/{code}.txt" for code in LANGUAGES} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)
    assert points["console_scripts"]["relbench"] == "relbench_lm:main"
    assert points["lm_eval.models"]["relbench"] == "relbench.lm:RelbenchLM"


def test_make_refuses_a_python_that_is_too_old(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    # Called from `make test`, this make must not take over its parent's jobs and options.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    run = subprocess.run(
        ["make", "setup", f"PYTHON={old}"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("error: no Python 3.11 or newer found as ")
    assert not (tmp_path / ".venv").exists()
