"""Who does a sweep's blocks: this process, its share among several of torchrun's, or a Ray cluster's workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from relbench.blocks import Block, Evaluator
from relbench.journal import Records
from relbench.treatments import Treatment

# Called with each finished block, in the process that keeps the journal.
Finished = Callable[[Block, Records], None]


class Executor(Protocol):
    """Does blocks."""

    def run(
        self,
        blocks: Sequence[Block],
        treatments: Mapping[str, Treatment],
        known: Mapping[Block, Records],
        finished: Finished,
    ) -> None:
        """Do `blocks` and hand each over as soon as it is finished.

        Args:
            blocks: What is left to do.
            treatments: By id.
            known: Finished blocks that others rest on.
            finished: Takes a block's records.
        """


class Local:
    """This process; of several, the share of its rank.

    Args:
        evaluator: The model and tasks.
        rank, size: Which process this is, and how many there are.
    """

    def __init__(self, evaluator: Evaluator, rank: int = 0, size: int = 1) -> None:
        self.evaluator, self.rank, self.size = evaluator, rank, size

    def run(
        self,
        blocks: Sequence[Block],
        treatments: Mapping[str, Treatment],
        known: Mapping[Block, Records],
        finished: Finished,
    ) -> None:
        """See `Executor.run`; blocks of other ranks are left to them."""
        for block in share(blocks, [self.evaluator.cost(block) for block in blocks], self.rank, self.size):
            finished(block, self.evaluator.run(block, treatments[block.treatment], known))


def share(blocks: Sequence[Block], costs: Sequence[int], rank: int, size: int) -> list[Block]:
    """The blocks of one rank: a stretch of neighbours, so that masks change seldom, of about equal cost.

    Every block is in exactly one rank's share.
    """
    total, mine, before = sum(costs), [], 0
    for block, cost in zip(blocks, costs, strict=True):
        # The rank in whose stretch the block's middle lies.
        if min(size - 1, (2 * before + cost) * size // (2 * total)) == rank:
            mine.append(block)
        before += cost
    return mine
