"""Where the probes are: in a clone or an editable install beside the package, in a wheel inside it."""

from __future__ import annotations

import functools
from pathlib import Path

from interventions.errors import UserError
from relbench_lm import OURS, conflict


@functools.cache
def tasks_dir() -> Path:
    """The folder of the probes: the clone's `tasks/`, else the wheel's `relbench/_tasks/`.

    Raises:
        UserError: Neither is there, or another distribution has put files into this package.
    """
    if problem := conflict():
        raise UserError(problem)
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "tasks", package / "_tasks"):
        # A folder of that name may lie beside any installed package; ours holds relations.
        if next(folder.glob("*/relation.yaml"), None) is not None:
            return folder
    raise UserError(f"no probes lie beside {package}; install {OURS} again, or install it from a clone")
