"""A submission: what one run found, and everything that is needed to find it again from its samples."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from interventions.model_id import ModelId
from relbench.leaderboards.limits import CELL, CELL_TEXT
from relbench.leaderboards.problems import Problem, Refused, quoted
from relbench.leaderboards.reading import read_json
from relbench.leaderboards.schema import schema_problems
from relbench.leaderboards.tree import submission_files
from relbench.tables import Interval
from relbench.treatments import Treatment

SCHEMA_VERSION = 1

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Submitter:
    """Who made a submission: a name, and an http(s) link or ""."""

    name: str
    link: str


@dataclass(frozen=True)
class Model:
    """What was evaluated.

    Attributes:
        id: Name, revision, layout and fingerprint of the weights.
        source: What `--model` takes: an embedded model's name or a hub id; a folder's bare name for others.
        dtype, device: As it ran.
    """

    id: ModelId
    source: str
    dtype: str
    device: str


@dataclass(frozen=True)
class TaskData:
    """One task as it was asked: hash of its templates and facts, and the number of facts asked."""

    hash: str
    n: int


@dataclass(frozen=True)
class Method:
    """A scoring method with everything that its masks depend on.

    Attributes:
        id: Name in treatments and results.
        name: The method; "scores" for a scores file that was made elsewhere.
        preset: The preset that its settings began with, or None.
        template, shots, kinds, options: What it read and how.
        code: Version of relbench and, where known, commit.
        tuned_on: "tune", when settings were chosen by looking at the facts of that split; "nothing" else.
        contrast_relations: Relations that were its negatives or that it was contrasted with.
        seconds, bytes: What its scores cost; None where that was not measured.
    """

    id: str
    name: str
    preset: str | None
    template: str
    shots: int
    kinds: tuple[str, ...]
    options: Mapping[str, Any]
    code: Mapping[str, Any]
    tuned_on: str
    contrast_relations: tuple[str, ...]
    seconds: float | None
    bytes: int | None


@dataclass(frozen=True)
class MaskFile:
    """A mask file: its path as treatments name it, its hash, and where it can be had, if anywhere."""

    path: str
    sha256: str
    url: str | None


@dataclass(frozen=True)
class SamplesFile:
    """The samples: path beside the submission, hash, number of questions and of answers."""

    path: str
    sha256: str
    questions: int
    answers: int


@dataclass(frozen=True)
class Submission:
    """A submission as its file holds it.

    Attributes:
        id: Its name, a slug.
        submitter, licence, created: Who, under which licence (SPDX), when (YYYY-MM-DD).
        protocol: Version of the rules of the boards.
        boards: The boards that it is for.
        model: What was evaluated.
        data_version: Hash of `tasks`; submissions of equal data versions can be compared.
        tasks: Task → what was asked.
        config: The sweep's config, whole.
        treatments: What was done, the baseline first.
        methods: Scoring methods, in the config's order.
        masks: Mask files.
        samples: The samples.
        results: Table → rows; see `relbench.leaderboards.aggregates.TABLES`. Intervals are `Interval`, a bound
            that was not reached infinite.
        environment: Packages, python, hardware and seconds of the run.
        command: The command that makes the sweep again from `config`.
        path: Of its file, when it was read from one.
    """

    id: str
    submitter: Submitter
    licence: str
    created: str
    protocol: int
    boards: tuple[str, ...]
    model: Model
    data_version: str
    tasks: Mapping[str, TaskData]
    config: Mapping[str, Any]
    treatments: tuple[Treatment, ...]
    methods: tuple[Method, ...]
    masks: tuple[MaskFile, ...]
    samples: SamplesFile
    results: Mapping[str, Sequence[Row]]
    environment: Mapping[str, Any]
    command: str
    path: Path | None = field(default=None, compare=False)

    def table(self, name: str) -> Sequence[Row]:
        """Rows of a table of the results; none for a table that is not there."""
        return self.results.get(name, ())

    def method(self, name: str) -> Method | None:
        """The method called `name`; None for the random controls and the baseline."""
        return next((method for method in self.methods if method.id == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "id": self.id,
            "submitter": dict(vars(self.submitter)),
            "licence": self.licence,
            "created": self.created,
            "board": {"protocol": self.protocol, "names": list(self.boards)},
            "model": {**vars(self.model), "id": self.model.id.to_dict()},
            "data": {
                "version": self.data_version,
                "tasks": {name: dict(vars(task)) for name, task in sorted(self.tasks.items())},
            },
            "config": dict(self.config),
            "treatments": [_plain(vars(treatment)) for treatment in self.treatments],
            "methods": [_method_dict(method) for method in self.methods],
            "masks": [dict(vars(mask)) for mask in self.masks],
            "samples": dict(vars(self.samples)),
            "results": {name: _table_dict(rows) for name, rows in self.results.items() if rows},
            "environment": dict(self.environment),
            "reproduce": {"command": self.command},
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], path: Path | None = None) -> Submission:
        """The submission that `to_dict` gave; `raw` is valid under the schema.

        Raises:
            UserError: The model's layout does not match its hash.
        """
        return cls(
            id=raw["id"],
            submitter=Submitter(**raw["submitter"]),
            licence=raw["licence"],
            created=raw["created"],
            protocol=raw["board"]["protocol"],
            boards=tuple(raw["board"]["names"]),
            model=Model(**{**raw["model"], "id": ModelId.from_dict(raw["model"]["id"])}),
            data_version=raw["data"]["version"],
            tasks={name: TaskData(**task) for name, task in raw["data"]["tasks"].items()},
            config=raw["config"],
            treatments=tuple(Treatment.from_dict(one) for one in raw["treatments"]),
            methods=tuple(_method(one) for one in raw["methods"]),
            masks=tuple(MaskFile(**one) for one in raw["masks"]),
            samples=SamplesFile(**raw["samples"]),
            results={name: _rows(table) for name, table in raw["results"].items()},
            environment=raw["environment"],
            command=raw["reproduce"]["command"],
            path=path,
        )


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in raw.items()}


def _method_dict(method: Method) -> dict[str, Any]:
    raw = _plain(vars(method))
    cost = {"seconds": raw.pop("seconds"), "bytes": raw.pop("bytes")}
    return {**raw, "options": dict(method.options), "code": dict(method.code), "cost": cost}


def _method(raw: Mapping[str, Any]) -> Method:
    values = dict(raw)
    cost = values.pop("cost")
    for name in ("kinds", "contrast_relations"):
        values[name] = tuple(values[name])
    return Method(**values, seconds=cost["seconds"], bytes=cost["bytes"])


def _table_dict(rows: Sequence[Row]) -> dict[str, Any]:
    """A table as lists: half the bytes of a mapping for each row."""
    return {
        "columns": list(rows[0]),
        "rows": [[cell_to_json(value) for value in row.values()] for row in rows],
    }


def cell_to_json(value: Any) -> Any:
    """A table's value in JSON; an interval becomes a list, a bound that was not reached null."""
    if isinstance(value, Interval):
        return [None if bound == float("inf") else bound for bound in value]
    return value


def _rows(table: Mapping[str, Any]) -> tuple[Row, ...]:
    columns = table["columns"]
    return tuple(
        {column: _cell(value) for column, value in zip(columns, row, strict=True)} for row in table["rows"]
    )


def _cell(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    low, high = value
    return Interval(float("inf") if low is None else low, float("inf") if high is None else high)


@cache
def load_schema() -> Mapping[str, Any]:
    """The JSON Schema of submissions, Draft 2020-12."""
    text = (files("relbench.leaderboards") / "submission.schema.json").read_text(encoding="utf-8")
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def read_submission(path: Path, file: str) -> Submission | list[Problem]:
    """Read one submission, or say what is wrong with its form.

    Its samples are not looked at: what they say is for `verify`.

    Args:
        path: Its file.
        file: What the file is called in problems.
    """
    from interventions.errors import UserError

    try:
        raw = read_json(path)
    except Refused as refusal:
        return [Problem(file, refusal.field, refusal.what)]
    problems = schema_problems(file, raw, _schema_but_cells()) or list(_table_problems(file, raw["results"]))
    if problems:
        return problems
    try:
        return Submission.from_dict(raw, path)
    except UserError as error:
        return [Problem(file, "model.id", f"expected the identity of a model, found that {error}")]


@cache
def _schema_but_cells() -> Mapping[str, Any]:
    """The schema without what it says of the values in tables, of which there may be a million."""
    schema = copy.deepcopy(load_schema())
    del schema["$defs"]["table"]["properties"]["rows"]["items"]["items"]
    return schema


def _table_problems(file: str, results: Mapping[str, Any]) -> Iterator[Problem]:
    """What the schema says of the values in tables, and that rows are as long as their columns."""
    for name, table in results.items():
        for number, row in enumerate(table["rows"]):
            field = f"results.{name}.rows[{number}]"
            if len(row) != len(table["columns"]):
                yield Problem(file, field, f"expected {len(table['columns'])} values, found {len(row)}")
            for place, value in enumerate(row):
                if not _is_cell(value):
                    expected = "expected a number, text, true, false, null or an interval"
                    yield Problem(file, f"{field}[{place}]", f"{expected}, found {quoted(value)}")


def _is_cell(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(
            one is None or (isinstance(one, (int, float)) and not isinstance(one, bool) and abs(one) <= CELL)
            for one in value
        )
    if isinstance(value, str):
        return len(value) <= CELL_TEXT
    return not isinstance(value, dict) and (value is None or abs(value) <= CELL)


def read_submissions(root: Path) -> Iterator[Submission]:
    """Every submission under a leaderboards folder that has the right form, sorted by path.

    Those that have not are left to `verify`, which names them; a folder that passes it has none.
    """
    for path in submission_files(root):
        found = read_submission(path, path.relative_to(root).as_posix())
        if isinstance(found, Submission):
            yield found
