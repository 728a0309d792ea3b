"""Values and bits as text that a script decodes quickly, and JSON that is inert inside a page."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.files import canonical_json

# What could end a script element or open another one, and the two line ends that JSON allows and older scripts
# do not.
_INERT = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
# What marks a log probability change that is not a number.
NO_CHANGE = -(2**15)


def inert_json(value: Any) -> str:
    """`value` as JSON that no HTML parser reads as markup; the same text for equal values.

    Raises:
        ValueError: It holds NaN or an infinity.
    """
    return canonical_json(value).translate(_INERT)


def pack_integers(values: Iterable[int], largest: int) -> dict[str, Any]:
    """Integers from 0 to `largest` as base64 of little-endian bytes: `width` bytes each."""
    width = 1 if largest < 2**8 else 2 if largest < 2**16 else 4
    return {"width": width, "bytes": _text(np.fromiter(values, dtype=f"<u{width}"))}


def pack_bits(groups: Iterable[Iterable[int]]) -> str:
    """Groups of zeros and ones as base64; the first of eight is the lowest bit, a group starts on a byte."""
    packed = [np.packbits(np.fromiter(group, dtype=np.uint8), bitorder="little") for group in groups]
    return _text(np.concatenate([np.zeros(0, dtype=np.uint8), *packed]))


def pack_changes(values: Iterable[float]) -> str:
    """Changes of log probability as base64 of little-endian int16: hundredths, at most ±327."""
    array = np.fromiter(values, dtype=np.float64)
    hundredths = np.nan_to_num(np.clip(np.round(array * 100), -32700, 32700), nan=NO_CHANGE)
    return _text(hundredths.astype("<i2"))


def _text(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
