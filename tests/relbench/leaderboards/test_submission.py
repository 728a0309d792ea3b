"""Submissions as files: the schema, what is read back, and where they lie."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from relbench.leaderboards.names import model_folder, revision_folder
from relbench.leaderboards.questions import data_version, questions_of, task_hash, task_names
from relbench.leaderboards.rules import load_rules
from relbench.leaderboards.submission import Submission, load_schema, read_submission, read_submissions
from relbench.sweep_config import SweepConfig
from relbench.tables import Interval
from tests.relbench.leaderboards.made import MODEL, RELATIONS, SIZES, edit, put


def _read(root: Path) -> Submission:
    (found,) = read_submissions(root)
    return found


def test_the_schema_is_one_and_a_submission_keeps_it(root: Path, submission: Path) -> None:
    Draft202012Validator.check_schema(load_schema())
    Draft202012Validator(load_schema()).validate(json.loads(submission.read_text()))


@pytest.mark.parametrize("value", [{}, [1], [1, "a"], [1, True], 1e16, "x" * 301, [1, 2, 3], 10**16])
def test_tables_are_checked_as_the_schema_says(root: Path, submission: Path, value: Any) -> None:
    edit(submission, put("results.recall.rows.0.3", value))
    assert list(Draft202012Validator(load_schema()).iter_errors(json.loads(submission.read_text())))
    (problem,) = read_submission(submission, "made.json")  # type: ignore[misc]
    assert problem.field == "results.recall.rows[0][3]"


def test_what_is_written_is_read_back(root: Path, submission: Path) -> None:
    found = _read(root)
    assert found.to_dict() == json.loads(submission.read_text())
    assert Submission.from_dict(found.to_dict()) == found
    assert found.path == submission
    assert (found.submitter.name, found.licence, found.boards) == ("Ada Lovelace", "CC-BY-4.0", ("methods",))
    (method,) = found.methods
    assert (method.name, method.template, method.shots, method.kinds) == (
        "average-precision",
        "question",
        0,
        ("act",),
    )
    assert (method.tuned_on, method.contrast_relations) == ("nothing", tuple(sorted(RELATIONS)))
    assert (method.seconds, method.bytes, method.code["commit"]) == (2.5, 4000, "a" * 40)
    assert found.method("average-precision") == method and found.method("random") is None
    assert len(found.masks) == len(found.treatments) - 1 == 42
    assert found.environment["hardware"]["processor"] == "made up"


def test_intervals_are_read_back_with_their_infinite_bounds(root: Path, submission: Path) -> None:
    edit(submission, put("results.recall.rows.0.4", [0.25, None]))
    row = _read(root).table("recall")[0]
    assert row["recall_interval"] == Interval(0.25, float("inf"))
    assert _read(root).table("nothing") == ()


@pytest.mark.parametrize(
    ("name", "revision", "folder"),
    [
        ("org/model", "abc123", "org__model/abc123"),
        ("model", "", f"model/weights-{'5' * 16}"),
        ("../../etc/passwd", "../..", f"etc__passwd/weights-{'5' * 16}"),
        ("a b<c>|d", "", f"a-b-c-d/weights-{'5' * 16}"),
        ("日本", "", f"model/weights-{'5' * 16}"),
    ],
)
def test_folders_are_named_after_the_model_and_lead_nowhere_else(
    name: str, revision: str, folder: str
) -> None:
    model = replace(MODEL, name=name, revision=revision)
    assert f"{model_folder(model)}/{revision_folder(model)}" == folder


def test_the_questions_are_those_that_lm_eval_asks() -> None:
    """Against lm-eval's own tasks: its documents, its few-shot contexts, its hashes."""
    from relbench.harness import build_tasks, samples_of

    raw = {
        "model": "none",
        "relations": ["country_capital", "thing_color"],
        "languages": ["en", "zh"],
        "limit": 3,
    }
    config = SweepConfig.from_dict(
        {**raw, "shots": [5, 0], "templates": ["question"], "shots_seed": 2}, "test"
    )
    metadata = {"template": "question", "split": "eval", "shots_seed": 2}
    for task in task_names(config):
        expected = questions_of(config, task)
        assert len(expected) == 6
        for shots in config.shots:
            (built,) = build_tasks([task], shots=shots, metadata=metadata, limit=3)
            for sample in samples_of(built, [(-1.0, True)] * len(built.instances), "baseline"):
                asked = expected[task, "question", shots, sample.doc_id]
                assert asked == {key: getattr(sample, key) for key in asked}


def test_a_data_version_is_of_a_set_of_tasks() -> None:
    one, other = task_hash("country_capital", "en"), task_hash("country_capital", "de")
    assert one != other
    assert (
        data_version({"a": one, "b": other})
        == data_version({"b": other, "a": one})
        != data_version({"a": one})
    )


def test_the_boards_rules() -> None:
    rules = load_rules()
    assert set(rules.boards) == {"methods", "models", "transfer"}
    assert rules.boards["methods"].fractions == tuple(SIZES)
    names = load_schema()["properties"]["board"]["properties"]["names"]["items"]["enum"]
    assert list(rules.boards) == names


@pytest.mark.parametrize(
    ("board", "changes", "fields"),
    [
        ("methods", {}, []),
        ("methods", {"fractions": [0.003]}, ["fractions"]),
        ("methods", {"fractions": [], "ks": [10]}, ["fractions"]),
        ("methods", {"methods": []}, ["methods"]),
        ("methods", {"modes": ["mean"], "controls": {"seeds": 10, "match": "mask"}}, ["modes"]),
        ("methods", {"positions": ["context"]}, ["positions"]),
        ("methods", {"controls": {"seeds": 9}}, ["controls.seeds"]),
        ("methods", {"relations": RELATIONS[:3]}, ["relations"]),
        ("methods", {"concepts": [f"{name}@en" for name in RELATIONS[:3]]}, ["relations"]),
        ("models", {}, ["relations"]),
        ("models", {"relations": "all"}, []),
        ("models", {"relations": "all", "concepts": ["country_capital@en"]}, []),
        ("transfer", {}, ["languages"]),
        ("transfer", {"languages": ["en", "de"]}, []),
        ("transfer", {"languages": ["en", "de"], "evaluate": "own-language"}, ["transfer_fractions"]),
        ("transfer", {"languages": ["en", "de"], "evaluate": "own-language", "transfer_fractions": [0.003]}, []),
    ],
)  # fmt: skip
def test_what_boards_ask_of_a_config(board: str, changes: dict[str, Any], fields: list[str]) -> None:
    raw = {
        "model": "m",
        "relations": RELATIONS,
        "methods": ["average-precision"],
        "fractions": list(SIZES),
        "controls": {"seeds": 10},
        "limit": 40,
    }
    config = SweepConfig.from_dict({**raw, **changes}, "test")
    assert [one.field for one in load_rules().boards[board].broken(config)] == fields


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"split": "tune"}, "split"),
        ({"limit": None}, "limit"),
        ({"shots": [0, 5]}, "shots[0]"),
        ({"templates": ["question", "completion"]}, "templates[0]"),
        ({"shots_seed": 1}, "shots_seed"),
    ],
)
def test_what_all_boards_ask_of_a_config(changes: dict[str, Any], field: str) -> None:
    config = SweepConfig.from_dict({"model": "m", "relations": RELATIONS, "limit": 40, **changes}, "test")
    assert [one.field for one in load_rules().broken(config)] == [field]
