"""Writing files whole or not at all, and naming their content by hash."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path` that replaces it when the block ends without an exception.

    Args:
        path: The file to write; its folder is made when missing.
        mode: "w" for UTF-8 text with "\\n" line ends, "wb" for bytes.

    Raises:
        OSError: The file cannot be written; its `filename` is never the temporary one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _errors_name(path):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with os.fdopen(descriptor, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a result is as readable as any other file of the user's.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        with _errors_name(path):
            os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """System errors about a path beside `path` become errors about `path`, which the user gave."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_unfinished(folder: str | Path) -> None:
    """Delete what a killed `atomic_write` left in a folder and below; nobody else may be writing there."""
    for path in Path(folder).rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces: equal values give equal text.

    Raises:
        ValueError: `value` holds NaN or an infinity, which JSON lacks.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_file(path: str | Path) -> str:
    """Hex SHA-256 of a file's bytes, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
