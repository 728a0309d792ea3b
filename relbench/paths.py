"""Where the probes are: in a clone or an editable install beside the package, in a wheel inside it."""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path

from interventions.errors import UserError

DISTRIBUTION = "relbench-lm"


def tasks_dir() -> Path:
    """The folder of the probes: the clone's `tasks/`, else the wheel's `relbench/_tasks/`.

    Raises:
        UserError: Neither is there, or another distribution has put files into this package.
    """
    _check_owner()
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "tasks", package / "_tasks"):
        # Any folder of that name may lie beside an installed package; ours holds relations.
        if next(folder.glob("*/relation.yaml"), None) is not None:
            return folder
    raise UserError(
        f"no probes lie beside {package}; install {DISTRIBUTION} again, or clone its repository and install from there"
    )


@functools.cache
def _check_owner() -> None:
    """Refuse to run on a mixture of two distributions' files.

    An unrelated project on the package index is called `relbench` and has a package of the same name. Installed
    into one environment, the two overwrite each other's files, and what breaks is hard to tell.

    Raises:
        UserError: The other distribution is installed too, in the folder that this package runs from.
    """
    here = Path(__file__).resolve().parent
    for distribution in importlib.metadata.distributions(name="relbench"):
        if distribution.metadata["Name"] != "relbench":
            continue
        package = Path(str(distribution.locate_file("relbench"))).resolve()
        if package == here:
            raise UserError(
                "another distribution, `relbench`, has put its files into the same package as "
                f"`{DISTRIBUTION}`; run `pip uninstall -y relbench {DISTRIBUTION}` and install {DISTRIBUTION} alone"
            )
