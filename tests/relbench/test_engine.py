"""The engine against plain one-by-one forward passes, for every family and every way of sharing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, BambaConfig, MambaConfig, PreTrainedModel

from interventions.apply import Handle, Intervention, intervene
from interventions.errors import UserError
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.units import Site
from relbench.engine import Plan, Sharing, TokenRequest, TokenScore, make_plan, run_plan, sharing_of
from relbench.engine.plan import CALL_OVERHEAD_TOKENS, MAX_STEMS, calls
from relbench.engine.rows import CONTEXT, CONTINUATION, LAST_CONTEXT
from tests.tiny import MODEL_TYPES, tiny_model

SHARING: tuple[Sharing, ...] = ("tree", "prefix", "none")


def _brute(
    model: torch.nn.Module, request: TokenRequest, window: int, handle: Handle | None = None
) -> TokenScore:
    tokens = (request.context + request.continuation)[-(window + 1) :]
    n = len(request.continuation)
    if handle is not None:
        place = torch.arange(len(tokens) - 1)[None]
        own = len(tokens) - n
        handle.position_mask = {
            "context": place < own,
            "last_context": place == own - 1,
            "continuation": place >= own,
        }
    with torch.inference_mode():
        logits = model(torch.tensor([tokens[:-1]])).logits[0, -n:].double()
    wanted = torch.tensor(request.continuation)
    logprob = logits.log_softmax(-1)[torch.arange(n), wanted].sum()
    greedy = bool((logits.argmax(-1) == wanted).all())
    rank = int((logits[0] > logits[0, wanted[0]]).sum()) + 1
    return TokenScore(float(logprob), greedy, rank)


def _drawing(seed: int) -> Callable[[int], tuple[int, ...]]:
    draw = torch.Generator().manual_seed(seed)
    return lambda n: tuple(torch.randint(3, 250, (n,), generator=draw).tolist())


def _requests(seed: int) -> list[TokenRequest]:
    """Two few-shot-like tasks, candidates that begin one another, a lone long request, a repeated one."""
    tokens = _drawing(seed)
    requests = []
    for length in (40, 25):
        prefix = tokens(length)
        for number in range(5):
            context = prefix + tokens(1 + number % 4)
            answer = tokens(3)
            requests += [TokenRequest(context, answer[:n]) for n in (1, 2, 3)]
            requests.append(TokenRequest(context, tokens(2)))
            # Where one request's answer is another one's context.
            requests.append(TokenRequest(context + answer[:1], answer[1:]))
    requests.append(TokenRequest(tokens(70), tokens(4)))
    requests.append(requests[0])
    requests.append(TokenRequest(tokens(1), tokens(1)))
    return requests


def _close(got: list[TokenScore], expected: list[TokenScore], tolerance: float = 1e-4) -> None:
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=tolerance)
        assert ours.greedy == theirs.greedy
        assert ours.first_token_rank == theirs.first_token_rank


def _sharing(model_type: str) -> Sharing:
    # BLOOM's positions come from its padding mask, which has no place for a tree.
    return "prefix" if model_type == "bloom" else "tree"


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, "llama, eager", "gemma3_text, eager"])
def test_shared_scoring_equals_one_by_one(model_type: str) -> None:
    model_type, _, attention = model_type.partition(", ")
    model = tiny_model(model_type)
    if attention:
        model.set_attn_implementation(attention)
    requests = _requests(0)
    assert sharing_of(model) == _sharing(model_type)
    plan = make_plan(requests, 512, sharing=_sharing(model_type), width=48)
    assert plan.n_tokens < make_plan(requests, 512, sharing="none").n_tokens / 2
    expected = [_brute(model, request, 512) for request in requests]
    _close(run_plan(model, plan, call_tokens=100), expected)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2"])
def test_every_way_of_sharing_gives_the_same(model_type: str, sharing: Sharing) -> None:
    """Gemma's sliding window is 16 here, shorter than the shared beginnings."""
    model = tiny_model(model_type)
    requests = _requests(3)
    expected = [_brute(model, request, 512) for request in requests]
    for width in (8, 200):
        plan = make_plan(requests, 512, sharing=sharing, width=width)
        _close(run_plan(model, plan, call_tokens=64), expected)


def test_a_window_over_all_layers_is_kept() -> None:
    model = tiny_model("mistral", sliding_window=8)
    requests = _requests(4)
    assert sharing_of(model) == "tree"
    expected = [_brute(model, request, 512) for request in requests]
    _close(run_plan(model, make_plan(requests, 512, width=32), call_tokens=100), expected)


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(vocab_size=259, hidden_size=16, num_hidden_layers=2, state_size=4),
        BambaConfig(
            vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4,
            mamba_n_groups=1, mamba_chunk_size=4,
        ),
    ],
    ids=["recurrent", "hybrid"],
)  # fmt: skip
def test_models_with_another_state_share_nothing(config: MambaConfig | BambaConfig) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert sharing_of(model) == "none"
    requests = _requests(5)
    expected = [_brute(model, request, 512) for request in requests]
    _close(run_plan(model, make_plan(requests, 512, sharing="none"), call_tokens=128), expected)


def test_a_model_that_misreads_the_masks_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    causal = model.model.forward

    def without_mask(*args: object, **kwargs: object) -> object:
        if getattr(kwargs.get("attention_mask"), "ndim", 0) == 4:
            kwargs["attention_mask"] = None
        return causal(*args, **kwargs)

    monkeypatch.setattr(model.model, "forward", without_mask)
    assert sharing_of(model) == "prefix"


@pytest.mark.parametrize("call_tokens", [1, 40, 300])
@pytest.mark.parametrize("sharing", ["tree", "prefix"])
def test_scores_do_not_depend_on_batch_size_or_order(sharing: Sharing, call_tokens: int) -> None:
    model = tiny_model("llama")
    requests = _requests(1)
    expected = run_plan(model, make_plan(requests, 512, sharing=sharing), call_tokens=128)
    for order in (requests, requests[::-1], [*requests[7:], *requests[:7]]):
        got = run_plan(model, make_plan(order, 512, sharing=sharing), call_tokens=call_tokens)
        wanted = [expected[requests.index(request)] for request in order]
        _close(got, wanted)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("window", [8, 30, 45])
def test_long_inputs_lose_their_first_tokens_as_in_lm_eval(window: int, sharing: Sharing) -> None:
    model = tiny_model("llama")
    requests = _requests(2)
    expected = [_brute(model, request, window) for request in requests]
    plan = make_plan(requests, window, sharing=sharing, width=24)
    _close(run_plan(model, plan, call_tokens=64), expected)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "bloom"])
def test_interventions_act_where_they_should(model_type: str) -> None:
    """Two at once, with positions of their own: position masks hold in stems, packs and padding."""
    model = tiny_model(model_type)
    requests = _requests(6)
    masks = [
        Mask({Site(layer, "act"): np.arange(start, start + 12, dtype=np.int32)}, ModelId.of(model), {})
        for layer, start in ((0, 0), (1, 20))
    ]
    plan = make_plan(requests, 512, sharing=_sharing(model_type), width=48)
    seen = set()
    for first, second in itertools.pairwise(("context", "all", "continuation", "last_context", "context")):
        chosen = (
            Intervention(masks[0], positions=first),
            Intervention(masks[1], mode="scale", factor=3.0, positions=second),
        )
        with intervene(model, *chosen) as handle:
            expected = [_brute(model, request, 512, handle) for request in requests]
            _close(run_plan(model, plan, call_tokens=100, handle=handle), expected)
        seen.add(round(expected[0].logprob, 5))
    assert len(seen) == 4


def _paths(plan: Plan) -> Iterator[tuple[int, tuple[int, ...], list[tuple[int, int, int]], tuple[int, ...]]]:
    """Of every request its index, continuation, the (token, place, role) that its last slot sees, and slots."""
    before: dict[int | None, list[tuple[int, int, int]]] = {None: []}
    for number, stem in enumerate(plan.stems):
        start = before[stem.parent]
        own = [(token, len(start) + offset, CONTEXT) for offset, token in enumerate(stem.tokens)]
        before[number] = start + own
        assert stem.length == len(before[number])
        for one in stem.packs:
            for read in one.reads:
                last = read.slots[-1]
                seen = [slot for slot in range(last + 1) if last < one.ends[slot]]
                path = [(one.tokens[slot], one.places[slot], one.roles[slot]) for slot in seen]
                assert seen[-len(read.slots) :] == list(read.slots)
                yield read.request, read.continuation, before[number] + path, read.slots


@given(st.integers(0, 10_000), st.sampled_from(SHARING), st.sampled_from([4, 30, 128]))
@settings(max_examples=30, deadline=None)
def test_a_plan_shows_every_request_its_own_input_once(seed: int, sharing: Sharing, width: int) -> None:
    requests = _requests(seed)
    found = []
    for index, continuation, path, slots in _paths(make_plan(requests, 512, sharing=sharing, width=width)):
        found.append(index)
        context = requests[index].context
        assert continuation == requests[index].continuation
        assert len(slots) == len(continuation)
        n = len(context)
        assert [token for token, _, _ in path] == [*context, *continuation[:-1]]
        assert [place for _, place, _ in path] == list(range(len(path)))
        roles = [CONTEXT] * (n - 1) + [LAST_CONTEXT] + [CONTINUATION] * (len(path) - n)
        assert [role for _, _, role in path] == roles
    assert sorted(found) == list(range(len(requests)))


def _distinct(requests: list[TokenRequest]) -> int:
    """Tokens of the requests' tree: the different beginnings of their inputs."""
    inputs = [request.context + request.continuation[:-1] for request in requests]
    return len({tokens[: n + 1] for tokens in inputs for n in range(len(tokens))})


def test_every_token_of_a_task_is_computed_once() -> None:
    """A shared prefix, 60 questions, 16 candidates each: as many tokens as their tree has."""
    tokens = _drawing(0)
    prefix, requests = tokens(70), []
    for _ in range(60):
        question = tokens(8)
        requests += [TokenRequest(prefix + question, tokens(1 + number % 3)) for number in range(16)]
    distinct = _distinct(requests)
    plan = make_plan(requests, 512)
    assert plan.n_tokens == distinct
    batches = [batch for stem in plan.stems for batch in calls(stem.packs, 512)]
    padding = sum(
        len(batch) * len(batch[0].tokens) - sum(len(one.tokens) for one in batch) for batch in batches
    )
    assert padding < 0.03 * distinct
    assert plan.n_calls(512) == len(batches) + 1 <= distinct / 512 * 1.3 + 2


def test_single_token_answers_need_no_second_level() -> None:
    tokens = _drawing(1)
    prefix = tokens(50)
    questions = [prefix + tokens(6) for _ in range(40)]
    requests = [TokenRequest(question, tokens(1)) for question in questions for _ in range(16)]
    for sharing in ("tree", "prefix"):
        plan = make_plan(requests, 512, sharing=sharing)
        assert [len(stem.tokens) for stem in plan.stems] == [0, 50]
        rows = sum(len(one.reads) == 16 for stem in plan.stems for one in stem.packs)
        assert plan.n_tokens == (_distinct(requests) if sharing == "tree" else 50 + 6 * rows)


def test_contexts_that_grow_token_by_token_stay_cheap() -> None:
    """As in a rolling score of one text: no stem for each, and never each context anew."""
    text = _drawing(2)(900)
    requests = [TokenRequest(text[:n], text[n : n + 1]) for n in range(1, 899)]
    plan = make_plan(requests, 1024)
    assert len(plan.stems) <= 1 + MAX_STEMS
    assert plan.n_tokens < 10 * len(requests)
    assert len(list(_paths(plan))) == len(requests)
    model = tiny_model("llama", max_position_embeddings=1024)
    some = requests[::149]
    got = run_plan(model, plan, call_tokens=512)
    _close([got[requests.index(one)] for one in some], [_brute(model, one, 1024) for one in some])


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 600))
def test_calls_hold_all_packs_and_little_padding(lengths: list[int], call_tokens: int) -> None:
    tokens = _drawing(3)
    stretch = [make_plan([TokenRequest(tokens(n), tokens(1))], 512).stems[0].packs[0] for n in lengths]
    batches = list(calls(stretch, call_tokens))
    assert sorted(len(one.tokens) for batch in batches for one in batch) == sorted(lengths)
    for batch in batches:
        widths = [len(one.tokens) for one in batch]
        assert len(batch) == 1 or max(widths) * len(batch) <= call_tokens
        assert max(widths) * len(batch) - sum(widths) <= max(CALL_OVERHEAD_TOKENS, call_tokens // 32)


def test_unused_slots_stay_within_the_window() -> None:
    # Learned positions: one beyond the window cannot even be looked up.
    model = tiny_model("gpt2", n_positions=24)
    requests = [TokenRequest(tuple(range(5, 25)), (7, 8))]
    requests += [TokenRequest((*range(5, 15), number, 30), (9,)) for number in range(30, 90)]
    requests += [TokenRequest((*range(100, 104), number), (9,)) for number in range(30, 36)]
    plan = make_plan(requests, 24, sharing="tree")
    assert max(len(pack.tokens) for stem in plan.stems for pack in stem.packs) > 24
    expected = [_brute(model, request, 24) for request in requests]
    _close(run_plan(model, plan, call_tokens=4096), expected)


def test_log_probabilities_that_are_not_finite_are_refused() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight[3] = float("nan")
    plan = make_plan([TokenRequest((5, 6), (0,))], 64)
    with pytest.raises(UserError, match="not finite"):
        run_plan(model, plan, call_tokens=64)


def test_empty_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        make_plan([TokenRequest((), (1,))], 8)
    with pytest.raises(ValueError, match="empty"):
        make_plan([TokenRequest((1,), ())], 8)
    with pytest.raises(ValueError, match="window"):
        make_plan([TokenRequest((1,), tuple(range(9)))], 8)


def test_no_requests_are_no_work() -> None:
    plan = make_plan([], 8)
    assert plan.n_tokens == plan.n_calls(100) == 0
    model: PreTrainedModel = tiny_model("llama")
    assert run_plan(model, plan, call_tokens=16) == []
