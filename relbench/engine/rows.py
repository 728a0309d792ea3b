"""Requests as sorted rows of tokens: a tree, of which any stretch of neighbours is a part.

Two rows share a token when all before it, the token itself and its role are the same. The role counts because
an intervention may act on the context alone, on its last token, or on the continuation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from relbench.engine.requests import TokenRequest

CONTEXT, LAST_CONTEXT, CONTINUATION = range(3)


@dataclass(frozen=True)
class Row:
    """One model input.

    Attributes:
        tokens: It.
        context_length: How many of them, from the first, belong to the context; at least one.
        requests: (index of a request, its continuation) for each request that this input scores; the last
            token of a continuation is no part of the input.
    """

    tokens: tuple[int, ...]
    context_length: int
    requests: tuple[tuple[int, tuple[int, ...]], ...]

    def role(self, place: int) -> int:
        """What the token at `place` is."""
        return (place >= self.context_length - 1) + (place >= self.context_length)


class Rows:
    """Rows in the order of their tree, read depth first.

    Attributes:
        rows: They.
        common: How many leading tokens each row shares with the next, [rows - 1].
    """

    def __init__(self, requests: Sequence[TokenRequest], max_length: int) -> None:
        found: dict[tuple[tuple[int, ...], int], list[tuple[int, tuple[int, ...]]]] = {}
        for index, (context, continuation) in enumerate(requests):
            if not context or not continuation:
                raise ValueError(f"request {index} has an empty context or continuation")
            if len(continuation) > max_length:
                raise ValueError(
                    f"request {index}: {len(continuation)} tokens do not fit a window of {max_length}"
                )
            inputs = context + continuation[:-1]
            lost = max(0, len(inputs) - max_length)
            found.setdefault((inputs[lost:], len(context) - lost), []).append((index, continuation))
        keyed = sorted((_coded(*key), key) for key in found)
        self.rows = tuple(Row(*key, tuple(found[key])) for _, key in keyed)
        codes = [code for code, _ in keyed]
        self.common = [_common(a, b) for a, b in itertools.pairwise(codes)]
        # Tokens that each row adds to those before it, summed up.
        own = [len(row.tokens) - shared for row, shared in zip(self.rows[1:], self.common, strict=True)]
        self._added = list(itertools.accumulate(own, initial=0))

    def __len__(self) -> int:
        return len(self.rows)

    def size(self, low: int, high: int, depth: int) -> int:
        """Distinct tokens of rows `low` to `high` beyond the first `depth`, which all of them share."""
        return len(self.rows[low].tokens) - depth + self._added[high - 1] - self._added[low]

    def shared(self, low: int, high: int) -> int:
        """Leading tokens that rows `low` to `high` share."""
        return min(self.common[low : high - 1], default=len(self.rows[low].tokens))

    def contexts(self, low: int, high: int) -> int:
        """Tokens of the shortest context among rows `low` to `high`."""
        return min(row.context_length for row in self.rows[low:high])

    def branches(self, low: int, high: int, shared: int) -> list[tuple[int, int]]:
        """The stretches of rows `low` to `high` that share more than `shared` tokens, in order."""
        cuts = [low, *(place + 1 for place in range(low, high - 1) if self.common[place] == shared), high]
        return list(itertools.pairwise(cuts))

    def chains(self, low: int, high: int) -> list[tuple[int, int]]:
        """The stretches of rows `low` to `high` in which each row begins the next."""
        cuts = [
            place + 1 for place in range(low, high - 1) if self.common[place] < len(self.rows[place].tokens)
        ]
        return list(itertools.pairwise([low, *cuts, high]))


def _coded(tokens: tuple[int, ...], context_length: int) -> tuple[int, ...]:
    """Tokens and roles as one number each."""
    last = context_length - 1
    return (
        *(3 * token for token in tokens[:last]),
        3 * tokens[last] + LAST_CONTEXT,
        *(3 * token + CONTINUATION for token in tokens[context_length:]),
    )


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the common beginning, by bisection, since comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
