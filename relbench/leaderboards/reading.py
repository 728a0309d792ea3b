"""Reading files that strangers wrote: limits first, then bytes, then JSON, then meaning."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from relbench.leaderboards.limits import (
    INTEGER_DIGITS,
    JSON_BYTES,
    JSON_DEPTH,
    LINE_BYTES,
    SAMPLES_BYTES,
    UNPACKED_BYTES,
)
from relbench.leaderboards.problems import Refused, quoted

_BLOCK = 2**16


def read_json(path: Path, *, most: int = JSON_BYTES) -> Any:
    """Read a JSON file whose strings are printable.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        Refused: Too large, no regular file, or what `parse_json` refuses.
    """
    with open_regular(path, most) as file:
        return printable(parse_json(file.read(most + 1)))


def open_regular(path: Path, most: int) -> IO[bytes]:
    """Open a regular file, and nothing that a link leads to.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        Refused: It is a link, a folder or a device, cannot be read, or is too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise Refused("expected a file, found a symbolic link, which is not followed") from None
        raise Refused(f"cannot be read: {error.strerror}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        os.close(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("expected a file, found something else")
        raise Refused(f"expected at most {most} bytes, found {found.st_size}")
    return os.fdopen(descriptor, "rb")


def parse_json(data: bytes) -> Any:
    """Parse JSON strictly.

    Raises:
        Refused: No UTF-8, no JSON, nested too deeply, a key twice in one object, NaN or an infinity, or a number
            too large.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"expected UTF-8, found byte {data[error.start]:#04x} at {error.start}") from None
    _check_depth(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_not_a_number,
            parse_float=_finite,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise Refused(
            f"expected JSON, found a mistake in line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None


# A string, whole or not, or a bracket.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


def _check_depth(text: str) -> None:
    """Refuse deep nesting before a parser recurses into it."""
    depth = 0
    for found in _TOKEN.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0][0], 0)
        if depth > JSON_DEPTH:
            raise Refused(f"expected at most {JSON_DEPTH} levels of nesting, found more")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise Refused(f"expected each key once, found {quoted(twice)} twice in one object")
    return found


def _not_a_number(text: str) -> NoReturn:
    raise Refused(f"expected finite numbers, found {text}")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Refused(f"expected finite numbers, found {quoted(text)}")
    return value


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > INTEGER_DIGITS:
        raise Refused(f"expected integers of at most {INTEGER_DIGITS} digits, found more")
    return int(text)


def printable(value: Any, field: str = "") -> Any:
    """`value`, when all strings and keys in it can be printed.

    Raises:
        Refused: One holds a control or formatting character, a line break or half a surrogate pair.
    """
    if isinstance(value, str):
        if not value.replace("\u3000", " ").replace("\xa0", " ").isprintable():
            raise Refused(f"expected printable characters, found {quoted(value)}", field)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            printable(item, f"{field}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            printable(key, field)
            printable(item, f"{field}.{key}" if field else key)
    return value


def gzip_lines(path: Path) -> Iterator[bytes]:
    """The lines of a gzip file, unpacked as they are asked for, without their line ends.

    Raises:
        Refused: No gzip, damaged or cut short, or larger than the limits: a file that unpacks to more is not
            unpacked any further.
    """
    pending = b""
    for block in _unpacked(path):
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            yield _short_enough(line)
        _short_enough(pending)
    if pending:
        raise Refused("expected a line end after the last line, found none")


def _short_enough(line: bytes) -> bytes:
    if len(line) > LINE_BYTES:
        raise Refused(f"expected lines of at most {LINE_BYTES} bytes, found a longer one")
    return line


def _unpacked(path: Path) -> Iterator[bytes]:
    total = 0
    with open_regular(path, SAMPLES_BYTES) as file, gzip.GzipFile(fileobj=file) as unpacked:
        try:
            while block := unpacked.read(_BLOCK):
                total += len(block)
                if total > UNPACKED_BYTES:
                    raise Refused(f"expected at most {UNPACKED_BYTES} bytes unpacked, found more")
                yield block
        except (OSError, EOFError, zlib.error) as error:
            raise Refused(f"expected a whole gzip file, found a damaged one: {error}") from None
