"""Tables as LaTeX with booktabs: to be read in with \\input, caption and label included."""

from __future__ import annotations

from collections.abc import Sequence

from relbench.reports.printed import printed
from relbench.tables import Table

# Rows that fit on a page; longer tables go over several.
PAGE = 40

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "−": r"$-$",
    "–": "--",
    "—": "---",
    "∞": r"$\infty$",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "α": r"$\alpha$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
}


def latex(table: Table) -> str:
    """A `table`, or a `longtable` where there are more than 40 rows; the label is `tab:relbench-<name>`."""
    shown = printed(table)
    caption = rf"\caption{{{escape(table.title)}. {escape(table.caption + shown.caption_end)}}}"
    label = rf"\label{{tab:relbench-{table.name.replace('_', '-')}}}"
    spec = "".join("r" if column.right else "l" for column in shown.columns)
    head = _line([escape(column.label) for column in shown.columns])
    body = [_line([escape(cell) for cell in row]) for row in shown.rows]
    if len(body) <= PAGE:
        return _lines(
            "% Needs booktabs, and T1 fonts.",
            r"\begin{table}",
            r"\centering\small",
            caption,
            label,
            rf"\begin{{tabular}}{{@{{}}{spec}@{{}}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        )
    return _lines(
        "% Needs booktabs and longtable, and T1 fonts.",
        r"\begingroup\small",
        rf"\begin{{longtable}}{{@{{}}{spec}@{{}}}}",
        caption,
        rf"{label} \\",
        r"\toprule",
        head,
        r"\midrule",
        r"\endfirsthead",
        r"\toprule",
        head,
        r"\midrule",
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
        *body,
        r"\end{longtable}",
        r"\endgroup",
    )


def escape(text: str) -> str:
    """Text as LaTeX shows it; line ends become spaces. Other scripts need LuaLaTeX or XeLaTeX and a font."""
    return "".join(_ESCAPES.get(letter, letter) for letter in " ".join(text.split()))


def _line(cells: Sequence[str]) -> str:
    # After a line's end, [ and * would be read as its options.
    first = f"{{}}{cells[0]}" if cells[0].startswith(("[", "*")) else cells[0]
    return rf"{' & '.join([first, *cells[1:]])} \\"


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"
