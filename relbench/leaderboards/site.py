"""The static site: pages that need no network, no framework, and of which strangers' text is no part of the code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isinf
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from relbench.leaderboards import words
from relbench.leaderboards.boards import (
    Boards,
    MethodEntry,
    ModelEntry,
    RelationEntry,
    Section,
    TransferMatrix,
)
from relbench.leaderboards.charts import Bar, LossChart, Series, axis_end, bar, loss_chart, series, shade
from relbench.leaderboards.provenance import provenance
from relbench.leaderboards.submission import Submission
from relbench.reports.formats import show
from relbench.treatments import RANDOM

# Page → its place in the navigation.
PAGES = {
    "index.html": "Methods",
    "relations.html": "Relations",
    "models.html": "Models",
    "transfer.html": "Transfer",
}
_ASSETS = ("style.css", "board.js")


@dataclass(frozen=True)
class Filter:
    """A choice above a board: its key, its label, and the values besides "any" that rows can have."""

    key: str
    label: str
    values: tuple[tuple[str, str], ...]
    any: bool = True


@dataclass(frozen=True)
class MethodRow:
    """A row of the Methods board: an entry, how it is drawn, and the languages that it speaks for."""

    entry: MethodEntry
    look: Series
    bar: Bar | None
    languages: str


@dataclass(frozen=True)
class MethodSection:
    """A section of the Methods board.

    Attributes:
        section: What its entries share.
        rows: Its rows.
        charts: (languages that it is shown for, heading, chart).
        end: Where the axis of the rows' bars ends.
    """

    section: Section
    rows: tuple[MethodRow, ...]
    charts: tuple[tuple[str, str, LossChart], ...]
    end: float


@dataclass(frozen=True)
class RelationRow:
    """All sizes of a method's masks of one relation: (selectivity, interval) or None for each size."""

    first: RelationEntry
    sizes: tuple[RelationEntry | None, ...]
    mean: float | None


def site(boards: Boards) -> dict[str, str]:
    """Path below `site/` → content."""
    environment = _environment()

    def page(template: str, **values: Any) -> str:
        return environment.get_template(template).render(pages=PAGES, **values)

    shown = {words.page_name(one): provenance(one) for one in boards.submissions}
    sections = [_method_section(section, entries) for section, entries in boards.methods.items()]
    files = {
        name: environment.get_template(name).render() if name.endswith(".html") else _asset(environment, name)
        for name in _ASSETS
    }
    files["index.html"] = page(
        "methods.html",
        here="index.html",
        root="",
        sections=sections,
        filters=_method_filters(boards.methods),
        shown=_of((row.entry.submission for one in sections for row in one.rows), shown),
    )
    files["relations.html"] = page(
        "relations.html",
        here="relations.html",
        root="",
        sections=[(section, _relation_rows(entries)) for section, entries in boards.relations.items()],
        filters=_relation_filters(boards.relations),
        shown=_of((one.submission for some in boards.relations.values() for one in some), shown),
    )
    files["models.html"] = page(
        "models.html",
        here="models.html",
        root="",
        entries=[(entry, bar(entry.recall, entry.interval, mark=entry.majority)) for entry in boards.models],
        filters=_model_filters(boards.models),
        shown=_of((entry.submissions[0] for entry in boards.models), shown),
    )
    files["transfer.html"] = page(
        "transfer.html",
        here="transfer.html",
        root="",
        matrices=boards.matrices,
        filters=_transfer_filters(boards.matrices),
        shown=_of((matrix.first.submission for matrix in boards.matrices), shown),
    )
    for name, one in shown.items():
        files[f"submissions/{name}"] = page("submission.html", here="", root="../", one=one, name=name)
    return files


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("relbench.leaderboards", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(words=words, RANDOM=RANDOM, shade=shade)
    environment.filters.update(show=show, sortable=_sortable, page_name=words.page_name)
    return environment


def _asset(environment: Environment, name: str) -> str:
    """A file of the site that nothing is filled into."""
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0]


def _sortable(value: float | None) -> str:
    """A number as rows are sorted by it; empty for none, which comes last."""
    return "" if value is None or isinf(value) else f"{value:.6g}"


def _of(submissions: Iterable[Submission], shown: Mapping[str, Any]) -> dict[str, Any]:
    names = sorted({words.page_name(submission) for submission in submissions})
    return {name: shown[name] for name in names}


def _method_section(section: Section, entries: Sequence[MethodEntry]) -> MethodSection:
    looks = series((entry.name for entry in entries), RANDOM)
    bounds = [
        bound
        for entry in entries
        for bound in (entry.off_target_at_half, *(entry.off_target_at_half_interval or ()))
        if bound is not None and not isinf(bound)
    ]
    end = axis_end(bounds)
    charts = []
    for language, members in groupby(entries, lambda entry: entry.language):
        chart = loss_chart(list(members), looks)
        if chart is not None:
            spoken = " ".join(words.languages_of(section, language))
            charts.append((spoken, words.language(language), chart))
    return MethodSection(
        section=section,
        rows=tuple(
            MethodRow(
                entry,
                looks[entry.name],
                bar(entry.off_target_at_half, entry.off_target_at_half_interval, end=end),
                " ".join(words.languages_of(section, entry.language)),
            )
            for entry in entries
        ),
        charts=tuple(charts),
        end=end,
    )


def _relation_rows(entries: Sequence[RelationEntry]) -> list[RelationRow]:
    sizes = sorted({entry.k or 0 for entry in entries})

    def key(entry: RelationEntry) -> tuple[str, ...]:
        return (entry.language, entry.relation, entry.method.id, words.page_name(entry.submission))

    rows = []
    for _, members in groupby(sorted(entries, key=key), key):
        group = list(members)
        found = {entry.k or 0: entry for entry in group}
        known = [entry.selectivity for entry in group if entry.selectivity is not None]
        whole = len(known) == len(sizes)
        rows.append(
            RelationRow(
                first=group[0],
                sizes=tuple(found.get(size) for size in sizes),
                mean=sum(known) / len(known) if known and whole else None,
            )
        )
    return rows


def _method_filters(sections: Mapping[Section, Sequence[MethodEntry]]) -> tuple[Filter, ...]:
    spoken = {
        code
        for section, entries in sections.items()
        for entry in entries
        for code in words.languages_of(section, entry.language)
    }
    entries = [entry for some in sections.values() for entry in some]
    return (
        _choice("model", "Model", (section.model.name for section in sections)),
        _choice("method", "Method", (entry.name for entry in entries)),
        Filter(
            "language",
            "Language",
            tuple(
                (code, words.language(code))
                for code in sorted(spoken, key=lambda code: (code != "all", code))
            ),
            any=False,
        ),
    )


def _relation_filters(sections: Mapping[Section, Sequence[RelationEntry]]) -> tuple[Filter, ...]:
    entries = [entry for some in sections.values() for entry in some]
    return (
        _choice("model", "Model", (section.model.name for section in sections)),
        _choice("method", "Method", (entry.method.id for entry in entries)),
        _choice("language", "Language", (entry.language for entry in entries)),
        _choice("relation", "Relation", (entry.relation for entry in entries)),
    )


def _model_filters(entries: Sequence[ModelEntry]) -> tuple[Filter, ...]:
    return (
        _choice("model", "Model", (entry.model.name for entry in entries)),
        _choice("language", "Language", (entry.task.language for entry in entries)),
        _choice("relation", "Relation", (entry.task.relation for entry in entries)),
    )


def _transfer_filters(matrices: Sequence[TransferMatrix]) -> tuple[Filter, ...]:
    return (
        _choice("model", "Model", (one.first.submission.model.id.name for one in matrices)),
        _choice("method", "Method", (one.first.method.id for one in matrices)),
    )


def _choice(key: str, label: str, values: Iterable[str]) -> Filter:
    return Filter(key, label, tuple((value, value) for value in sorted(set(values))))
