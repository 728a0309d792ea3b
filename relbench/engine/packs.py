"""Packs: rows of a forward call that hold a part of the tree, each token once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relbench.engine.rows import Rows


class Read(NamedTuple):
    """A request's answer in a pack.

    Attributes:
        request: Index of the request.
        continuation: Its tokens.
        slots: For each of them the slot that predicts it.
    """

    request: int
    continuation: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Pack:
    """Tokens in depth-first order after a stem; slot `q` sees slot `k` if `k <= q < ends[k]`, and the stem.

    Attributes:
        tokens: One a slot.
        places: Position of each in its own input, the stem included.
        ends: For each slot the first slot after it that does not descend from it.
        roles: `rows.CONTEXT`, `LAST_CONTEXT` or `CONTINUATION` for each.
        reads: What is read where.
    """

    tokens: tuple[int, ...]
    places: tuple[int, ...]
    ends: tuple[int, ...]
    roles: tuple[int, ...]
    reads: tuple[Read, ...]

    @property
    def is_chain(self) -> bool:
        """Whether every slot sees all before it, as in ordinary causal attention."""
        return self.ends[0] == len(self.ends) and min(self.ends) == len(self.ends)


def pack(rows: Rows, stretches: Sequence[tuple[int, int]], depth: int) -> Pack:
    """The pack of some stretches of rows, in order, all of which share a stem of `depth` tokens."""
    tokens: list[int] = []
    places: list[int] = []
    ends: list[int] = []
    roles: list[int] = []
    reads: list[Read] = []
    path: list[int] = []  # slots of the present row's tokens, from `depth` on
    before: int | None = None
    for low, high in stretches:
        for number in range(low, high):
            row = rows.rows[number]
            kept = depth if before is None else min(rows.common[before:number])
            for slot in path[kept - depth :]:
                ends[slot] = len(tokens)
            del path[kept - depth :]
            for place in range(kept, len(row.tokens)):
                path.append(len(tokens))
                tokens.append(row.tokens[place])
                places.append(place)
                ends.append(-1)
                roles.append(row.role(place))
            first = row.context_length - 1 - depth
            for request, continuation in row.requests:
                reads.append(Read(request, continuation, tuple(path[first : first + len(continuation)])))
            before = number
    for slot in path:
        ends[slot] = len(tokens)
    return Pack(tuple(tokens), tuple(places), tuple(ends), tuple(roles), tuple(reads))


def bins(sizes: Sequence[int], width: int) -> list[list[int]]:
    """Spread items over as few bins of about `width` as hold them all, evenly.

    Returns:
        For each bin the indices of its items, ascending.
    """
    count = max(1, -(-sum(sizes) // max(width, 1)))
    heap = [(0, number) for number in range(min(count, len(sizes)))]
    found: list[list[int]] = [[] for _ in heap]
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        filled, number = heapq.heappop(heap)
        found[number].append(index)
        heapq.heappush(heap, (filled + sizes[index], number))
    return [sorted(members) for members in found]
