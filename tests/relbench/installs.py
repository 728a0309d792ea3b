"""Environments with this project installed in them, made without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Environment:
    """A virtual environment that sees the dependencies of the running one, but not its `relbench`.

    Args:
        folder: Where to make it.
    """

    def __init__(self, folder: Path) -> None:
        venv.EnvBuilder(symlinks=True).create(folder)
        self.bin = folder / "bin"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"
        # A folder named in a .pth file is searched, but .pth files in it (an editable install) are not read.
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.cwd = folder

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs outside any clone."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "PYTHON")) and name != "RELBENCH_CACHE"
        }
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.cwd,
            env={**clean, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, *arguments: str) -> None:
        """`pip install` without dependencies, build isolation or network."""
        options = (
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "--disable-pip-version-check",
            "--quiet",
        )
        # The running pip works on the environment, which then needs none of its own.
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", *options]
        subprocess.run([*command, *arguments], check=True, cwd=self.cwd, stdout=subprocess.DEVNULL)


def build_wheel(folder: Path) -> Path:
    """The project's wheel, built into `folder`."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel
