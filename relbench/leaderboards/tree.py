"""Walking a leaderboards folder without leaving it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from relbench.leaderboards.limits import ENTRIES
from relbench.leaderboards.names import META, RESULTS, SAMPLES
from relbench.leaderboards.problems import Problem


def entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Everything under `root/results`, sorted, folders before what they hold; links are not followed.

    Stops after `ENTRIES` of them.
    """
    waiting = [root / RESULTS]
    seen = 0
    while waiting:
        folder = waiting.pop()
        if folder.is_symlink() or not folder.is_dir():
            continue
        with os.scandir(folder) as found:
            inside = sorted(found, key=lambda entry: entry.name)
        for entry in inside:
            seen += 1
            if seen > ENTRIES:
                return
            yield entry
        waiting += [Path(entry.path) for entry in reversed(inside) if entry.is_dir(follow_symlinks=False)]


def submission_files(root: Path) -> list[Path]:
    """The submissions' own files under `root`, sorted."""
    return sorted(
        Path(entry.path)
        for entry in entries(root)
        if _depth(root, entry) == 3
        and entry.is_file(follow_symlinks=False)
        and entry.name.endswith(".json")
        and entry.name != META
    )


def layout_problems(root: Path) -> list[Problem]:
    """Links, and files that are not where a submission's files are."""
    problems = []
    if (root / RESULTS).is_symlink():
        problems.append(
            Problem(RESULTS, "", "expected a folder, found a symbolic link, which is not followed")
        )
    for entry in entries(root):
        file = Path(entry.path).relative_to(root).as_posix()
        if entry.is_symlink():
            problems.append(
                Problem(file, "", "expected a file or folder, found a symbolic link, which is not followed")
            )
        elif not _in_place(root, entry):
            problems.append(
                Problem(
                    file,
                    "",
                    f"expected {RESULTS}/<org__model>/<revision>/ with <submission>.json, {META} and "
                    f"{SAMPLES}/<submission>.jsonl.gz, found this beside them",
                )
            )
    return problems


def _depth(root: Path, entry: os.DirEntry[str]) -> int:
    """1 for a model's folder, 2 for a revision's, 3 for what lies in it."""
    return len(Path(entry.path).relative_to(root / RESULTS).parts)


def _in_place(root: Path, entry: os.DirEntry[str]) -> bool:
    depth = _depth(root, entry)
    if entry.is_dir(follow_symlinks=False):
        return depth <= 2 or (depth == 3 and entry.name == SAMPLES)
    if not entry.is_file(follow_symlinks=False):
        return False
    if depth == 3:
        return entry.name.endswith(".json")
    inside = Path(entry.path).parent.name == SAMPLES
    return depth == 4 and inside and entry.name.endswith(".jsonl.gz")
