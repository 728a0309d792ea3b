"""Entry of the `relbench` command, outside the package of that name.

An unrelated project on the package index is called `relbench` and has a package of the same name. Installed
into one environment, the two hide or overwrite each other, so that nothing inside the package can be relied
on to say so; this file is ours whatever happens.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

OTHER = "relbench"
OURS = "relbench-lm"


def conflict() -> str | None:
    """What is wrong and what to do, in one line, when Python's `relbench` is not ours alone; else None."""
    package = Path(__file__).resolve().parent / "relbench"
    found = importlib.util.find_spec("relbench")
    origin = Path(found.origin).resolve().parent if found is not None and found.origin else None
    shared = any(
        Path(str(other.locate_file("relbench"))).resolve() == package
        for other in importlib.metadata.distributions(name=OTHER)
        if other.metadata["Name"] == OTHER
    )
    if origin == package and not shared:
        return None
    return (
        f"the package `relbench` of another distribution, `{OTHER}`, is in the way of {OURS}'s; "
        f"run `pip uninstall -y {OTHER} {OURS}`, then install {OURS} alone"
    )


def main() -> None:
    """Run `relbench.cli.main`, unless another distribution's package would answer in its place."""
    if problem := conflict():
        sys.stderr.write(f"relbench: error: {problem}\n")
        sys.exit(2)
    from relbench.cli import main as run

    run()
