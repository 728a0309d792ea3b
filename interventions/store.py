"""Pooled responses on disk or in memory, prompts × units, written batch by batch and read site by site.

A store folder holds

- `responses.bin`: for each site in turn a block [rows, units], so that a site is read in one piece;
- `manifest.json`: what the responses are of (model, prompts, pooling, sites, dtype, batch plan);
- `batches.<rank>.jsonl`: one line a finished batch, with a checksum of its rows.

Rows stand in the order of the batch plan. A killed run leaves whole batches behind, and the next one goes on
after them; a batch whose checksum does not match is computed again.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.files import atomic_write, canonical_json
from interventions.memory import describe_bytes
from interventions.units import Site

DTYPES: dict[str, type[np.floating[Any]]] = {"float16": np.float16, "float32": np.float32}
FORMAT = 1
# Left free on the disk.
DISK_RESERVE = 256 << 20


@dataclass(frozen=True)
class Shape:
    """What a store holds: rows of each batch in turn, units of each site in turn.

    Attributes:
        sites: Sites in order.
        units: Units of each site.
        batches: Rows of each batch.
        dtype: "float16" or "float32".
    """

    sites: tuple[Site, ...]
    units: tuple[int, ...]
    batches: tuple[int, ...]
    dtype: str

    @property
    def n_rows(self) -> int:
        """Rows of all batches."""
        return sum(self.batches)

    @property
    def n_bytes(self) -> int:
        """Size of the responses."""
        return self.n_rows * sum(self.units) * np.dtype(DTYPES[self.dtype]).itemsize

    def first_row(self, batch: int) -> int:
        """Row at which a batch begins."""
        return sum(self.batches[:batch])

    def offset(self, index: int) -> int:
        """Byte at which site number `index` begins."""
        return self.n_rows * sum(self.units[:index]) * np.dtype(DTYPES[self.dtype]).itemsize


class MemoryStore:
    """Responses in memory, for what fits."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        dtype = DTYPES[shape.dtype]
        self._blocks = [np.empty((shape.n_rows, units), dtype) for units in shape.units]

    def finished(self) -> set[int]:
        """Batches that need not be computed: none."""
        return set()

    def write(self, batch: int, rows: Sequence[NDArray[Any]]) -> None:
        """Put the rows of a batch, [rows, units] for each site."""
        first = self.shape.first_row(batch)
        for block, part in zip(self._blocks, rows, strict=True):
            block[first : first + len(part)] = part

    def read(self, index: int, columns: slice) -> NDArray[Any]:
        """Responses [rows, units] of site number `index`."""
        return self._blocks[index][:, columns]


class DiskStore:
    """Responses in a folder.

    Args:
        folder: Made when missing.
        shape: What it holds.
        identity: What the responses are of; plain JSON values.
        rank: This process; every process writes its own batches and its own list of them.

    Raises:
        UserError: The folder holds responses of something else, or the disk is too small.
    """

    def __init__(self, folder: Path, shape: Shape, identity: dict[str, Any], *, rank: int = 0) -> None:
        self.folder = folder
        self.shape = shape
        self._path = folder / "responses.bin"
        self._list = folder / f"batches.{rank}.jsonl"
        manifest = canonical_json({"format": FORMAT, **identity})
        if rank == 0:
            self._prepare(manifest)
        # A kill may have left half a line, which the next entry must not continue.
        if self._list.exists() and not self._list.read_bytes().endswith(b"\n"):
            with open(self._list, "a", encoding="utf-8") as file:
                file.write("\n")

    def _prepare(self, manifest: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        described = self.folder / "manifest.json"
        if described.exists() and described.read_text(encoding="utf-8") != manifest:
            raise UserError(f"{self.folder} holds responses of something else; name another folder")
        have = self._path.stat().st_size if self._path.exists() else 0
        # The file is sparse until it is written, so its size does not tell what it occupies.
        occupied = self._path.stat().st_blocks * 512 if have else 0
        missing = self.shape.n_bytes - occupied
        free = shutil.disk_usage(self.folder).free
        if missing + DISK_RESERVE > free:
            raise UserError(
                f"the responses need {describe_bytes(self.shape.n_bytes)} in {self.folder}, "
                f"{describe_bytes(free)} are free; make room, name another folder (store), or use dtype "
                "float16, fewer kinds or fewer prompts"
            )
        if have != self.shape.n_bytes:
            with open(self._path, "ab") as file:
                file.truncate(self.shape.n_bytes)
        with atomic_write(described) as file:
            file.write(manifest)

    def finished(self) -> set[int]:
        """Batches that are on disk with the right checksum; others count as not computed."""
        recorded: dict[int, int] = {}
        for path in sorted(self.folder.glob("batches.*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    recorded[int(entry["batch"])] = int(entry["crc32"])
                except (ValueError, KeyError, TypeError):
                    continue
        good = set()
        for batch, checksum in sorted(recorded.items()):
            if 0 <= batch < len(self.shape.batches) and self._checksum(batch) == checksum:
                good.add(batch)
        return good

    def write(self, batch: int, rows: Sequence[NDArray[Any]]) -> None:
        """Write the rows of a batch, [rows, units] for each site, then its checksum.

        Raises:
            UserError: The disk is full.
        """
        checksum = 0
        try:
            with open(self._path, "r+b", buffering=0) as file:
                for index, part in enumerate(rows):
                    content = np.ascontiguousarray(part, DTYPES[self.shape.dtype]).data
                    checksum = zlib.crc32(content, checksum)
                    file.seek(self._row_offset(index, batch))
                    file.write(content)
            with open(self._list, "a", encoding="utf-8") as journal:
                journal.write(canonical_json({"batch": batch, "crc32": checksum}) + "\n")
        except OSError as error:
            raise UserError(f"cannot write responses to {self.folder}: {error.strerror or error}") from error

    def read(self, index: int, columns: slice) -> NDArray[Any]:
        """Responses [rows, units] of site number `index`, copied out of a mapping of the file."""
        units = self.shape.units[index]
        block = np.memmap(
            self._path,
            dtype=DTYPES[self.shape.dtype],
            mode="r",
            offset=self.shape.offset(index),
            shape=(self.shape.n_rows, units),
        )
        # The copy lets the mapping go, which would otherwise count as this process's memory.
        return np.array(block[:, columns])

    def _row_offset(self, index: int, batch: int) -> int:
        itemsize = np.dtype(DTYPES[self.shape.dtype]).itemsize
        return self.shape.offset(index) + self.shape.first_row(batch) * self.shape.units[index] * itemsize

    def _checksum(self, batch: int) -> int:
        itemsize = np.dtype(DTYPES[self.shape.dtype]).itemsize
        checksum = 0
        with open(self._path, "rb", buffering=0) as file:
            for index, units in enumerate(self.shape.units):
                file.seek(self._row_offset(index, batch))
                checksum = zlib.crc32(file.read(self.shape.batches[batch] * units * itemsize), checksum)
        return checksum


Store = MemoryStore | DiskStore


def blocks(
    store: Store, budget: int, *, whole: bool = False, sites: Sequence[int] | None = None
) -> Iterator[tuple[int, slice, NDArray[Any]]]:
    """Blocks of a store that take at most `budget` bytes each.

    Args:
        store: Where to read.
        budget: Bytes; at least one unit is read whatever the budget.
        whole: Do not split sites.
        sites: Numbers of the sites to read; all by default.

    Yields:
        Number of the site, its units, and their responses [rows, units].
    """
    itemsize = np.dtype(DTYPES[store.shape.dtype]).itemsize
    step = max(1, budget // (itemsize * max(1, store.shape.n_rows)))
    for index in range(len(store.shape.sites)) if sites is None else sites:
        units = store.shape.units[index]
        width = units if whole else min(step, units)
        for start in range(0, units, width):
            columns = slice(start, min(start + width, units))
            yield index, columns, store.read(index, columns)
