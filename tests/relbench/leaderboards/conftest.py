"""A verified leaderboards folder, made once and copied for every test that breaks something in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.relbench.leaderboards.made import make_directory, submit


@pytest.fixture(scope="session")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep that can be submitted."""
    return make_directory(tmp_path_factory.mktemp("sweep") / "run")


@pytest.fixture(scope="session")
def verified(finished_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaderboards folder with its submission; not to be changed."""
    root = tmp_path_factory.mktemp("boards") / "leaderboards"
    submit(finished_sweep, root)
    return root


@pytest.fixture
def root(verified: Path, tmp_path: Path) -> Path:
    """A copy of it, to be broken."""
    return Path(shutil.copytree(verified, tmp_path / "leaderboards"))


@pytest.fixture
def submission(root: Path) -> Path:
    """The one submission in it."""
    return root / "results" / "made-up" / f"weights-{'5' * 16}" / "made.json"
