"""The engine against plain one-by-one forward passes, for every family."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relbench.engine import TokenRequest, TokenScore, make_plan, run_plan
from tests.tiny import MODEL_TYPES, tiny_model


def _brute(model: torch.nn.Module, request: TokenRequest, window: int) -> TokenScore:
    tokens = (request.context + request.continuation)[-(window + 1) :]
    n = len(request.continuation)
    with torch.inference_mode():
        logits = model(torch.tensor([tokens[:-1]])).logits[0, -n:].double()
    wanted = torch.tensor(request.continuation)
    logprob = logits.log_softmax(-1)[torch.arange(n), wanted].sum()
    greedy = bool((logits.argmax(-1) == wanted).all())
    rank = int((logits[0] > logits[0, wanted[0]]).sum()) + 1
    return TokenScore(float(logprob), greedy, rank)


def _requests(seed: int) -> list[TokenRequest]:
    """Two few-shot-like tasks, candidates that begin one another, a lone long request, a repeated one."""
    draw = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 250, (n,), generator=draw).tolist())

    requests = []
    for length in (40, 25):
        prefix = tokens(length)
        for _ in range(5):
            context = prefix + tokens(int(torch.randint(1, 9, (1,), generator=draw)))
            answer = tokens(3)
            requests += [TokenRequest(context, answer[:n]) for n in (1, 2, 3)]
            requests.append(TokenRequest(context, tokens(2)))
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


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_shared_scoring_equals_one_by_one(model_type: str) -> None:
    model = tiny_model(model_type)
    requests = _requests(0)
    plan = make_plan(requests, 512)
    assert plan.n_tokens < make_plan(requests, 512, share=False).n_tokens / 2
    expected = [_brute(model, request, 512) for request in requests]
    _close(run_plan(model, plan, batch_size=4), expected)


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_scores_do_not_depend_on_batch_size_or_order(batch_size: int) -> None:
    model = tiny_model("llama")
    requests = _requests(1)
    expected = run_plan(model, make_plan(requests, 512), batch_size=5)
    _close(run_plan(model, make_plan(requests, 512), batch_size=batch_size), expected)
    backwards = run_plan(model, make_plan(requests[::-1], 512), batch_size=batch_size)
    _close(backwards[::-1], expected)


@pytest.mark.parametrize("window", [8, 30, 45])
def test_long_inputs_lose_their_first_tokens_as_in_lm_eval(window: int) -> None:
    model = tiny_model("llama")
    requests = _requests(2)
    expected = [_brute(model, request, window) for request in requests]
    _close(run_plan(model, make_plan(requests, window), batch_size=4), expected)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_plan_covers_every_request_once(seed: int) -> None:
    requests = _requests(seed)
    plan = make_plan(requests, 512)
    seen = []
    for group in plan.groups:
        head = {row.tokens[: group.prefix] for row in group.rows}
        assert len(head) == 1
        for row in group.rows:
            assert group.prefix < row.context_length
            for index, continuation in row.requests:
                seen.append(index)
                request = requests[index]
                assert row.context_length == len(request.context)
                assert row.tokens[: len(request.context) + len(continuation) - 1] == (
                    request.context + continuation[:-1]
                )
    assert sorted(seen) == list(range(len(requests)))


def test_empty_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        make_plan([TokenRequest((), (1,))], 8)
    with pytest.raises(ValueError, match="empty"):
        make_plan([TokenRequest((1,), ())], 8)
    with pytest.raises(ValueError, match="window"):
        make_plan([TokenRequest((1,), tuple(range(9)))], 8)
