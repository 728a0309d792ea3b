"""The package's front: cheap to import, every public name where it is said to be."""

from __future__ import annotations

import subprocess
import sys

import pytest

import interventions


def test_importing_costs_nothing() -> None:
    code = "import sys, interventions; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_every_public_name_is_there() -> None:
    assert all(getattr(interventions, name) is not None for name in interventions.__all__)
    assert set(dir(interventions)) == set(interventions.__all__) == set(interventions._WHERE)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = interventions.nothing
