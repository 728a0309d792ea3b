"""The JSON of a leaderboards folder, laid out for people who read its head and for diffs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interventions.files import atomic_write


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON with a line for each key, and for each row of a table."""
    with atomic_write(path) as file:
        file.write(_laid_out(value) + "\n")


def _laid_out(value: Any, depth: int = 0) -> str:
    plain = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(plain) <= 100 or not isinstance(value, (dict, list)):
        return plain
    inner = " " * (depth + 1)
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key, ensure_ascii=False)}: {_laid_out(one, depth + 1)}"
            for key, one in value.items()
        ]
        opening, closing = "{", "}"
    else:
        items = [
            json.dumps(one, ensure_ascii=False, allow_nan=False)
            if isinstance(one, list)
            else _laid_out(one, depth + 1)
            for one in value
        ]
        opening, closing = "[", "]"
    return f"{opening}\n" + ",\n".join(inner + item for item in items) + f"\n{' ' * depth}{closing}"
