"""Tables as Markdown, for GitHub and whatever reads its tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from relbench.reports.printed import PrintedColumn, printed
from relbench.tables import Table

# An identifier with an @ would become a mail link.
_CODE = re.compile(r"[\w.,@+-]*@[\w.,@+-]*")
_SPECIAL = re.compile(r"([\\`*\[\]<>|~$&#])")
# Within a word an underscore is only an underscore.
_UNDERSCORE = re.compile(r"(?<!\w)_|_(?!\w)")


def markdown(table: Table) -> str:
    """A heading, the caption and the table."""
    shown = printed(table)
    lines = [
        _line([_escape(column.label) for column in shown.columns]),
        _line(["---:" if column.right else "---" for column in shown.columns]),
        *(_line(_cells(row, shown.columns)) for row in shown.rows),
    ]
    caption = _escape(table.caption + shown.caption_end)
    return f"# {_escape(table.title)}\n\n{caption}\n\n" + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Sequence[str], columns: Sequence[PrintedColumn]) -> list[str]:
    return [_text(cell) if column.text else cell for cell, column in zip(row, columns, strict=True)]


def _text(cell: str) -> str:
    return f"`{cell}`" if _CODE.fullmatch(cell) else _escape(cell)


def _escape(text: str) -> str:
    return _UNDERSCORE.sub(r"\\_", _SPECIAL.sub(r"\\\1", " ".join(text.split())))
