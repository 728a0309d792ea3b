"""Memory budgets as users write them."""

from __future__ import annotations

import re

from interventions.errors import UserError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LEAST = 64 << 20


def parse_memory(value: object) -> int:
    """Bytes of a budget: "4G", "512M" (powers of 1,024, an "i" or "B" may follow) or a number of bytes.

    Raises:
        UserError: Not a size, or less than 64M, in which nothing useful fits.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    if match is None:
        raise UserError(f"memory is {value!r}; write a size such as 4G or 512M")
    size = int(float(match[1]) * _UNITS[match[2]])
    if size < LEAST:
        raise UserError(f"memory is {value!r}; at least 64M are needed")
    return size


def describe_bytes(size: int) -> str:
    """ "1.5G", "300M": for messages."""
    for suffix in "GMK":
        unit = _UNITS[suffix.lower()]
        if size >= unit:
            return f"{size / unit:.3g}{suffix}"
    return f"{size}B"
