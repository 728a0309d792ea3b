"""Plans: which tokens are computed in which forward call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relbench.engine.packs import Pack, bins, pack
from relbench.engine.requests import Sharing, TokenRequest
from relbench.engine.rows import Rows

# Slots of a pack. In wider ones attention is wasted on slots that do not see each other, narrower ones share less.
WIDTH = 128
# A forward call costs about this many tokens besides its own (measured on SmolLM2-135M).
CALL_OVERHEAD_TOKENS = 24
# Stems upon stems: each keeps keys and values of its whole length.
MAX_STEMS = 6
# How often a part that no stem pays for is split before its rows are packed as they come.
MAX_SPLITS = 32


@dataclass(frozen=True)
class Stem:
    """A shared beginning, whose keys and values are kept while what continues it is computed.

    Attributes:
        parent: Index of the stem that it continues; None for the root, which has no tokens.
        tokens: Its own tokens.
        length: Tokens from the beginning of the input, those of its parents included.
        packs: What is computed on top of it.
    """

    parent: int | None
    tokens: tuple[int, ...]
    length: int
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class Plan:
    """How a list of requests is computed.

    Attributes:
        stems: A stem's descendants stand right after it.
        n_requests: How many scores come out.
    """

    stems: tuple[Stem, ...]
    n_requests: int

    @property
    def n_tokens(self) -> int:
        """Tokens that one run feeds to the model, padding aside."""
        return sum(len(stem.tokens) + sum(len(one.tokens) for one in stem.packs) for stem in self.stems)

    def n_calls(self, call_tokens: int) -> int:
        """Forward calls of one run with at most so many tokens in each."""
        return sum(bool(stem.tokens) + len(list(calls(stem.packs, call_tokens))) for stem in self.stems)


def calls(packs: Sequence[Pack], call_tokens: int) -> Iterator[tuple[Pack, ...]]:
    """Packs in batches of about equal width, of at most `call_tokens` slots unless one pack has more."""
    batch: list[Pack] = []
    padding = 0
    for one in sorted(packs, key=lambda one: -len(one.tokens)):
        width = len(batch[0].tokens) if batch else 0
        padding += width - len(one.tokens)
        full = width * (len(batch) + 1) > call_tokens
        # Padding that costs more than another call.
        if batch and (full or padding > max(CALL_OVERHEAD_TOKENS, call_tokens // 32)):
            yield tuple(batch)
            batch = []
        if not batch:
            padding = 0
        batch.append(one)
    if batch:
        yield tuple(batch)


def make_plan(
    requests: Sequence[TokenRequest], max_length: int, *, sharing: Sharing = "tree", width: int = WIDTH
) -> Plan:
    """Plan the computation of `requests`; their order does not matter to it.

    Args:
        requests: What to score.
        max_length: The model's context window; longer inputs lose their first tokens, as in lm-eval.
        sharing: What the model allows, see `sharing_of`.
        width: Slots of a pack.

    Raises:
        ValueError: A request has an empty context or continuation, or a continuation longer than the window.
    """
    return Plan(_Planner(Rows(requests, max_length), sharing, width).stems(), len(requests))


class _Planner:
    """Splits sorted rows into stems and packs, from the whole down."""

    def __init__(self, rows: Rows, sharing: Sharing, width: int) -> None:
        self.rows, self.sharing, self.width = rows, sharing, width
        self.made: list[tuple[int | None, tuple[int, ...], int, list[Pack]]] = [(None, (), 0, [])]

    def stems(self) -> tuple[Stem, ...]:
        if len(self.rows):
            self.place(0, len(self.rows), stem=0, level=0, splits=0)
        return tuple(
            Stem(parent, tokens, length, tuple(packs)) for parent, tokens, length, packs in self.made
        )

    def place(self, low: int, high: int, *, stem: int, level: int, splits: int) -> None:
        """Compute rows `low` to `high` on top of `stem`, which all of them share, or of a new stem."""
        rows, depth = self.rows, self.made[stem][2]
        if splits > MAX_SPLITS or self.sharing == "none":
            self.add_neighbours(low, high, stem)
            return
        if self.fits(low, high, depth):
            self.add([(low, high)], stem)
            return
        shared = rows.shared(low, high)
        # An answer is read at the last context token and after it, all in one pack.
        cut = min(shared, rows.contexts(low, high) - 1)
        if level < MAX_STEMS and self.saved(low, high, depth, cut) > 2 * CALL_OVERHEAD_TOKENS:
            self.made.append((stem, rows.rows[low].tokens[depth:cut], cut, []))
            stem, level, splits, depth = len(self.made) - 1, level + 1, 0, cut
        branches = rows.branches(low, high, shared)
        small = [branch for branch in branches if self.fits(*branch, depth)]
        self.add_small(small, shared, stem)
        for branch in branches:
            if branch not in small:
                self.place(*branch, stem=stem, level=level, splits=splits + 1)

    def fits(self, low: int, high: int, depth: int) -> bool:
        """Whether rows `low` to `high` are one pack."""
        if len(self.rows.chains(low, high)) == 1:
            return True
        return self.sharing == "tree" and self.rows.size(low, high, depth) <= self.width

    def saved(self, low: int, high: int, depth: int, cut: int) -> int:
        """Tokens that a stem from `depth` to `cut` saves."""
        if self.sharing == "tree":
            copies = -(-(self.rows.size(low, high, depth) - (cut - depth)) // self.width)
        else:
            copies = len(self.rows.chains(low, high))
        return (cut - depth) * (copies - 1)

    def add(self, stretches: Sequence[tuple[int, int]], stem: int) -> None:
        self.made[stem][3].append(pack(self.rows, stretches, self.made[stem][2]))

    def add_small(self, branches: Sequence[tuple[int, int]], shared: int, stem: int) -> None:
        """Pack branches that fit one pack each and share `shared` tokens."""
        if self.sharing != "tree":
            for branch in branches:
                self.add([branch], stem)
            return
        repeated = shared - self.made[stem][2]
        room = max(self.width - repeated, self.width // 2)
        sizes = [self.rows.size(*branch, shared) for branch in branches]
        for members in bins(sizes, room):
            self.add([branches[index] for index in members], stem)

    def add_neighbours(self, low: int, high: int, stem: int) -> None:
        """Pack rows as they come: each pack is filled up beyond its first row."""
        chains = self.rows.chains(low, high)
        if self.sharing != "tree":
            for chain in chains:
                self.add([chain], stem)
            return
        depth = self.made[stem][2]
        start, room = chains[0][0], 0
        for first, last in chains:
            if first == start or self.rows.size(start, last, depth) > room:
                if first > start:
                    self.add([(start, first)], stem)
                start, room = first, self.rows.size(first, last, depth) + self.width
        self.add([(start, high)], stem)
