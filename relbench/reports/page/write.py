"""Writing the page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from interventions.files import atomic_write
from relbench.findings import Findings
from relbench.findings.reading import read_sweep
from relbench.reports.page.about import about, words
from relbench.reports.page.facts import page_facts
from relbench.reports.page.packing import inert_json
from relbench.reports.page.tables import FILTERS, OVER_MASKS, filter_values, page_table

FILE = "report.html"
SCRIPTS = ("data.js", "filters.js", "tables.js", "facts.js", "heatmap.js", "page.js")
# Bytes of figures that are embedded; those after them are named.
FIGURES = 5_000_000
_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


class Figure(NamedTuple):
    """A figure within the page.

    Attributes:
        name: Its file name without ending.
        title: What it shows, in words.
        address: Its content, as a data: address.
    """

    name: str
    title: str
    address: str


def write_page(directory: Path, findings: Findings, figures: Sequence[Path]) -> Path:
    """Write `report.html` into a sweep directory: one file that needs no other and no network.

    Args:
        directory: Of a finished sweep.
        findings: What was found in it.
        figures: SVG and PNG files to show; of two that differ in their ending only, the SVG is shown. A figure
            stands beside the table that its name begins with.

    Returns:
        Its path. The same sweep and figures give the same bytes.

    Raises:
        UserError: The directory is no finished sweep.
    """
    sweep = read_sweep(directory)
    shown = _figures(figures, findings)
    facts = page_facts(sweep)
    assets = files("relbench.reports.page") / "assets"
    style = (assets / "page.css").read_text(encoding="utf-8")
    scripts = "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS)
    filters = filter_values(findings.tables)
    tables = [page_table(table) for table in findings.tables]
    page = _template((assets / "page.html.jinja").read_text(encoding="utf-8")).render(
        model=sweep.config.model,
        about=about(directory, sweep.config, findings),
        first=[table for table in findings.tables if table.name in OVER_MASKS],
        others=[table for table in findings.tables if table.name not in OVER_MASKS],
        short=_short(findings),
        notes=[table["note"] for table in tables if table["note"]],
        embedded="; ".join(facts["notes"]),
        figures=_placed(shown, findings),
        left_out=[path.name for path in _distinct(figures)[len(shown) :]],
        filters={name: (FILTERS[name][0], values) for name, values in filters.items()},
        has_masks=any(table.name == "deltas" for table in findings.tables),
        words=words,
        style=style,
        script=scripts,
        data=inert_json({"tables": tables, "facts": facts}),
        policy=_policy(style, scripts),
    )
    path = directory / FILE
    with atomic_write(path) as file:
        file.write(page)
    return path


def _policy(style: str, script: str) -> str:
    """What the page may do: run this script, use this style, show embedded pictures; fetch nothing."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode("ascii")


def _template(source: str) -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source)


def _distinct(paths: Sequence[Path]) -> list[Path]:
    """One file a figure, the SVG where there are both, in the order given."""
    found: dict[str, Path] = {}
    for path in paths:
        if path.suffix in _TYPES and (path.stem not in found or path.suffix == ".svg"):
            found[path.stem] = path
    return list(found.values())


def _figures(paths: Sequence[Path], findings: Findings) -> list[Figure]:
    """As many figures as fit."""
    found: list[Figure] = []
    left = FIGURES
    for path in _distinct(paths):
        content = path.read_bytes()
        left -= len(content)
        if left < 0:
            break
        table = _table_of(path.stem, findings)
        title = _title(path.stem, table, findings)
        address = f"data:{_TYPES[path.suffix]};base64,{base64.b64encode(content).decode('ascii')}"
        found.append(Figure(path.stem, title, address))
    return found


def _title(figure: str, table: str | None, findings: Findings) -> str:
    """What a figure shows: its table's title, and what tells it from others of that table."""
    if table is None:
        return words(figure).replace("-", " ")
    which = words(figure.removeprefix(table).strip("-_")).replace("-", " ")
    return findings.table(table).title + (f" ({which})" if which else "")


def _table_of(figure: str, findings: Findings) -> str | None:
    """The table that a figure's name begins with."""
    names = [
        t.name for t in findings.tables if figure == t.name or figure.startswith((f"{t.name}-", f"{t.name}_"))
    ]
    return max(names, key=len, default=None)


def _short(findings: Findings) -> dict[str, str]:
    """Table → its title up to the colon, where no other one begins like that."""
    begins = [table.title.partition(":")[0] for table in findings.tables]
    return {
        table.name: begin if begins.count(begin) == 1 else table.title
        for table, begin in zip(findings.tables, begins, strict=True)
    }


def _placed(figures: Sequence[Figure], findings: Findings) -> dict[str | None, list[Figure]]:
    """Table → its figures; None → those of no table."""
    found: dict[str | None, list[Figure]] = {}
    for figure in figures:
        found.setdefault(_table_of(figure.name, findings), []).append(figure)
    return found
