"""Ranks of every unit's responses, for all concepts from one sort a unit.

Rank statistics (average precision, AUROC, mutual information on quantile bins) need, for each prompt, how
many prompts respond at least as strongly, and how many of those share its concept. Both follow from one
sort of the unit's responses and one stable sort of the labels in that order; the number of concepts does
not enter. Equal responses form a tie group, and every member counts the whole group, as scikit-learn does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Working set of one tile on a CPU; about a core's second-level cache.
CPU_TILE_BYTES = 2 << 20
# Working memory of one tile on an accelerator.
DEVICE_TILE_BYTES = 2 << 30
# The sorts and index arrays of a tile take about this many bytes a response.
BYTES_PER_RESPONSE = 48


@dataclass(frozen=True)
class Ranked:
    """Ranks of a tile of units; columns are prompts, grouped by concept, strongest first within each.

    Arrays are NumPy's on a CPU and torch's elsewhere; only what both share is used on them. Ranks count
    from 1, the strongest response.

    Attributes:
        first: [units, prompts] rank of the first member of the prompt's tie group.
        last: [units, prompts] rank of its last member: how many prompts respond at least as strongly.
        within: [units or 1, prompts] how many prompts of the same concept respond at least as strongly.
        groups: For each concept, its columns; prompts of no concept (label -1) come after all of them.
        n_prompts: All prompts, those of no concept included.
    """

    first: Any
    last: Any
    within: Any
    groups: tuple[slice, ...]
    n_prompts: int


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
    within = _positions_within(groups, n_prompts)
    out = np.empty((n_concepts, n_units), dtype=np.float32)
    units = max(1, CPU_TILE_BYTES // (BYTES_PER_RESPONSE * n_prompts))

    def tile(bounds: tuple[int, int]) -> None:
        start, stop = bounds
        # torch's transposing copy is about twice as fast as NumPy's.
        block = responses[:, start:stop].to(torch.float32).T.contiguous().numpy()
        for low in range(0, stop - start, units):
            part = block[low : low + units]
            ranked = _rank(part, numbers, groups, within)
            out[:, start + low : start + low + len(part)] = function(ranked).T

    # The transposed copy is made for many tiles at once, to read whole cache lines.
    wide = units * max(1, 256 // units)
    tiles = [(start, min(start + wide, n_units)) for start in range(0, n_units, wide)]
    workers = min(torch.get_num_threads(), len(tiles))
    if workers > 1:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(tile, tiles))
    else:
        for bounds in tiles:
            tile(bounds)
    return torch.from_numpy(out)


def _positions_within(groups: tuple[slice, ...], n_prompts: int) -> NDArray[np.int64]:
    """[1, prompts]: 1, 2, … within each concept, for a tile without ties."""
    within = np.ones(n_prompts, dtype=np.int64)
    for group in groups:
        within[group] = np.arange(1, group.stop - group.start + 1)
    rest = groups[-1].stop
    within[rest:] = np.arange(1, n_prompts - rest + 1)
    return within[None]


def _rank(
    block: NDArray[np.float32], labels: NDArray[Any], groups: tuple[slice, ...], within: NDArray[np.int64]
) -> Ranked:
    """Ranks of `block` [units, prompts]."""
    n_units, n_prompts = block.shape
    # -0.0 and 0.0 are equal, so they must have one key.
    bits = (block + np.float32(0)).view(np.int32)
    # A float's bits order like an integer once all bits of a positive and the sign bit of a negative one are
    # flipped; this way round the largest comes first.
    bits ^= ~(bits >> 31) | np.int32(-(1 << 31))
    # Key and label travel in one integer, since NumPy sorts integers far faster than it sorts indices.
    packed = np.empty((n_units, n_prompts, 2), dtype=np.int32)
    high, low = (1, 0) if np.little_endian else (0, 1)
    packed[..., high] = bits
    packed[..., low] = labels
    order = packed.view(np.int64)[..., 0]
    order.sort(axis=1)
    sorted_labels = packed[..., low].astype(labels.dtype)
    position = np.argsort(sorted_labels, axis=1, kind="stable")
    keys = packed[..., high]
    ends = keys[:, 1:] != keys[:, :-1]
    if ends.all():
        position += 1
        return Ranked(position, position, within, groups, n_prompts)
    first, last = _tie_groups(ends)
    first = np.take_along_axis(first, position, axis=1)
    last = np.take_along_axis(last, position, axis=1)
    runs = last[:, 1:] != last[:, :-1]
    for bound in {group.stop for group in groups}:
        if 0 < bound < n_prompts:
            runs[:, bound - 1] = True
    # The column of the last of the same concept in the tie group, then its place within the concept.
    _, column = _tie_groups(runs)
    offset = np.arange(1, n_prompts + 1) - within[0]
    return Ranked(first, last, column - offset, groups, n_prompts)


def _tie_groups(ends: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks of the first and last member of each entry's group.

    Args:
        ends: [units, n - 1], true where an entry is the last of its group.
    """
    rank = np.arange(1, ends.shape[1] + 2)
    first = np.empty((len(ends), len(rank)), dtype=np.int64)
    first[:, 0] = 1
    np.multiply(ends, rank[1:], out=first[:, 1:])
    np.maximum.accumulate(first, axis=1, out=first)
    last = np.empty_like(first)
    last[:, -1] = len(rank)
    last[:, :-1] = np.where(ends, rank[:-1], len(rank))
    backwards = last[:, ::-1]
    np.minimum.accumulate(backwards, axis=1, out=backwards)
    return first, last


def _on_device(
    responses: Tensor, labels: Tensor, n_concepts: int, function: Callable[[Ranked], Any]
) -> Tensor:
    n_prompts, n_units = responses.shape
    labels = labels.to(responses.device).long()
    numbers = torch.where(labels < 0, n_concepts, labels)
    groups = _groups(torch.bincount(numbers, minlength=n_concepts)[:n_concepts].tolist())
    within = torch.from_numpy(_positions_within(groups, n_prompts)).to(responses.device)
    out = torch.empty(n_concepts, n_units, dtype=torch.float32, device=responses.device)
    units = max(1, DEVICE_TILE_BYTES // (2 * BYTES_PER_RESPONSE * n_prompts))
    for start, stop in _spans(n_units, units):
        block = responses[:, start:stop].to(torch.float32).T.contiguous()
        out[:, start:stop] = function(_rank_torch(block, numbers, groups, within)).T
    return out


def _spans(n: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, step):
        yield start, min(start + step, n)


def _rank_torch(block: Tensor, labels: Tensor, groups: tuple[slice, ...], within: Tensor) -> Ranked:
    """`_rank` with torch's sorts, for accelerators."""
    n_prompts = block.shape[1]
    values, index = torch.sort(block, dim=1, descending=True)
    narrow = torch.uint8 if len(groups) < 255 else torch.int32
    position = torch.sort(labels[index].to(narrow), dim=1, stable=True).indices
    ends = values[:, 1:] != values[:, :-1]
    first, last = _tie_groups_torch(ends)
    first, last = first.gather(1, position), last.gather(1, position)
    runs = last[:, 1:] != last[:, :-1]
    for bound in {group.stop for group in groups}:
        if 0 < bound < n_prompts:
            runs[:, bound - 1] = True
    column = _tie_groups_torch(runs)[1]
    offset = torch.arange(1, n_prompts + 1, device=block.device) - within[0]
    # torch would divide integers in float32.
    return Ranked(first.double(), last.double(), (column - offset).double(), groups, n_prompts)


def _tie_groups_torch(ends: Tensor) -> tuple[Tensor, Tensor]:
    rank = torch.arange(1, ends.shape[1] + 2, device=ends.device)
    first = torch.ones(len(ends), len(rank), dtype=torch.long, device=ends.device)
    first[:, 1:] = ends * rank[1:]
    last = torch.full_like(first, len(rank))
    last[:, :-1] = torch.where(ends, rank[:-1], len(rank))
    return first.cummax(dim=1).values, last.flip(1).cummin(dim=1).values.flip(1)
