"""Which code ran, on what machine: for the records of a run, never for anything that results depend on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from relbench import __version__


def code() -> dict[str, Any]:
    """Version of relbench, and in a clone its commit and whether files were changed since."""
    found: dict[str, Any] = {"relbench": __version__, "commit": None, "modified": None}
    clone = Path(__file__).resolve().parents[1]
    if not (clone / ".git").exists():
        return found
    commit, changed = _git(clone, "rev-parse", "HEAD"), _git(clone, "status", "--porcelain", "-uno")
    if commit:
        found |= {"commit": commit, "modified": None if changed is None else bool(changed)}
    return found


def _git(clone: Path, *arguments: str) -> str | None:
    """What git says; None where it cannot be asked."""
    try:
        done = subprocess.run(
            ["git", "-C", str(clone), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def hardware(device: str) -> dict[str, Any]:
    """The machine that this process runs on.

    Args:
        device: Where the model is, as torch names it.
    """
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "accelerator": _accelerator(device),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _accelerator(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.get_device_name(device)
