"""Static scores of a unit at one readout: the log-probability increase and its rivals, one interface.

Forms (b) to (h) are those that arXiv 2312.12141 compares with its log-probability increase. In the formulas m
is the unit's coefficient, v its write, x the stream before its sublayer, S the lens, w the answer token. Each
function takes `(lens, stream, writes, kind, targets)` as `importance.first_order` does and gives `[L, R,
units]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from interventions.attribution.importance import along, exact, first_order
from interventions.attribution.lens import DEFAULT_BUDGET, Lens
from interventions.attribution.stream import Stream, Write


def value_log_probability(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """(b) `log p(w | m v)`: the write read by the lens on its own."""
    nothing = torch.zeros_like(stream.inputs)
    alone = replace(stream, inputs=nothing, attention=nothing)
    base = lens.base(nothing[0], lens.scale(stream.final), targets)
    return exact(lens, alone, writes, kind, targets, budget=budget) + base.log_prob[:, None]


def probability_increase(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """(c) `p(w | x + m v) - p(w | x)`."""
    before = state_log_probs(lens, stream, kind, targets, budget=budget)
    return before.exp()[..., None] * exact(lens, stream, writes, kind, targets, budget=budget).expm1()


def value_norm(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """(d) `|v|`, the norm of the write at coefficient one."""
    norms = torch.stack([write.norms.to(lens.dtype) for write in writes])
    return norms[:, None].expand(-1, len(targets), -1)


def coefficient(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """(e) `|m|`."""
    return torch.stack([stream.coefficients(kind, layer, lens.dtype).abs() for layer in range(len(writes))])


def coefficient_norm(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """(g) `|m| |v|`, the norm of what is written."""
    return coefficient(lens, stream, writes, kind, targets) * value_norm(lens, stream, writes, kind, targets)


def direct_logit(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """Direct logit attribution `m v' S' e_w`: what the unit adds to the answer's raw logit."""
    rows = lens.read_back(lens.unembedding[targets] / lens.scale(stream.final)[:, None])
    return along(rows.expand(len(writes), -1, -1), stream, writes, kind)


def state_log_probs(
    lens: Lens, stream: Stream, kind: str, targets: Tensor, *, budget: int = DEFAULT_BUDGET
) -> Tensor:
    """`log p(w | x)` `[L, R]` of the stream before each layer's sublayer of `kind`."""
    scale, states = lens.scale(stream.final), stream.before(kind)
    parts = [
        torch.cat(
            [lens.base(states[layer, r], scale[r], targets[r]).log_prob for r in _blocks(lens, scale, budget)]
        )
        for layer in range(len(states))
    ]
    return torch.stack(parts)


def _blocks(lens: Lens, scale: Tensor, budget: int) -> tuple[Tensor, ...]:
    blocks: tuple[Tensor, ...] = torch.arange(len(scale), device=scale.device).split(lens.rows_within(budget))
    return blocks


class Ranks:
    """Rank of tokens in the unembedded writes `S v`, which no prompt changes; each token is ranked once.

    Attributes:
        lens, writes: What is ranked.
    """

    def __init__(self, lens: Lens, writes: Sequence[Write], *, budget: int = DEFAULT_BUDGET) -> None:
        self.lens, self.writes, self._budget = lens, writes, budget
        self._known: dict[int, Tensor] = {}

    def add(self, tokens: Iterable[int]) -> None:
        """Rank `tokens`, sharing one unembedding of all writes: give many tokens at once."""
        lens = self.lens
        new = [token for token in dict.fromkeys(tokens) if token not in self._known]
        if not new:
            return
        sizes = [len(write.vectors) for write in self.writes]
        ranks = torch.empty(len(new), sum(sizes), dtype=torch.int32, device=lens.unembedding.device)
        start = 0
        for write in self.writes:
            for part in write.vectors.split(lens.rows_within(self._budget)):
                logits = lens.read(part) @ lens.unembedding.T
                stop = start + len(part)
                for row, token in enumerate(new):
                    ranks[row, start:stop] = 1 + (logits > logits[:, token, None]).sum(-1, dtype=torch.int32)
                start = stop
        for row, token in enumerate(new):
            self._known[token] = ranks[row].view(len(sizes), -1)

    def of(self, targets: Tensor) -> Tensor:
        """Ranks `[L, R, units]`, 1 the best, of `[R]` target tokens."""
        self.add(targets.tolist())
        return torch.stack([self._known[token] for token in targets.tolist()], dim=1)


def reciprocal_rank(stream: Stream, kind: str, targets: Tensor, ranks: Ranks) -> Tensor:
    """(f) `1 / rank` of w in `S v`."""
    return 1.0 / ranks.of(targets).to(ranks.lens.dtype)


def coefficient_rank(stream: Stream, kind: str, targets: Tensor, ranks: Ranks) -> Tensor:
    """(h) `|m| / rank` of w in `S v`."""
    lens, writes = ranks.lens, ranks.writes
    return coefficient(lens, stream, writes, kind, targets) * reciprocal_rank(stream, kind, targets, ranks)


# The scores that need no more than the stream and the lens.
StaticScore = Callable[..., Tensor]
STATIC: dict[str, StaticScore] = {
    "log-probability-increase": first_order,
    "value-log-probability": value_log_probability,
    "probability-increase": probability_increase,
    "value-norm": value_norm,
    "coefficient": coefficient,
    "coefficient-norm": coefficient_norm,
    "direct-logit": direct_logit,
}
RANKED: dict[str, StaticScore] = {"reciprocal-rank": reciprocal_rank, "coefficient-rank": coefficient_rank}
