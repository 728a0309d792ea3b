"""What was run, in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from interventions.files import sha256_file
from relbench.findings import Findings
from relbench.languages import LANGUAGES
from relbench.sweep_config import MethodConfig, ScoresConfig, SweepConfig
from relbench.sweep_state import read_state

# Hex digits by which hashes are named.
_DIGITS = 12


class Entry(NamedTuple):
    """A line of the summary.

    Attributes:
        term: What it says something about.
        values: What it says, a paragraph each.
    """

    term: str
    values: tuple[str, ...]


def about(directory: Path, config: SweepConfig, findings: Findings) -> list[Entry]:
    """What a sweep was: model, questions, methods, masks, and where it all came from.

    Nothing in it depends on when the sweep ran, or for how long.

    Raises:
        UserError: The directory is not a sweep's.
    """
    state = read_state(directory)
    entries = {
        "Model": _model(config, state.get("model") or {}),
        "Questions": _questions(config, findings),
        "Relations": [", ".join(map(words, config.relations))],
        "Languages": [", ".join(map(_language, config.languages))],
        "Scoring methods": [*map(_method, config.methods), *map(_method, config.scores)],
        "Masks": _masks(config) if config.methods or config.scores else ["none: the baseline alone"],
        "Made with": _made_with(directory),
        "Answers": [f"samples.jsonl, SHA-256 {sha256_file(directory / 'samples.jsonl')[:_DIGITS]}…"],
    }
    return [Entry(term, made) for term, values in entries.items() if (made := tuple(values))]


def words(relation: str) -> str:
    """A relation's name in words."""
    return relation.replace("_", " ")


def _language(code: str) -> str:
    return f"{LANGUAGES[code].name} ({code})" if code in LANGUAGES else code


def _model(config: SweepConfig, model: Mapping[str, Any]) -> Iterator[str]:
    yield config.model
    said = []
    if layout := model.get("layout"):
        said.append(
            f"{layout['model_type']}, {layout['n_layers']} layers, {layout['d_ff']:,} FFN neurons in each"
        )
    said.append(config.dtype)
    if model.get("revision"):
        said.append(f"revision {model['revision']}")
    if model.get("fingerprint"):
        said.append(f"weights {model['fingerprint'][:_DIGITS]}")
    yield "; ".join(said)


def _questions(config: SweepConfig, findings: Findings) -> Iterator[str]:
    facts = sum(row.n for row in findings.recalls)
    testable = sum(one.testable for one in findings.testability)
    yield (
        f"{facts:,} facts of the {config.split} split in {_number(len(findings.testability), 'relation')}"
        f"{', each language counted' if len(config.languages) > 1 else ''}; {testable} testable"
    )
    yield (
        f"template {config.templates[0]}, {_number(config.shots[0], 'example')} before each question"
        f" (seed {config.shots_seed})"
    )
    if len(config.templates) * len(config.shots) > 1:
        yield (
            f"for template transfer also: templates {', '.join(config.templates)}; "
            f"{', '.join(map(str, config.shots))} examples"
        )


def _method(entry: MethodConfig | ScoresConfig) -> str:
    if isinstance(entry, ScoresConfig):
        return f"{entry.id}: scores from {Path(entry.path).name}"
    said = [] if entry.name == entry.id else [entry.name]
    if entry.template is not None:
        said.append(f"template {entry.template}")
    if entry.shots is not None:
        said.append(_number(entry.shots, "example"))
    said += [f"{name}: {_plain(value)}" for name, value in entry.options.items()]
    return f"{entry.id}: {'; '.join(said)}" if said else entry.id


def _masks(config: SweepConfig) -> Iterator[str]:
    sizes = [f"{size:.4g}".rstrip("0").rstrip(".") for size in (100 * f for f in config.fractions)]
    if sizes:
        yield f"{_and(sizes)} % of all FFN neurons, among the kinds {', '.join(config.kinds)}"
    if config.ks:
        yield f"{_and(f'{k:,}' for k in config.ks)} units of the kinds {', '.join(config.kinds)}"
    modes, positions = (
        [mode.label for mode in config.modes],
        [place.replace("_", " ") for place in config.positions],
    )
    yield f"units set to: {', '.join(modes)}; at positions: {', '.join(positions)}"
    if config.controls.seeds:
        yield f"{_number(config.controls.seeds, 'random mask')} of each size, matched: {config.controls.match}"
    if config.contrast_relations is not None:
        yield f"contrasted with: {', '.join(map(words, config.contrast_relations))}"


def _made_with(directory: Path) -> Iterator[str]:
    path = directory / "run.json"
    if not path.is_file():
        return
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        # The page is about the samples; a damaged note on how they came about takes nothing from them.
        yield "run.json cannot be read"
        return
    code = run.get("code") or {}
    if code.get("relbench"):
        commit = f", commit {code['commit'][:_DIGITS]}" if code.get("commit") else ""
        yield f"relbench {code['relbench']}{commit}{', with local changes' if code.get('modified') else ''}"
    packages = run.get("packages") or {}
    if packages:
        yield ", ".join(f"{name} {version}" for name, version in packages.items())
    if run.get("device"):
        yield f"on {run['device']}"


def _number(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _and(values: Iterable[str]) -> str:
    *most, last = values
    return f"{', '.join(most)} and {last}" if most else last


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
