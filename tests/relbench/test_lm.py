"""The lm-eval model `relbench` against lm-eval's own `hf`, masked and not."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from interventions.apply import Intervention
from interventions.errors import UserError
from interventions.masks import Mask
from interventions.model_id import ModelId
from interventions.units import Site
from relbench.lm import AnswerScore, RelbenchLM
from relbench.paths import tasks_dir
from tests.tiny import tiny_model, tiny_tokenizer

TASKS = [
    "relbench_star_constellation_en",
    "relbench_star_constellation_ja",
    "relbench_star_constellation_en_mc",
]


@pytest.fixture(scope="module")
def manager() -> TaskManager:
    return TaskManager(include_path=str(tasks_dir() / "star_constellation"), include_defaults=False)


def _mask(model: torch.nn.Module) -> Mask:
    units = {
        Site(0, "act"): np.array([0, 3, 5, 17], dtype=np.int32),
        Site(2, "act"): np.arange(20, dtype=np.int32),
    }
    return Mask(units, ModelId.of(model), {"operation": "made for a test"})


def _run(lm: Any, manager: TaskManager, **changes: Any) -> dict[str, list[dict[str, Any]]]:
    results = simple_evaluate(
        model=lm, tasks=TASKS, task_manager=manager, limit=4, bootstrap_iters=0, log_samples=True, **changes
    )
    assert results is not None
    samples: dict[str, list[dict[str, Any]]] = results["samples"]
    return samples


def _same(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float = 1e-4) -> None:
    assert ours.keys() == theirs.keys()
    for task in ours:
        for a, b in zip(ours[task], theirs[task], strict=True):
            assert (a["doc_hash"], a["prompt_hash"]) == (b["doc_hash"], b["prompt_hash"])
            for one, other in zip(a["filtered_resps"], b["filtered_resps"], strict=True):
                assert one[0] == pytest.approx(other[0], abs=tolerance)
                assert one[1] == other[1]


def _relbench(model: torch.nn.Module, batch_size: int = 8, **arguments: Any) -> RelbenchLM:
    return RelbenchLM(model, tokenizer=tiny_tokenizer(), batch_size=batch_size, **arguments)


def _hf(model: torch.nn.Module) -> HFLM:
    return HFLM(model, tokenizer=tiny_tokenizer(), batch_size=8)


@pytest.mark.parametrize("shots", [0, 5])
def test_equals_lm_evals_own_model(manager: TaskManager, shots: int) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    _same(_run(_relbench(model), manager, num_fewshot=shots), _run(_hf(model), manager, num_fewshot=shots))


def test_masked_equals_a_model_zeroed_by_hand(manager: TaskManager) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    mask = _mask(model)
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for site, units in mask.units.items():
            by_hand.model.layers[site.layer].mlp.down_proj.weight[:, units.tolist()] = 0
    masked = _run(_relbench(model, interventions=[Intervention(mask)]), manager)
    _same(masked, _run(_hf(by_hand), manager))
    plain = _run(_relbench(model), manager)
    first = TASKS[0]
    assert masked[first][0]["filtered_resps"][0][0] != plain[first][0]["filtered_resps"][0][0]


def test_masked_scores_do_not_depend_on_batch_size(manager: TaskManager) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    chosen = [Intervention(_mask(model))]
    _same(
        _run(_relbench(model, batch_size=1, interventions=chosen), manager),
        _run(_relbench(model, batch_size=16, interventions=chosen), manager),
    )


def test_a_mask_that_changes_nothing_gives_the_very_same_numbers(manager: TaskManager) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    scaled_by_one = Intervention(_mask(model), mode="scale", factor=1.0)
    _same(
        _run(_relbench(model, interventions=[scaled_by_one]), manager),
        _run(_relbench(model), manager),
        tolerance=0.0,
    )


def test_positions_tell_context_from_continuation(manager: TaskManager) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    runs = {
        positions: _run(
            _relbench(model, interventions=[Intervention(_mask(model), positions=positions)]), manager
        )
        for positions in ("all", "context", "last_context", "continuation")
    }
    scores = {
        positions: [sample["filtered_resps"][0][0] for sample in run[TASKS[0]]]
        for positions, run in runs.items()
    }
    assert len({tuple(values) for values in scores.values()}) == 4


def test_generation_and_rolling_are_masked(manager: TaskManager) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    mask = _mask(model)
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for site, units in mask.units.items():
            by_hand.model.layers[site.layer].mlp.down_proj.weight[:, units.tolist()] = 0
    ours, theirs = _relbench(model, interventions=[Intervention(mask)]), _hf(by_hand)
    from lm_eval.api.instance import Instance

    texts = [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(["one two", "three"])]
    assert ours.loglikelihood_rolling(texts, disable_tqdm=True) == pytest.approx(
        theirs.loglikelihood_rolling(texts, disable_tqdm=True), abs=1e-4
    )
    options = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    asked = [
        Instance("generate_until", {}, (text, options), i) for i, text in enumerate(["one two", "three"])
    ]
    assert ours.generate_until(asked, disable_tqdm=True) == theirs.generate_until(asked, disable_tqdm=True)


def test_a_mask_of_another_model_is_refused() -> None:
    mask = _mask(tiny_model("llama", seed=1))
    with pytest.raises(UserError, match="model"):
        _relbench(tiny_model("llama", seed=2), interventions=[Intervention(mask)])


def test_a_forced_mask_is_said_in_the_results() -> None:
    mask = _mask(tiny_model("llama", seed=1))
    forced = _relbench(tiny_model("llama", seed=2), interventions=[Intervention(mask)], force=True)
    assert forced.get_model_info()["relbench"]["forced"] is True
    fitting = _relbench(tiny_model("llama", seed=1), interventions=[Intervention(mask)], force=True)
    assert fitting.get_model_info()["relbench"]["forced"] is False


def test_options_without_a_mask_are_refused() -> None:
    with pytest.raises(UserError, match="mask="):
        _relbench(tiny_model("llama"), factor=0.5)


def test_answer_scores_are_plain_tuples_to_others(tmp_path: Path) -> None:
    score = AnswerScore(-1.5, True, 3)
    logprob, greedy = score
    assert (logprob, greedy) == (-1.5, True)
    assert score == (-1.5, True)
    restored = pickle.loads(pickle.dumps(score))  # lm-eval's response cache does this
    assert restored.first_token_rank == 3
