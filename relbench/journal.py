"""The journal of a sweep: finished blocks, appended as they finish, safe against being killed at any moment.

Each line holds one (intervention × task) block and its checksum. A torn last line is what a kill
leaves; it is dropped on reading and cut off before the next append. Damage anywhere else is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from interventions.errors import UserError
from interventions.files import canonical_json
from relbench.samples import Sample, sample_from_dict

Block = tuple[str, str]


class Journal:
    """Finished blocks of one process.

    Args:
        path: The journal's file; made when missing.

    Raises:
        UserError: A line before the last one is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.blocks: dict[Block, list[Sample]] = {}
        self._end = 0
        if self.path.is_file():
            self._read()

    def _read(self) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            parsed = _parse(line)
            if parsed is None:
                if number == len(lines):
                    return
                raise UserError(
                    f"{self.path} line {number} is damaged; restore it, or delete the file to start over"
                )
            block, samples = parsed
            self.blocks[block] = samples
            self._end += len(line)

    def append(self, block: Block, samples: Sequence[Sample]) -> None:
        """Add a finished block; when this returns, the block is on the disk."""
        line = _line(block, samples)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self._end)
            file.seek(self._end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._end += len(line)
        self.blocks[block] = list(samples)


def _line(block: Block, samples: Sequence[Sample]) -> bytes:
    body = canonical_json({"block": list(block), "samples": [sample.to_dict() for sample in samples]})
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f"{digest} {body}\n".encode()


def _parse(line: bytes) -> tuple[Block, list[Sample]] | None:
    """A line's block, or None when the line is not whole."""
    digest, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    raw = json.loads(body)
    intervention, task = raw["block"]
    return (intervention, task), [sample_from_dict(sample) for sample in raw["samples"]]
