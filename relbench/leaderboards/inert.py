"""Text of strangers in Markdown, CSV and links, where it must not do anything.

HTML is not here: the site's templates escape whatever they are given.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from relbench.reports.csv import FORMULA

# What has a meaning within a line of CommonMark, or in what GitHub adds to it (tables, strikethrough, mathematics,
# addresses that become links by themselves); and what has one at its beginning.
_SPECIAL = re.compile(r"[\\`*_\[\]<>#|~&!$]|:(?=/)|(?<=www)\.|^[-+=]|(?<=^\d)[.)]", re.IGNORECASE)
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]+")


def one_line(text: str) -> str:
    """`text` on one line: runs of control characters and changes of direction become a space."""
    return _BREAKS.sub(" ", text).strip()


def markdown(text: str) -> str:
    """Text that reads the same in Markdown, also in a table's cell, and is nothing but text there.

    An address or mention does not become a link either: what follows an @ is parted from it by a character
    without width.
    """
    escaped = _SPECIAL.sub(r"\\\g<0>", one_line(text))
    return escaped.replace("@", "@&#8288;")


def csv_text(text: str) -> str:
    """Text for a CSV cell that a spreadsheet does not compute: an apostrophe goes before what looks like a formula."""
    line = one_line(text)
    return f"'{line}" if line.startswith(FORMULA) else line


def web_link(text: str) -> str | None:
    """`text` when it is an address on the web, else None: never a script, a file or an address with a password."""
    if text != one_line(text) or any(character in text for character in " <>\"'`\\"):
        return None
    try:
        parts = urlsplit(text)
        host, named = parts.hostname, parts.username or parts.password
    except ValueError:
        return None
    return text if parts.scheme in ("http", "https") and host and not named else None
