"""`relbench tasks check`: each kind of mistake is found, and the shipped data has none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relbench.paths import tasks_dir
from relbench.relations import relation_names
from relbench.taskcheck import check, check_tokens, summaries


def test_the_shipped_data_has_no_errors() -> None:
    assert [str(finding) for finding in check(relation_names()) if finding.level == "error"] == []


def test_summaries_add_up() -> None:
    for row in summaries(["country_capital"]):
        assert row.per_split["shots"] >= 8
        assert 0 < row.majority < 0.25
        assert 0 <= row.unseen <= 1


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Edit the rows or the text of relation.yaml of a copy of star_constellation."""
    folder = tmp_path / "tasks"
    shutil.copytree(tasks_dir() / "star_constellation", folder / "star_constellation")
    shutil.copy(tasks_dir() / "subjects.csv", folder)
    for module in ("relations", "splits", "taskfiles"):
        monkeypatch.setattr(f"relbench.{module}.tasks_dir", lambda: folder)

    def apply(
        facts: Callable[[list[dict[str, Any]]], None] | None = None, text: Callable[[str], str] | None = None
    ) -> None:
        path = folder / "star_constellation" / "facts.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if facts:
            facts(rows)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        described = folder / "star_constellation" / "relation.yaml"
        if text:
            described.write_text(text(described.read_text(encoding="utf-8")), encoding="utf-8")

    return apply


def _double(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[0])


def _same_subject(rows: list[dict[str, Any]]) -> None:
    rows[1]["subject_id"] = rows[0]["subject_id"]


def _same_label(rows: list[dict[str, Any]]) -> None:
    rows[1]["subject"]["de"] = rows[0]["subject"]["de"]


def _stray_space(rows: list[dict[str, Any]]) -> None:
    rows[0]["subject"]["fr"] += " "


def _decomposed(rows: list[dict[str, Any]]) -> None:
    rows[0]["subject"]["fr"] = "e\u0301toile"


def _wrong_split(rows: list[dict[str, Any]]) -> None:
    rows[0]["split"] = "tune" if rows[0]["split"] != "tune" else "eval"


def _no_split(rows: list[dict[str, Any]]) -> None:
    del rows[0]["split"]


def _alias_collision(rows: list[dict[str, Any]]) -> None:
    other = next(row for row in rows if row["objects"][0]["id"] != rows[0]["objects"][0]["id"])
    rows[0]["objects"][0]["labels"]["en"].append(other["objects"][0]["labels"]["en"][0])


def _foreign_id(rows: list[dict[str, Any]]) -> None:
    rows[0]["id"] = "elsewhere.x"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_double, "have the id"),
        (_same_subject, "are about"),
        (_same_label, "names several subjects"),
        (_stray_space, "stray white space"),
        (_decomposed, "NFC"),
        (_wrong_split, "the registry has"),
        (_no_split, "have no split"),
        (_alias_collision, "names several objects"),
        (_foreign_id, "does not start with"),
    ],
)
def test_each_mistake_in_the_facts_is_an_error(
    change: Callable[..., None], edit: Callable[[list[dict[str, Any]]], None], message: str
) -> None:
    change(facts=edit)
    errors = [str(finding) for finding in check(["star_constellation"]) if finding.level == "error"]
    assert any(message in error for error in errors), errors


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{subject}", "the star", "exactly one"),
        ("relation: star_constellation", "relation: ''", "non-empty"),
        ("version: 1", "version: one", "not a relation file"),
    ],
)
def test_each_mistake_in_the_description_is_an_error(
    change: Callable[..., None], old: str, new: str, message: str
) -> None:
    change(text=lambda text: text.replace(old, new))
    errors = [str(finding) for finding in check(["star_constellation"]) if finding.level == "error"]
    assert any(message in error for error in errors), errors


def _words(text: str) -> list[int]:
    """A tokenizer of words: two prompts with a common beginning share their first tokens."""
    return [hash(word) for word in text.split(" ")]


def test_words_as_tokens_have_no_boundary_problems() -> None:
    findings = check_tokens(["country_capital"], ["en"], _words)
    assert all("begin those of" in finding.message for finding in findings)


def test_answers_that_begin_others_are_named() -> None:
    findings = check_tokens(["thing_count"], ["en"], lambda text: [ord(letter) for letter in text])
    assert any("'six' begin those of 'sixteen'" in finding.message for finding in findings)


def test_answers_without_a_token_are_errors() -> None:
    findings = check_tokens(["star_constellation"], ["ja"], lambda text: [len(text)])
    assert findings
    assert all(finding.level == "error" and "no token of its own" in finding.message for finding in findings)


def test_moving_boundaries_are_warnings() -> None:
    findings = check_tokens(["star_constellation"], ["ja"], lambda text: [len(text), *map(ord, text)])
    assert {finding.level for finding in findings if "boundary moves" in finding.message} == {"warning"}
    assert sum("boundary moves" in finding.message for finding in findings) == 3


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_every_answer_has_a_token_of_its_own(name: str) -> None:
    from transformers import AutoTokenizer

    from relbench.languages import LANGUAGES
    from relbench.models import checkpoint_path, get_model, is_cached

    if not is_cached(get_model(name)):
        pytest.skip(f"{name} is not in the cache: run `relbench models pull {name}`")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(get_model(name)))
    findings = check_tokens(relation_names(), tuple(LANGUAGES), tokenizer.encode)
    assert [str(finding) for finding in findings if finding.level == "error"] == []
