"""Scoring continuations with every shared prefix computed once.

Requests of one few-shot task differ only in their last dozen tokens. A plan sorts requests so that
equal beginnings meet, computes each group's common prefix once and keeps its keys and values, and
runs the rest in batches on top of them; only the positions that predict an answer token are
unembedded. The plan depends on the requests alone, so one plan serves every mask; the keys and values
are computed anew on each run, under whatever intervention is in the model then.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from interventions.apply import Handle

# A forward call costs about this many tokens besides its own; groups that save less are merged.
CALL_OVERHEAD_TOKENS = 24
# Prefix trees deeper than this are not split further; it bounds the recursion, not the result's rightness.
MAX_DEPTH = 200


class TokenRequest(NamedTuple):
    """Token ids of a context (at least one) and of the continuation to score (at least one)."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


class TokenScore(NamedTuple):
    """What the model thinks of a continuation.

    Attributes:
        logprob: Natural log probability, summed over its tokens.
        greedy: Whether every token is the most probable one.
        first_token_rank: Rank of its first token in the vocabulary, 1 the most probable; ties rank best.
    """

    logprob: float
    greedy: bool
    first_token_rank: int


@dataclass(frozen=True)
class Row:
    """One input sequence; several requests read their answer from it.

    Attributes:
        tokens: Model input.
        context_length: Leading tokens that belong to the context.
        requests: (request index, its continuation) for each request scored here.
    """

    tokens: tuple[int, ...]
    context_length: int
    requests: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Group:
    """Rows that share their first `prefix` tokens; 0 when nothing is shared."""

    prefix: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Plan:
    """How a list of requests is computed; `n_tokens` is what one run feeds to the model."""

    groups: tuple[Group, ...]
    n_requests: int

    @property
    def n_tokens(self) -> int:
        """Distinct input positions of one run, padding aside."""
        return sum(
            group.prefix + sum(len(row.tokens) - group.prefix for row in group.rows) for group in self.groups
        )


def make_plan(requests: Sequence[TokenRequest], max_length: int, *, share: bool = True) -> Plan:
    """Group `requests` by shared beginnings.

    Args:
        requests: What to score.
        max_length: The model's context window; longer inputs lose their first tokens, as in lm-eval.
        share: False computes every row on its own.

    Raises:
        ValueError: A request has an empty context or continuation, or a continuation longer than the window.
    """
    by_context: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
    for index, request in enumerate(requests):
        if not request.context or not request.continuation:
            raise ValueError(f"request {index} has an empty context or continuation")
        if len(request.continuation) > max_length:
            raise ValueError(
                f"request {index}: {len(request.continuation)} tokens do not fit a window of {max_length}"
            )
        by_context.setdefault(request.context, []).append((index, request.continuation))
    rows = [row for context, wanted in by_context.items() for row in _rows(context, wanted, max_length)]
    # Order decides how batches are formed, so it must not depend on the order of the requests.
    rows.sort(key=lambda row: (row.tokens, row.context_length))
    groups = _partition(rows) if share else [Group(0, (row,)) for row in rows]
    alone = [row for group in groups if not group.prefix for row in group.rows]
    shared = [group for group in groups if group.prefix]
    return Plan(tuple(([Group(0, tuple(alone))] if alone else []) + shared), len(requests))


def _rows(
    context: tuple[int, ...], wanted: list[tuple[int, tuple[int, ...]]], max_length: int
) -> Iterator[Row]:
    """Rows for the continuations of one context; inputs that begin another input need no row of their own."""
    longest_first = sorted(wanted, key=lambda item: (-len(item[1]), item[1]))
    kept: list[tuple[tuple[int, ...], list[tuple[int, tuple[int, ...]]]]] = []
    for index, continuation in longest_first:
        inputs = continuation[:-1]
        fits = len(context) + len(inputs) <= max_length
        home = next((row for row in kept if fits and row[0][: len(inputs)] == inputs), None)
        if home is None:
            kept.append((inputs, [(index, continuation)]))
        else:
            home[1].append((index, continuation))
    for inputs, members in kept:
        cut = max(0, len(context) + len(inputs) - max_length)
        if cut and len(members) > 1:
            # Truncation depends on each request's own length.
            for index, continuation in members:
                own = max(0, len(context) + len(continuation) - 1 - max_length)
                tokens = (context + continuation[:-1])[own:]
                yield Row(tokens, len(context) - own, ((index, continuation),))
        else:
            yield Row((context + inputs)[cut:], len(context) - cut, tuple(members))


def _partition(rows: list[Row]) -> list[Group]:
    """Split sorted rows into groups whose prefix sharing saves the most tokens."""
    common = [_common(a, b) for a, b in itertools.pairwise(rows)]

    def best(low: int, high: int, depth: int) -> tuple[float, list[Group]]:
        members = tuple(rows[low:high])
        if high - low == 1:
            return len(rows[low].tokens), [Group(0, members)]
        shared = min(common[low : high - 1])
        together: float = shared + sum(len(row.tokens) - shared for row in members) + CALL_OVERHEAD_TOKENS
        if depth >= MAX_DEPTH:
            return together, [Group(shared, members)]
        if shared < 2:
            together = math.inf
        cuts = [i + 1 for i in range(low, high - 1) if common[i] == shared]
        bounds = [low, *cuts, high]
        parts = [best(start, stop, depth + 1) for start, stop in itertools.pairwise(bounds)]
        apart = sum(
            cost + (CALL_OVERHEAD_TOKENS if groups[0].prefix or len(groups) > 1 else 0)
            for cost, groups in parts
        )
        if together <= apart:
            return together, [Group(shared, members)]
        return apart, [group for _, groups in parts for group in groups]

    return best(0, len(rows), 0)[1] if rows else []


def _common(a: Row, b: Row) -> int:
    """Tokens that two rows share, leaving each at least its last context token."""
    limit = min(a.context_length, b.context_length) - 1
    for i in range(limit):
        if a.tokens[i] != b.tokens[i]:
            return i
    return max(limit, 0)


def run_plan(
    model: PreTrainedModel,
    plan: Plan,
    *,
    batch_size: int,
    handle: Handle | None = None,
    positions: str = "all",
    progress: bool = False,
) -> list[TokenScore]:
    """Score every request of `plan` on `model` as it is now.

    Args:
        model: A causal LM in eval mode.
        plan: From `make_plan`.
        batch_size: Rows a forward call.
        handle: The open intervention, told which positions it acts on when `positions` is not "all".
        positions: "all", "context", "last_context" or "continuation".
        progress: Whether to show a progress bar on stderr.

    Returns:
        A score for each request, in the order of the requests.
    """
    scores: list[TokenScore | None] = [None] * plan.n_requests
    caching = all(group.prefix == 0 for group in plan.groups) or _caches_plainly(model)
    runner = _Runner(model, handle, positions)
    bar = tqdm(total=plan.n_requests, desc="scoring", disable=None if progress else True, leave=False)
    with torch.inference_mode(), bar:
        for group in plan.groups:
            prefix = group.prefix if caching else 0
            rows = sorted(group.rows, key=lambda row: (-len(row.tokens), row.tokens))
            cache = runner.prefix_cache(rows[0].tokens[:prefix]) if prefix else None
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size]
                for index, score in runner.batch(batch, prefix, cache):
                    scores[index] = score
                    bar.update(1)
    return [score for score in scores if score is not None]


class _Runner:
    """Forward calls of one run."""

    def __init__(self, model: PreTrainedModel, handle: Handle | None, positions: str) -> None:
        self.model = model
        self.handle = handle
        self.positions = positions
        weight = model.get_input_embeddings().weight
        assert isinstance(weight, torch.Tensor)
        self.device = weight.device
        accepted = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in accepted
        # transformers renamed the argument within version 5.
        self.cache_argument = "cache" if "cache" in accepted else "past_key_values"
        embedding = model.get_output_embeddings()
        if embedding is None:
            raise ValueError(f"{type(model).__name__} has no output embedding to score tokens with")
        self.unembedding = embedding

    def prefix_cache(self, tokens: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of a prefix, a pair a layer, each [1, heads, prefix, head size]."""
        ids = torch.tensor([tokens], device=self.device)
        self._mark(torch.full_like(ids, self.positions == "context", dtype=torch.bool))
        cache = DynamicCache()
        with _select(self.unembedding, torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)):
            arguments = {self.cache_argument: cache, "use_cache": True, **self._extra(ids, 0)}
            self.model(input_ids=ids, **arguments)
        pairs = []
        for layer in cache.layers:
            assert isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None
            pairs.append((layer.keys, layer.values))
        return pairs

    def batch(
        self, rows: Sequence[Row], prefix: int, cache: list[tuple[Tensor, Tensor]] | None
    ) -> Iterator[tuple[int, TokenScore]]:
        """Scores of the requests of `rows`, whose first `prefix` tokens are in `cache`."""
        width = max(len(row.tokens) for row in rows) - prefix
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        marks = torch.zeros(len(rows), width, dtype=torch.bool)
        where: list[tuple[int, int]] = []
        spans: list[tuple[int, tuple[int, ...], int]] = []
        for number, row in enumerate(rows):
            ids[number, : len(row.tokens) - prefix] = torch.tensor(row.tokens[prefix:])
            own = row.context_length - prefix
            if self.positions == "context":
                marks[number, :own] = True
            elif self.positions == "last_context":
                marks[number, own - 1] = True
            elif self.positions == "continuation":
                marks[number, own : len(row.tokens) - prefix] = True
            longest = max(len(continuation) for _, continuation in row.requests)
            for index, continuation in row.requests:
                spans.append((index, continuation, len(where)))
            where.extend((number, own - 1 + step) for step in range(longest))
        ids = ids.to(self.device)
        self._mark(marks.to(self.device))
        arguments = self._extra(ids, prefix)
        if cache is not None:
            past = DynamicCache()
            for layer, (keys, values) in enumerate(cache):
                past.update(keys.expand(len(rows), -1, -1, -1), values.expand(len(rows), -1, -1, -1), layer)
            arguments[self.cache_argument] = past
        arguments["use_cache"] = cache is not None
        row_index, position = (torch.tensor(column) for column in zip(*where, strict=True))
        with _select(self.unembedding, row_index, position):
            logits = self.model(input_ids=ids, **arguments).logits[0]
        yield from _read(logits, spans)

    def _extra(self, ids: Tensor, prefix: int) -> dict[str, Any]:
        # Right padding is never seen by a real token of a causal model, so the mask is all ones.
        length = prefix + ids.shape[1]
        mask = torch.ones(ids.shape[0], length, dtype=torch.long, device=self.device)
        extra: dict[str, Any] = {"attention_mask": mask}
        if self.takes_positions:
            extra["position_ids"] = torch.arange(prefix, length, device=self.device).expand(ids.shape[0], -1)
        return extra

    def _mark(self, marks: Tensor) -> None:
        if self.handle is not None and self.positions != "all":
            self.handle.position_mask = marks


def _read(logits: Tensor, spans: list[tuple[int, tuple[int, ...], int]]) -> Iterator[tuple[int, TokenScore]]:
    """Scores of continuations from the logits [positions, vocabulary] of the selected positions."""
    rows = torch.tensor([start + step for _, tokens, start in spans for step in range(len(tokens))])
    wanted = torch.tensor([token for _, tokens, _ in spans for token in tokens])
    rows, wanted = rows.to(logits.device), wanted.to(logits.device)
    logits = logits.float()
    normaliser = torch.logsumexp(logits, dim=-1)
    chosen = logits[rows, wanted]
    logprob = (chosen - normaliser[rows]).double().cpu()
    greedy = (logits.argmax(dim=-1)[rows] == wanted).cpu()
    starts = torch.tensor([start for _, _, start in spans], device=logits.device)
    firsts = torch.tensor([tokens[0] for _, tokens, _ in spans], device=logits.device)
    rank = ((logits[starts] > logits[starts, firsts][:, None]).sum(dim=-1) + 1).cpu()
    offset = 0
    for number, (index, tokens, _) in enumerate(spans):
        part = slice(offset, offset + len(tokens))
        yield (
            index,
            TokenScore(float(logprob[part].sum()), bool(greedy[part].all()), int(rank[number])),
        )
        offset += len(tokens)


@contextmanager
def _select(unembedding: torch.nn.Module, rows: Tensor, positions: Tensor) -> Iterator[None]:
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


def _caches_plainly(model: PreTrainedModel) -> bool:
    """Whether the model keeps ordinary keys and values that may be expanded over a batch.

    Recurrent and hybrid models keep other state; they are run without sharing.
    """
    config = model.config.get_text_config()
    if getattr(model, "_is_stateful", False):
        return False
    kinds = getattr(config, "layer_types", None) or ()
    return all(kind in ("full_attention", "sliding_attention") for kind in kinds)
