"""Where a submission is from, as groups of labelled facts that the site shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from relbench.leaderboards.boards import where
from relbench.leaderboards.inert import web_link
from relbench.leaderboards.submission import Method, Submission
from relbench.reports.formats import show


@dataclass(frozen=True)
class Fact:
    """A label and what it says; `link` is where it leads, when that is an address on the web."""

    label: str
    text: str
    link: str | None = None


@dataclass(frozen=True)
class Group:
    """Facts under one heading; `method` is the id of the only method that they are about."""

    title: str
    facts: tuple[Fact, ...]
    method: str | None = None


@dataclass(frozen=True)
class Provenance:
    """Everything that is known of how a submission came about.

    Attributes:
        id: The submission's name.
        file: Path of its file below the leaderboards folder.
        command: The command that reproduces it.
        config: The config that the command reads, as YAML.
        groups: The rest.
    """

    id: str
    file: str
    command: str
    config: str
    groups: tuple[Group, ...]


def provenance(submission: Submission) -> Provenance:
    """Where a submission is from."""
    return Provenance(
        id=submission.id,
        file=f"results/{where(submission)}.json",
        command=submission.command,
        config=yaml.safe_dump(dict(submission.config), sort_keys=False, allow_unicode=True, width=100),
        groups=tuple(_groups(submission)),
    )


def _groups(submission: Submission) -> Iterator[Group]:
    submitter, model = submission.submitter, submission.model
    yield Group(
        "Submission",
        (
            Fact("submitter", submitter.name, web_link(submitter.link)),
            Fact("made on", submission.created),
            Fact("licence", submission.licence),
            Fact("for the boards", ", ".join(submission.boards)),
        ),
    )
    for method in submission.methods:
        yield _method(method)
    yield Group(
        "Model",
        (
            Fact("name", model.id.name),
            Fact("loaded as", model.source),
            Fact("revision", model.id.revision or "–"),
            Fact("weights", model.id.fingerprint),
            Fact("ran as", f"{model.dtype} on {model.device}"),
        ),
    )
    facts = sum(task.n for task in submission.tasks.values())
    samples = submission.samples
    urls = sorted({mask.url for mask in submission.masks if mask.url})
    yield Group(
        "Data",
        (
            Fact("data version", submission.data_version),
            Fact("tasks", f"{len(submission.tasks):,} tasks, {facts:,} facts"),
            Fact("samples", f"{samples.questions:,} questions, {samples.answers:,} answers; {samples.path}"),
            Fact("their SHA-256", samples.sha256),
            Fact("masks", f"{len(submission.masks):,}, SHA-256 of each in the submission's file"),
            *(Fact("masks are at", url, web_link(url)) for url in urls[:3]),
        ),
    )
    yield _environment(submission.environment)


def _method(method: Method) -> Group:
    cost = [
        *([] if method.seconds is None else [show(method.seconds, "seconds")]),
        *([] if method.bytes is None else [show(method.bytes, "bytes")]),
    ]
    commit = method.code.get("commit")
    changed = ", with changes" if method.code.get("modified") else ""
    at = f" ({commit}{changed})" if commit else ""
    return Group(
        f"Method {method.id}",
        (
            Fact("scores", method.name),
            Fact("preset", method.preset or "none"),
            Fact("prompts read", f"{method.template}, {method.shots} shots"),
            Fact("units", ", ".join(method.kinds)),
            Fact("options", json.dumps(method.options, ensure_ascii=False, sort_keys=True)),
            Fact("tuned on", method.tuned_on),
            Fact("contrasted with", ", ".join(method.contrast_relations) or "nothing"),
            Fact("code", f"relbench {method.code.get('relbench', 'unknown')}{at}"),
            Fact("cost", ", ".join(cost) or "not measured"),
        ),
        method.id,
    )


def _environment(environment: Mapping[str, Any]) -> Group:
    hardware = environment.get("hardware", {})
    memory = hardware.get("memory_bytes")
    machine = [
        str(hardware.get("processor") or "unknown processor"),
        *([f"{hardware['cores']} cores"] if hardware.get("cores") else []),
        *([show(memory, "bytes")] if memory else []),
        *([str(hardware["accelerator"])] if hardware.get("accelerator") else []),
    ]
    packages = environment.get("packages", {})
    spent = environment.get("seconds", {})
    return Group(
        "Environment",
        (
            Fact("machine", ", ".join(machine)),
            Fact("Python", str(environment.get("python") or "unknown")),
            Fact("packages", ", ".join(f"{name} {packages[name]}" for name in sorted(packages)) or "unknown"),
            Fact(
                "time",
                ", ".join(f"{phase} {show(spent[phase], 'seconds')}" for phase in sorted(spent)) or "unknown",
            ),
        ),
    )
