"""What is scored, and what comes of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

# How much requests may share: every token of their tree, cached beginnings only, or nothing.
Sharing = Literal["tree", "prefix", "none"]


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
