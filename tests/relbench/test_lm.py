"""The lm-eval model `relbench` against lm-eval's own `hf`, masked and not."""

from __future__ import annotations

import copy
import json
import pickle
import string
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from interventions.apply import Intervention, Positions, intervene
from interventions.errors import UserError
from interventions.masks import Mask
from interventions.model_id import ModelId
from interventions.units import Site
from relbench.answers import AnswerScore, GeneratedText
from relbench.engine import TokenRequest
from relbench.harness import build_tasks
from relbench.lm import RelbenchLM
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


@pytest.fixture(scope="module")
def asked() -> list[Instance]:
    """The requests of all three tasks, without lm-eval's evaluator around them."""
    built = build_tasks(TASKS, shots=5, limit=4)
    return [instance for task in built for instance in task.instances]


def _scores(lm: HFLM, asked: list[Instance]) -> list[tuple[float, bool]]:
    return lm.loglikelihood(asked, disable_tqdm=True)  # type: ignore[no-any-return]


def _equal(ours: list[tuple[float, bool]], theirs: list[tuple[float, bool]], tolerance: float = 1e-4) -> None:
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert [score for score, _ in ours] == pytest.approx([score for score, _ in theirs], abs=tolerance)


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
    masked = _run(_relbench(model, interventions=[Intervention(mask)]), manager)
    _same(masked, _run(_hf(_zeroed(model, mask)), manager))


def test_a_mask_changes_scores_and_leaves_nothing_behind(asked: list[Instance]) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    lm = _relbench(model)
    before = _scores(lm, asked)
    lm.interventions = (Intervention(_mask(model)),)
    assert _scores(lm, asked) != before
    lm.interventions = ()
    assert _scores(lm, asked) == before


def test_masked_scores_do_not_depend_on_batch_size_or_order(asked: list[Instance]) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    chosen = [Intervention(_mask(model))]
    expected = _scores(_relbench(model, interventions=chosen), asked)
    for batch_size in (1, 16, "auto:4"):
        lm = RelbenchLM(model, tokenizer=tiny_tokenizer(), batch_size=batch_size, interventions=chosen)
        _equal(_scores(lm, asked), expected)
        _equal(_scores(lm, asked[::-1])[::-1], expected)
    # No search for a batch size that fits: calls are bounded in tokens.
    assert lm.batch_size == 32


def test_a_mask_that_changes_nothing_gives_the_very_same_numbers(asked: list[Instance]) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    scaled_by_one = Intervention(_mask(model), mode="scale", factor=1.0)
    assert _scores(_relbench(model, interventions=[scaled_by_one]), asked) == _scores(_relbench(model), asked)


def test_positions_tell_context_from_continuation(asked: list[Instance]) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    runs = [
        _scores(_relbench(model, interventions=[Intervention(_mask(model), positions=positions)]), asked)
        for positions in get_args(Positions)
    ]
    assert len({tuple(score for score, _ in run) for run in runs}) == 4


@pytest.mark.parametrize("option", ["mixed_precision_dtype", "softmax_dtype"])
def test_precision_options_are_lm_evals(asked: list[Instance], option: str) -> None:
    """Half precision differs by its rounding, and from full precision."""
    model = tiny_model("llama", max_position_embeddings=2048)
    chosen = {option: "float64" if option == "softmax_dtype" else "bfloat16"}
    ours = _scores(_relbench(model, **chosen), asked)
    theirs = _scores(HFLM(model, tokenizer=tiny_tokenizer(), batch_size=8, **chosen), asked)
    full = _scores(_relbench(model), asked)
    apart = [abs(a[0] - b[0]) for a, b in zip(ours, theirs, strict=True)]
    if option == "softmax_dtype":
        assert max(apart) < 1e-4
    else:
        assert max(apart) < 1 and ours != full
        assert np.mean(apart) < 2 * np.mean([abs(a[0] - b[0]) for a, b in zip(theirs, full, strict=True)])


def _zeroed(model: torch.nn.Module, mask: Mask) -> torch.nn.Module:
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for site, units in mask.units.items():
            by_hand.model.layers[site.layer].mlp.down_proj.weight[:, units.tolist()] = 0
    return by_hand


def _instances(kind: str, texts: Sequence[str], *options: Any) -> list[Instance]:
    return [Instance(kind, {}, (text, *options), number) for number, text in enumerate(texts)]


TEXTS = ["one two", "three", "a rather longer text than those", "one two"]
GREEDY = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}


@pytest.mark.parametrize("how", ["fold", "hook"])
def test_generation_and_rolling_are_masked(how: str) -> None:
    """Against a model zeroed by hand; a constant of zero cannot be folded and goes in by hooks."""
    model = tiny_model("llama", max_position_embeddings=2048)
    mask = _mask(model)
    chosen = Intervention(mask) if how == "fold" else Intervention(mask, mode="constant", value=0.0)
    ours, theirs = _relbench(model, interventions=[chosen]), _hf(_zeroed(model, mask))
    with ours.intervened() as handle:
        assert handle is not None and (handle.hooked > 0) == (how == "hook")
    texts = _instances("loglikelihood_rolling", TEXTS)
    rolled = theirs.loglikelihood_rolling(texts, disable_tqdm=True)
    assert ours.loglikelihood_rolling(texts, disable_tqdm=True) == pytest.approx(rolled, abs=1e-4)
    asked = _instances("generate_until", TEXTS, GREEDY)
    generated = theirs.generate_until(asked, disable_tqdm=True)
    assert ours.generate_until(asked, disable_tqdm=True) == generated
    assert generated != _hf(model).generate_until(asked, disable_tqdm=True)


def _lettered() -> torch.nn.Module:
    """A tiny model that says letters only, whose text shows every token."""
    model = tiny_model("llama", max_position_embeddings=2048)
    letters = tiny_tokenizer().encode(string.ascii_letters, add_special_tokens=False)
    with torch.no_grad():
        others = np.setdiff1d(np.arange(model.config.vocab_size), letters)
        model.lm_head.weight[others] = 0
    return model


def _strong(model: torch.nn.Module, positions: Any) -> Intervention:
    return Intervention(_mask(model), mode="scale", factor=-30.0, positions=positions)


def _without_cache(lm: RelbenchLM, text: str, steps: int) -> list[int]:
    """Tokens that follow `text`, each from a whole forward pass under position masks set by hand."""
    tokens = lm.tok_encode(text)
    n = len(tokens)
    with lm.intervened() as handle, torch.inference_mode():
        for _ in range(steps):
            place = torch.arange(len(tokens))[None]
            if handle is not None:
                handle.position_mask = {
                    "context": place < n,
                    "last_context": place == n - 1,
                    "continuation": place >= n,
                }
            tokens.append(int(lm.model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[n:]


@pytest.mark.parametrize("positions", [None, "all", "context", "last_context", "continuation"])
def test_generation_is_masked_at_its_positions(positions: Any) -> None:
    """The prompt is the context and what is generated the continuation, whatever the padding."""
    model = _lettered()
    chosen = [_strong(model, positions)] if positions else []
    lm = _relbench(model, interventions=chosen)
    options = {"until": ["no such text"], "max_gen_toks": 6, "do_sample": False}
    texts = lm.generate_until(_instances("generate_until", TEXTS, options), disable_tqdm=True)
    for text, got in zip(TEXTS, texts, strict=True):
        expected = _without_cache(lm, text, 6)
        assert got == lm.tok_decode(expected)
        assert isinstance(got, GeneratedText)
        assert got.first_two == lm.tok_decode(expected[:2])


def test_positions_change_what_is_generated() -> None:
    model = _lettered()
    runs = [
        tuple(_without_cache(_relbench(model, interventions=[_strong(model, positions)]), TEXTS[2], 6))
        for positions in get_args(Positions)
    ]
    assert len(set(runs)) == 4


def test_the_first_two_tokens_end_where_the_text_does() -> None:
    model = _lettered()
    lm = _relbench(model)
    first, second = _without_cache(lm, "one two", 2)
    stop = lm.tok_decode([second])
    for until, expected in (([stop], lm.tok_decode([first])), ([lm.tok_decode([first])], "")):
        (text,) = lm.generate_until(_instances("generate_until", ["one two"], {**GREEDY, "until": until}))
        assert text == expected and text.first_two == expected


def test_rolling_refuses_positions() -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    lm = _relbench(model, interventions=[Intervention(_mask(model), positions="context")])
    with pytest.raises(UserError, match="positions=all"):
        lm.loglikelihood_rolling(_instances("loglikelihood_rolling", TEXTS), disable_tqdm=True)


def test_an_intervention_stays_in_for_a_block_and_is_put_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    lm = _relbench(model, interventions=[Intervention(_mask(model))])
    plan = lm.plan([TokenRequest((5, 6), (7,))])
    expected = lm.score_plan(plan)
    entered = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        entered.append(args)
        return intervene(*args, **kwargs)

    monkeypatch.setattr("relbench.lm.intervene", counting)
    with lm.intervened():
        assert lm.score_plan(plan) == expected
        assert lm.score_plan(plan) == expected
        lm.interventions = ()
        with pytest.raises(UserError, match="still in"):
            lm.score_plan(plan)
    assert len(entered) == 1
    assert lm.score_plan(plan) != expected


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


def test_answers_are_plain_to_others() -> None:
    """Unpacked, compared and written as lm-eval's own; its response cache pickles them."""
    score = AnswerScore(-1.5, True, 3)
    logprob, greedy = score
    assert (logprob, greedy) == (-1.5, True)
    assert score == (-1.5, True)
    assert pickle.loads(pickle.dumps(score)).first_token_rank == 3
    text = GeneratedText("Paris, of course", "Paris,")
    assert text == "Paris, of course"
    assert json.dumps([text]) == '["Paris, of course"]'
    restored = pickle.loads(pickle.dumps(text))
    assert (restored, restored.first_two) == ("Paris, of course", "Paris,")
