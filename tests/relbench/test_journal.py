"""The journal: what a kill leaves is continued, what else is damaged is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from interventions.errors import UserError
from relbench.journal import Journal
from tests.relbench.records import sample


def _filled(path: Path) -> Journal:
    journal = Journal(path)
    for name in ("a", "b", "c"):
        journal.append(
            (name, "task"), [sample(number, 1, intervention=name).to_dict() for number in range(3)]
        )
    return journal


def test_blocks_come_back(tmp_path: Path) -> None:
    written = _filled(tmp_path / "0.jsonl").blocks
    assert Journal(tmp_path / "0.jsonl").blocks == written


def test_a_kill_at_any_byte_loses_no_finished_block(tmp_path: Path) -> None:
    whole = _filled(tmp_path / "whole.jsonl")
    data = (tmp_path / "whole.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(0, len(data) + 1, 7):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(data[:cut])
        journal = Journal(path)
        assert len(journal.blocks) == sum(end <= cut for end in ends)
        for name in ("a", "b", "c"):
            if (name, "task") not in journal.blocks:
                journal.append((name, "task"), whole.blocks[name, "task"])
        assert path.read_bytes() == data


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    _filled(path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="line 1 is damaged"):
        Journal(path)
