"""Ranks of every unit's responses, for all concepts from one sort a unit.

Rank statistics (average precision, AUROC, mutual information on quantile bins) need, for each prompt, how
many prompts respond at least as strongly, and how many of those share its concept. Both follow from one
sort of the unit's responses and one stable sort of the labels in that order; the number of concepts does
not enter. Equal responses form a tie group, and every member counts the whole group, as scikit-learn does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Working set of one tile on a CPU; about a core's second-level cache.
CPU_TILE_BYTES = 2 << 20
# Copies that are waiting to be cut into tiles on a CPU, of all threads together.
CPU_COPIES_BYTES = 128 << 20
# Working memory of one tile on an accelerator.
DEVICE_TILE_BYTES = 2 << 30
# The sorts and index arrays of a tile take about this many bytes a response.
BYTES_PER_RESPONSE = 48


class Ranked:
    """Ranks of a tile of units; columns are prompts, grouped by concept, weakest first within each.

    Arrays are NumPy's on a CPU and torch's elsewhere; only what both share is used on them. They are worked
    out when asked for, since no statistic needs all of them. Ranks count from 1, the strongest response.

    Attributes:
        groups: For each concept, its columns; prompts of no concept (label -1) come after all of them.
        n_prompts: All prompts, those of no concept included.
    """

    def __init__(self, starts: Any, position: Any, groups: tuple[slice, ...], array: _Arrays) -> None:
        """Ranks from one sort.

        Args:
            starts: [units, prompts], weakest response first: whether a prompt is the first of its tie group.
            position: [units, prompts], where each column's prompt stands among them.
            groups: Columns of each concept.
            array: Functions on the arrays.
        """
        self.groups = groups
        self.n_prompts: int = starts.shape[1]
        self._starts = starts
        self._position = position
        self._array = array
        self._ties = not bool(starts.all())

    @cached_property
    def last(self) -> Any:
        """[units, prompts] rank of the tie group's last member: how many respond at least as strongly."""
        if not self._ties:
            return self.n_prompts - self._array.numbers(self._position)
        return self.n_prompts - self._array.take(self._array.run_starts(self._starts), self._position)

    @cached_property
    def first(self) -> Any:
        """[units, prompts] rank of the first member of the tie group."""
        if not self._ties:
            return self.last
        return self.n_prompts - self._array.take(self._array.run_ends(self._starts), self._position)

    @cached_property
    def within(self) -> Any:
        """[units or 1, prompts]: how many prompts of the same concept respond at least as strongly."""
        bounds = [0, *(group.stop for group in self.groups), self.n_prompts]
        if not self._ties:
            return self._array.countdown(bounds)
        # A run is the part of a tie group that is of one concept.
        starts = self._array.changes(self.last)
        for bound in bounds[1:-1]:
            if bound < self.n_prompts:
                starts[:, bound] = True
        # From the column of a run's first member to the end of the concept.
        return self._array.stops(bounds) - self._array.run_starts(starts)


def ranked_scores(
    responses: Tensor, labels: Tensor, n_concepts: int, function: Callable[[Ranked], Any]
) -> Tensor:
    """Apply a rank statistic to all units, tile by tile; on a CPU, tiles run on torch's number of threads.

    Args:
        responses: [prompts, units] finite floats.
        labels: [prompts] integers below `n_concepts`; -1 marks a prompt of no concept.
        n_concepts: Number of concepts.
        function: Maps a tile's ranks to its scores [units, concepts].

    Returns:
        [concepts, units] float32 on the device of `responses`. A unit's score does not depend on the tiles.
    """
    if responses.device.type == "cpu":
        return _on_cpu(responses, labels, n_concepts, function)
    return _on_device(responses, labels, n_concepts, function)


def _groups(counts: list[int]) -> tuple[slice, ...]:
    bounds = np.concatenate([[0], np.cumsum(counts)]).tolist()
    return tuple(slice(start, stop) for start, stop in pairwise(bounds))


def _on_cpu(responses: Tensor, labels: Tensor, n_concepts: int, function: Callable[[Ranked], Any]) -> Tensor:
    n_prompts, n_units = responses.shape
    # Prompts of no concept sort behind the last concept.
    numbers = labels.numpy()
    numbers = np.where(numbers < 0, n_concepts, numbers).astype(np.uint8 if n_concepts < 256 else np.int32)
    groups = _groups(np.bincount(numbers, minlength=n_concepts)[:n_concepts].tolist())
    out = np.empty((n_concepts, n_units), dtype=np.float32)
    units = max(1, CPU_TILE_BYTES // (BYTES_PER_RESPONSE * n_prompts))

    def tile(bounds: tuple[int, int]) -> None:
        start, stop = bounds
        # torch's transposing copy is about twice as fast as NumPy's.
        block = responses[:, start:stop].to(torch.float32).T.contiguous().numpy()
        for low in range(0, stop - start, units):
            part = block[low : low + units]
            ranked = rank_numpy(part, numbers, groups)
            out[:, start + low : start + low + len(part)] = function(ranked).T

    # The transposed copy is made for many tiles at once, to read whole cache lines.
    workers = torch.get_num_threads()
    copied = min(256, CPU_COPIES_BYTES // workers // (8 * n_prompts))
    tiles = list(_spans(n_units, units * max(1, copied // units)))
    workers = min(workers, len(tiles))
    if workers > 1:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(tile, tiles))
    else:
        for bounds in tiles:
            tile(bounds)
    return torch.from_numpy(out)


def _on_device(
    responses: Tensor, labels: Tensor, n_concepts: int, function: Callable[[Ranked], Any]
) -> Tensor:
    n_prompts, n_units = responses.shape
    labels = labels.to(responses.device).long()
    numbers = torch.where(labels < 0, n_concepts, labels)
    groups = _groups(torch.bincount(numbers, minlength=n_concepts)[:n_concepts].tolist())
    out = torch.empty(n_concepts, n_units, dtype=torch.float32, device=responses.device)
    units = max(1, DEVICE_TILE_BYTES // (2 * BYTES_PER_RESPONSE * n_prompts))
    for start, stop in _spans(n_units, units):
        block = responses[:, start:stop].to(torch.float32).T.contiguous()
        out[:, start:stop] = function(rank_torch(block, numbers, groups)).T
    return out


def _spans(n: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, step):
        yield start, min(start + step, n)


def rank_numpy(block: NDArray[np.float32], labels: NDArray[Any], groups: tuple[slice, ...]) -> Ranked:
    """Ranks of `block` [units, prompts] on the CPU; `labels` number prompts of no concept last."""
    n_units, n_prompts = block.shape
    # -0.0 and 0.0 are equal, so they must have one key.
    bits = (block + np.float32(0)).view(np.int32)
    # A float's bits order like an integer once all but the sign bit of a negative one are flipped.
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)
    # Key and label travel in one integer, since NumPy sorts integers far faster than it sorts indices.
    packed = np.empty((n_units, n_prompts, 2), dtype=np.int32)
    high, low = (1, 0) if np.little_endian else (0, 1)
    packed[..., high] = bits
    packed[..., low] = labels
    packed.view(np.int64)[..., 0].sort(axis=1)
    position = np.argsort(packed[..., low].astype(labels.dtype), axis=1, kind="stable")
    return Ranked(_NumPy.changes(packed[..., high]), position, groups, _NumPy())


def rank_torch(block: Tensor, labels: Tensor, groups: tuple[slice, ...]) -> Ranked:
    """`rank_numpy` with torch's sorts, for accelerators."""
    values, index = torch.sort(block, dim=1)
    narrow = torch.uint8 if len(groups) < 255 else torch.int32
    position = torch.sort(labels[index].to(narrow), dim=1, stable=True).indices
    return Ranked(_Torch.changes(values), position, groups, _Torch(block.device))


class _Arrays(Protocol):
    """What `Ranked` does to arrays; a run is a stretch of equal neighbours, given by where runs start."""

    @staticmethod
    def changes(values: Any) -> Any:
        """[units, n] bool: whether an entry differs from the one before it; the first one does."""

    def numbers(self, index: Any) -> Any:
        """Indices as numbers to reckon with."""

    def run_starts(self, starts: Any) -> Any:
        """[units, n]: index of the first entry of each entry's run."""

    def run_ends(self, starts: Any) -> Any:
        """[units, n]: index of the last entry of each entry's run."""

    def take(self, values: Any, index: Any) -> Any:
        """[units, n]: entries of each row of `values` at that row's indices."""

    def countdown(self, bounds: Sequence[int]) -> Any:
        """[1, n]: from each entry to the next bound."""

    def stops(self, bounds: Sequence[int]) -> Any:
        """[1, n]: the next bound."""


class _NumPy:
    @staticmethod
    def changes(values: NDArray[Any]) -> NDArray[np.bool_]:
        starts = np.ones(values.shape, dtype=bool)
        np.not_equal(values[:, 1:], values[:, :-1], out=starts[:, 1:])
        return starts

    def numbers(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        return index

    def run_starts(self, starts: NDArray[np.bool_]) -> NDArray[np.int32]:
        first = np.where(starts, np.arange(starts.shape[1], dtype=np.int32), np.int32(0))
        found: NDArray[np.int32] = np.maximum.accumulate(first, axis=1, out=first)
        return found

    def run_ends(self, starts: NDArray[np.bool_]) -> NDArray[np.int32]:
        n = starts.shape[1]
        last = np.full(starts.shape, n - 1, dtype=np.int32)
        np.copyto(last[:, :-1], np.arange(n - 1, dtype=np.int32), where=starts[:, 1:])
        backwards = last[:, ::-1]
        np.minimum.accumulate(backwards, axis=1, out=backwards)
        return last

    def take(self, values: NDArray[np.int32], index: NDArray[np.int64]) -> NDArray[np.int32]:
        # Twice as fast as take_along_axis; "clip" only because it is the fastest check.
        rows = np.arange(len(values))[:, None] * values.shape[1]
        found: NDArray[np.int32] = values.ravel().take(index + rows, mode="clip")
        return found

    def countdown(self, bounds: Sequence[int]) -> NDArray[Any]:
        return self.stops(bounds) - np.arange(bounds[-1], dtype=np.int32)

    def stops(self, bounds: Sequence[int]) -> NDArray[Any]:
        return np.repeat(np.array(bounds[1:], dtype=np.int32), np.diff(bounds))[None]


class _Torch:
    """In float64, in which ranks are exact: torch would divide integers in float32."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @staticmethod
    def changes(values: Tensor) -> Tensor:
        starts = torch.ones(values.shape, dtype=torch.bool, device=values.device)
        torch.ne(values[:, 1:], values[:, :-1], out=starts[:, 1:])
        return starts

    def numbers(self, index: Tensor) -> Tensor:
        return index.double()

    def run_starts(self, starts: Tensor) -> Tensor:
        first = starts * torch.arange(starts.shape[1], device=self.device)
        return first.cummax(dim=1).values.double()

    def run_ends(self, starts: Tensor) -> Tensor:
        n = starts.shape[1]
        last = torch.full(starts.shape, n - 1, device=self.device)
        last[:, :-1] = torch.where(starts[:, 1:], torch.arange(n - 1, device=self.device), n - 1)
        return last.flip(1).cummin(dim=1).values.flip(1).double()

    def take(self, values: Tensor, index: Tensor) -> Tensor:
        return values.gather(1, index)

    def countdown(self, bounds: Sequence[int]) -> Tensor:
        return self.stops(bounds) - torch.arange(bounds[-1], device=self.device)

    def stops(self, bounds: Sequence[int]) -> Tensor:
        sizes = torch.tensor(np.diff(bounds), device=self.device)
        return torch.tensor(bounds[1:], device=self.device).double().repeat_interleave(sizes)[None]
