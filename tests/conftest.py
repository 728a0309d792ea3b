"""Settings of all tests: no network, one thread, and which marked tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, chromium, why_no_browser

# Before any import of the libraries that read them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
# Models here are tiny: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where more are used, on a busy machine, threads that spin while they wait cost more than they bring.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tests that run only when asked for; `model` tests run whenever their model is in the cache.
ON_DEMAND = ("slow", "browser", "ray", "fuzz")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help=f"run the tests marked {', '.join(ON_DEMAND)} too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, rather than deselect, so that the summary prints what did not run and why."""
    if config.getoption("--all") or config.getoption("markexpr"):
        return
    for item in items:
        for name in ON_DEMAND:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{name}: run `make test-all` or `-m {name}`"))


def _embedded(name: str) -> Iterator[Path]:
    import torch

    from relbench.models import checkpoint_path, get_model, is_cached

    model = get_model(name)
    if not is_cached(model):
        pytest.skip(f"{name} is not in the cache: run `relbench models pull {name}`")
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield checkpoint_path(model)
    torch.set_num_threads(threads)


@pytest.fixture
def embedded_model_path() -> Iterator[Path]:
    """The checkpoint of the default embedded model, with all cores to run it; skips when it is not cached."""
    yield from _embedded("smollm2-135m")


@pytest.fixture
def multilingual_model_path() -> Iterator[Path]:
    """The same for the multilingual embedded model."""
    yield from _embedded("gemma3-270m")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests of pages; skips when there is none."""
    if missing := why_no_browser():
        pytest.skip(missing)
    with chromium() as started:
        yield started
