"""Runs: the forward calls of a plan."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from interventions.errors import UserError
from interventions.units import base_model, config_of
from relbench.engine.attention import attention_of
from relbench.engine.packs import Pack
from relbench.engine.plan import Plan, calls
from relbench.engine.requests import TokenScore
from relbench.engine.rows import CONTEXT, CONTINUATION, LAST_CONTEXT

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from interventions.apply import Handle

    # Keys and values of a stem, a pair a layer, each [1, heads, length, head size].
    Pairs = list[tuple[Tensor, Tensor]]

# Answers whose rank is counted at once; each takes a copy of a vocabulary's logits.
RANKED_AT_ONCE = 64


def run_plan(
    model: PreTrainedModel,
    plan: Plan,
    *,
    call_tokens: int,
    handle: Handle | None = None,
    progress: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[TokenScore]:
    """Score every request of `plan` on `model` as it is now.

    Args:
        model: A causal LM in eval mode.
        plan: From `make_plan`.
        call_tokens: Tokens of a forward call, at most, unless one input has more.
        handle: The open interventions, which are told the positions of each call.
        progress: Whether to show a progress bar on stderr.
        dtype: Of the softmax.

    Returns:
        A score for each request, in the order of the requests.

    Raises:
        UserError: Log probabilities are not finite.
    """
    scores: list[TokenScore | None] = [None] * plan.n_requests
    runner = _Runner(model, handle, dtype)
    bar = tqdm(total=plan.n_requests, desc="scoring", disable=None if progress else True, leave=False)
    # The stems that lead to the present one, with their keys and values.
    kept: list[tuple[int, Pairs]] = []
    with torch.inference_mode(), bar:
        for number, stem in enumerate(plan.stems):
            while kept and kept[-1][0] != stem.parent:
                kept.pop()
            if stem.tokens:
                kept.append((number, runner.stem(stem.tokens, kept[-1][1] if kept else None)))
            for batch in calls(stem.packs, call_tokens):
                for index, score in runner.score(batch, stem.length, kept[-1][1] if kept else None):
                    scores[index] = score
                    bar.update(1)
    return [score for score in scores if score is not None]


class _Runner:
    """Forward calls of one run."""

    def __init__(self, model: PreTrainedModel, handle: Handle | None, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self.config = config_of(model)
        self.handle = handle
        self.marking = handle is not None and any(one.positions != "all" for one in handle.interventions)
        weight = model.get_input_embeddings().weight
        assert isinstance(weight, torch.Tensor)
        self.device = weight.device
        accepted = inspect.signature(base_model(model).forward).parameters
        self.takes_positions = "position_ids" in accepted
        # transformers renamed the argument within version 5.
        self.cache_argument = "cache" if "cache" in accepted else "past_key_values"
        embedding = model.get_output_embeddings()
        if embedding is None:
            raise ValueError(f"{type(model).__name__} has no output embedding to score tokens with")
        self.unembedding = embedding

    def stem(self, tokens: tuple[int, ...], before: Pairs | None) -> Pairs:
        """Keys and values of a beginning that ends with `tokens`, after those of what stands before them."""
        past = before[0][0].shape[-2] if before else 0
        ids = torch.tensor([tokens])
        roles = torch.full_like(ids, CONTEXT)
        attention = torch.ones(1, past + len(tokens), dtype=torch.long, device=self.device)
        places = torch.arange(past, past + len(tokens))[None]
        cache = self._cache(before, 1)
        nowhere = torch.zeros(0, dtype=torch.long)
        with _unembed_only(self.unembedding, nowhere, nowhere):
            self._forward(ids, places, roles, attention, cache)
        pairs = []
        for layer in cache.layers:
            assert isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None
            pairs.append((layer.keys, layer.values))
        return pairs

    def score(
        self, packs: Sequence[Pack], past: int, before: Pairs | None
    ) -> Iterator[tuple[int, TokenScore]]:
        """Scores of the requests of `packs`, which follow a stem of `past` tokens."""
        shape = len(packs), max(len(one.tokens) for one in packs)
        ids, roles = torch.zeros(shape, dtype=torch.long), torch.full(shape, -1)
        # Unused slots stand where the first used one does: later positions may be beyond the model's window.
        places = torch.full(shape, past)
        predicting: dict[tuple[int, int], int] = {}
        spans: list[tuple[int, tuple[int, ...], list[int]]] = []
        for number, one in enumerate(packs):
            end = len(one.tokens)
            ids[number, :end] = torch.tensor(one.tokens)
            roles[number, :end] = torch.tensor(one.roles)
            places[number, :end] = torch.tensor(one.places)
            for read in one.reads:
                rows = [predicting.setdefault((number, slot), len(predicting)) for slot in read.slots]
                spans.append((read.request, read.continuation, rows))
        attention = attention_of(packs, past, self.config, self.model.dtype, self.device)
        cache = self._cache(before, shape[0]) if before else None
        batch, slot = (torch.tensor(column) for column in zip(*predicting, strict=True))
        with _unembed_only(self.unembedding, batch, slot):
            logits = self._forward(ids, places, roles, attention, cache)
        yield from _scores(logits[0].to(self.dtype), spans)

    def _forward(self, ids: Tensor, places: Tensor, roles: Tensor, attention: Any, cache: Any) -> Tensor:
        if self.marking:
            assert self.handle is not None
            roles = roles.to(self.device)
            self.handle.position_mask = {
                "context": (roles == CONTEXT) | (roles == LAST_CONTEXT),
                "last_context": roles == LAST_CONTEXT,
                "continuation": roles == CONTINUATION,
            }
        arguments: dict[str, Any] = {"attention_mask": attention, "use_cache": cache is not None}
        if self.takes_positions:
            arguments["position_ids"] = places.to(self.device)
        if cache is not None:
            arguments[self.cache_argument] = cache
        logits: Tensor = self.model(input_ids=ids.to(self.device), **arguments).logits
        return logits

    def _cache(self, pairs: Pairs | None, rows: int) -> DynamicCache:
        """A cache to be continued by `rows` inputs. Layers with a window keep all: the masks know of it."""
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(pairs or ()):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        return cache


def _scores(
    logits: Tensor, spans: list[tuple[int, tuple[int, ...], list[int]]]
) -> Iterator[tuple[int, TokenScore]]:
    """Scores of continuations.

    Args:
        logits: Of the positions that predict, [positions, vocabulary].
        spans: For each request its index, its continuation, and the row of `logits` that predicts each token.
    """
    at = torch.tensor([row for _, _, rows in spans for row in rows], device=logits.device)
    wanted = torch.tensor([token for _, tokens, _ in spans for token in tokens], device=logits.device)
    logprob = (logits[at, wanted] - torch.logsumexp(logits, dim=-1)[at]).double().cpu()
    # Comparisons with NaN are false, so that it would pass for the best rank.
    if not bool(torch.isfinite(logprob).all()):
        raise UserError(
            "the model's log probabilities are not finite: its numbers overflow; use dtype float32, or a "
            "weaker intervention"
        )
    greedy = (logits.argmax(dim=-1)[at] == wanted).cpu()
    starts = torch.tensor([rows[0] for _, _, rows in spans], device=logits.device)
    firsts = torch.tensor([tokens[0] for _, tokens, _ in spans], device=logits.device)
    ranks = torch.cat(
        [
            (logits[some] > logits[some, first][:, None]).sum(dim=-1) + 1
            for some, first in zip(starts.split(RANKED_AT_ONCE), firsts.split(RANKED_AT_ONCE), strict=True)
        ]
    ).tolist()
    offset = 0
    for (index, tokens, _), rank in zip(spans, ranks, strict=True):
        part = slice(offset, offset + len(tokens))
        yield index, TokenScore(float(logprob[part].sum()), bool(greedy[part].all()), rank)
        offset += len(tokens)


@contextmanager
def _unembed_only(unembedding: torch.nn.Module, rows: Tensor, positions: Tensor) -> Iterator[None]:
    """Let the unembedding see only hidden states [rows, positions], as one sequence [1, selected, width].

    Whatever a family does to the logits afterwards is element-wise, so this is exact for all of them.
    """

    def pick(_module: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = arguments[0]
        return (hidden[rows.to(hidden.device), positions.to(hidden.device)][None], *arguments[1:])

    hook = unembedding.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        hook.remove()
