"""Reading and writing the project's files: safetensors with one metadata key of canonical JSON.

The same content gives the same bytes. The header carries a checksum of everything, so a file that was cut,
flipped or edited is refused with one line rather than read as something else. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.files import atomic_write, canonical_json

FORMAT_VERSION = 1
METADATA_KEY = "relbench"

_PACKAGES = ("torch", "transformers", "numpy")


@dataclass(frozen=True)
class Artifact:
    """What a file holds: its header (plain JSON values) and its tensors by name."""

    header: dict[str, Any]
    tensors: dict[str, NDArray[Any]]


def package_versions() -> dict[str, str]:
    """Versions of the packages that results depend on, for provenance."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def content_digest(header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over a header and named tensors (name, dtype, shape and little-endian bytes of each)."""
    digest = hashlib.sha256(canonical_json(dict(header)).encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


def save(
    path: str | Path, *, what: str, header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file atomically.

    Args:
        path: Where to.
        what: "scores" or "mask"; a reader of the other is told so.
        header: Plain JSON values, no NaN.
        tensors: Float32 or int32 arrays by name.

    Raises:
        ValueError: The header holds NaN or something that JSON lacks.
    """
    from safetensors.numpy import save as to_bytes

    full = {**header, "format": FORMAT_VERSION, "what": what}
    full["sha256"] = content_digest(full, tensors)
    data = to_bytes(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, {METADATA_KEY: canonical_json(full)}
    )
    with atomic_write(path, "wb") as file:
        file.write(data)


def load(path: str | Path, *, what: str) -> Artifact:
    """Read a file that `save` wrote, and check it.

    Raises:
        UserError: The file is missing, empty, cut, damaged, not ours, of another kind or format version.
    """
    path = Path(path)
    header, tensors = _read(path)
    found = header.get("format")
    if type(found) is not int or found != FORMAT_VERSION:
        raise UserError(
            f"{path}: format version {found!r}, this relbench reads version {FORMAT_VERSION}; "
            "make the file again, or install the version that wrote it"
        )
    if header.get("what") != what:
        raise UserError(f"{path} holds {header.get('what')!r}, not {what}")
    stated = header.pop("sha256", None)
    if content_digest(header, tensors) != stated:
        raise UserError(f"{path} is damaged: its checksum does not match; copy or make it again")
    return Artifact(header, tensors)


def kind_of(path: str | Path) -> str:
    """What a file says it holds ("scores" or "mask"), without checking the rest.

    Raises:
        UserError: The file is missing or not ours.
    """
    return str(_read(Path(path))[0].get("what"))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if not data:
        raise UserError(f"{path} is empty")
    try:
        header = _metadata(data)
        tensors = from_bytes(data)
    except UserError as error:
        raise UserError(f"{path} {error}") from None
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, MemoryError):
        raise UserError(f"{path} is not a readable safetensors file, or it was cut or damaged") from None
    for name, array in tensors.items():
        if array.dtype not in (np.float32, np.int32):
            raise UserError(f"{path}: tensor {name!r} is {array.dtype}; only float32 and int32 are used")
    return header, tensors


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _metadata(data: bytes) -> dict[str, Any]:
    """The JSON object under our metadata key of a safetensors file's bytes."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise UserError("is not a safetensors file, or it was cut")
    try:
        outer = json.loads(data[8 : 8 + size])
        text = outer["__metadata__"][METADATA_KEY]
        header = json.loads(text, parse_constant=_no_constant)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError("was not written by relbench, or its header is damaged") from None
    if not isinstance(header, dict):
        raise UserError("was not written by relbench, or its header is damaged")
    return header
