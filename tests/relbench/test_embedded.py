"""The real embedded model: the same answers as lm-eval's own model, and the demo's path from end to end."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from relbench.cli import main
from relbench.paths import tasks_dir
from relbench.sweep import run_sweep
from relbench.sweep_config import SweepConfig

pytestmark = pytest.mark.model

TASKS = ["relbench_country_capital_en", "relbench_landmark_in_country_en"]


def _samples(model: str, path: Path) -> dict[str, list[dict[str, Any]]]:
    import relbench.lm  # noqa: F401  registers the model

    results = simple_evaluate(
        model=model,
        model_args={"pretrained": str(path), "dtype": "float32"},
        tasks=TASKS,
        task_manager=TaskManager(include_path=str(tasks_dir()), include_defaults=False),
        device="cpu",
        batch_size=8,
        limit=8,
        bootstrap_iters=0,
    )
    assert results is not None
    samples: dict[str, list[dict[str, Any]]] = results["samples"]
    return samples


def test_recall_equals_lm_evals_own_model(embedded_model_path: Path) -> None:
    ours, theirs = _samples("relbench", embedded_model_path), _samples("hf", embedded_model_path)
    right = 0
    for task in TASKS:
        for mine, other in zip(ours[task], theirs[task], strict=True):
            assert mine["prompt_hash"] == other["prompt_hash"]
            assert mine["answer_logprob"] == pytest.approx(other["answer_logprob"], abs=1e-3)
            assert mine["recall"] == other["recall"]
            right += int(mine["recall"])
    # A model that is always wrong would agree for no reason.
    assert 4 <= right <= 14


def test_the_demo_finds_the_units_of_a_relation(
    embedded_model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SweepConfig.from_dict(
        {
            "model": "smollm2-135m",
            "device": "cpu",
            "relations": ["country_capital", "landmark_in_country"],
            "methods": [{"name": "average-precision"}, {"name": "log-probability-increase"}],
            "controls": {"seeds": 1},
            "limit": 10,
            "detect_limit": 8,
        },
        "test",
    )
    directory = run_sweep(config, tmp_path / "run", progress=False)
    with pytest.raises(SystemExit) as exit_:
        main(["report", str(directory)])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "log-probability-increase: 461 units off" in printed
    with open(directory / "deltas.csv", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["relation"] == "country_capital" and row["facts"] == "headline"
        ]

    def change(row: dict[str, str]) -> float:
        return float(row["recall_after"]) - float(row["recall_before"])

    (capital,) = [
        row
        for row in rows
        if (row["method"], row["masked"]) == ("log-probability-increase", "country_capital")
    ]
    (random,) = [row for row in rows if row["method"] == "random"]
    # The contrasted attribution mask removes most of what a random mask of its size leaves.
    assert float(capital["recall_before"]) >= 0.4
    assert change(capital) <= -0.3
    assert change(capital) < change(random) - 0.2
    # Ten facts are too few to test.
    assert "not testable: " in printed and capital["delta"] == ""
