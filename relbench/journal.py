"""The journal of a sweep: finished blocks, appended as they finish, safe against being killed at any moment.

Each line holds one block, the records that it gave, and its checksum. A torn last line is what a kill or a full
disk leaves; it is dropped on reading and cut off before the next append. Damage anywhere else is an error. Every
process of a sweep appends to a file of its own, `journal/<rank>.jsonl`; all of them are read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interventions.errors import UserError
from interventions.files import canonical_json

# What identifies a block; its parts are the sweep's affair.
Block = tuple[str, ...]
Records = list[dict[str, Any]]


class Journal:
    """Finished blocks of one process.

    Args:
        path: The journal's file; made when the first block is appended.

    Raises:
        UserError: A line before the last one is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.blocks: dict[Block, Records] = {}
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
                    f"{self.path} line {number} is damaged; restore it, or delete the file to do its blocks again"
                )
            block, records = parsed
            self.blocks[block] = records
            self._end += len(line)

    def append(self, block: Block, records: Sequence[Mapping[str, Any]]) -> None:
        """Add a finished block; when this returns, the block is on the disk.

        Raises:
            UserError: The disk is full, or does not let the file be written; earlier blocks stay as they are.
        """
        line = _line(block, records)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "r+b" if self.path.exists() else "w+b") as file:
                file.truncate(self._end)
                file.seek(self._end)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise full_or_denied(self.path, error) from error
        self._end += len(line)
        self.blocks[block] = [dict(record) for record in records]


def read_journals(folder: str | Path) -> dict[Block, Records]:
    """Finished blocks of all processes that ever worked in a sweep directory.

    Args:
        folder: The sweep's `journal/`.

    Raises:
        UserError: A line before the last one of a file is damaged.
    """
    blocks: dict[Block, Records] = {}
    for path in sorted(Path(folder).glob("*.jsonl")):
        blocks |= Journal(path).blocks
    return blocks


def full_or_denied(path: Path, error: OSError) -> UserError:
    """What a user can do about a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(f"no space left to write {path}; make room and run the same command to go on")
    return UserError(f"cannot write {path}: {error.strerror}; mend that and run the same command to go on")


def _line(block: Block, records: Sequence[Mapping[str, Any]]) -> bytes:
    body = canonical_json({"block": list(block), "records": [dict(record) for record in records]})
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f"{digest} {body}\n".encode()


def _parse(line: bytes) -> tuple[Block, Records] | None:
    """A line's block, or None when the line is not whole."""
    digest, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    raw = json.loads(body)
    return tuple(raw["block"]), raw["records"]
