"""Other people's relation files become tasks, and what is dropped is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from interventions.errors import UserError
from relbench.commands.tasks import tasks as command
from relbench.importing import import_relation, read_bear, read_lama, read_lre, template_before_object
from relbench.paths import tasks_dir
from relbench.relations import load_facts, load_relation
from relbench.splits import read_registry
from relbench.taskcheck import check
from relbench.taskfiles import build, languages_of


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tasks folder with country_capital in it, used by everything."""
    folder = tmp_path / "tasks"
    shutil.copytree(tasks_dir() / "country_capital", folder / "country_capital")
    shutil.copy(tasks_dir() / "subjects.csv", folder)
    for module in ("paths", "relations", "splits", "taskfiles", "importing", "new_relation"):
        monkeypatch.setattr(f"relbench.{module}.tasks_dir", lambda: folder)
    return folder


def _lre(path: Path, n: int = 40) -> Path:
    samples = [{"subject": f"Player {i}", "object": ("guitar", "piano", "drums")[i % 3]} for i in range(n)]
    samples += [samples[0], {"subject": "Player 1", "object": "organ"}, {"subject": "", "object": "harp"}]
    path.write_text(
        json.dumps(
            {
                "name": "person plays instrument",
                "prompt_templates": ["{} plays the", "The instrument played by {} is the"],
                "prompt_templates_zs": ["What instrument does {} play? It is the", "no slot"],
                "properties": {"relation_type": "factual"},
                "samples": samples,
            }
        )
    )
    return path


def test_lre(tasks: Path, tmp_path: Path) -> None:
    made = import_relation(
        read_lre(_lre(tmp_path / "lre.json")), "plays", domain="person", range_="instrument"
    )
    assert (made.facts, made.answers) == (40, 3)
    text = " ".join(made.remarks)
    for said in ("'no slot'", "1 repeated", "1 further answers", "1 triples without"):
        assert said in text
    facts = {fact.subject["en"]: fact for fact in load_facts("plays")}
    assert facts["Player 1"].accepted("en") == ("piano", "organ")
    assert load_relation("plays").templates["en"] == {
        "completion": "{subject} plays the",
        "paraphrase": "The instrument played by {subject} is the",
        "question": "What instrument does {subject} play? It is the",
    }
    assert [finding for finding in check(["plays"]) if finding.level == "error"] == []
    assert languages_of(load_relation("plays")) == ("en",)
    build()
    assert (tasks / "plays" / "relbench_plays_en.yaml").is_file()


def test_bear_keeps_its_identities(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "metadata_relations.json").write_text(
        json.dumps({"P36": {"templates": ["The capital of [X] is [Y].", "[Y] is the capital of [X]."]}})
    )
    rows = [
        {
            "sub_id": f"Q{i}",
            "sub_label": f"Land {i}",
            "sub_aliases": [],
            "obj_id": f"Q9{i}",
            "obj_label": f"Town {i}",
        }
        for i in range(40)
    ]
    (tmp_path / "P36.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    made = import_relation(read_bear(tmp_path / "P36.jsonl"), "capitals")
    assert any("does not end on the object" in remark for remark in made.remarks)
    assert {fact.subject_id for fact in load_facts("capitals")} == {f"wikidata:Q{i}" for i in range(40)}
    assert load_relation("capitals").templates["en"] == {"completion": "The capital of {subject} is"}


def test_lama_takes_a_template_and_known_subjects_keep_their_split(tasks: Path, tmp_path: Path) -> None:
    before = read_registry()
    known = load_facts("country_capital")[:30]
    rows = [{"sub_label": fact.subject["en"], "obj_label": f"Sea {i}"} for i, fact in enumerate(known)]
    (tmp_path / "P1.jsonl").write_text("\n".join(map(json.dumps, rows)))
    import_relation(read_lama(tmp_path / "P1.jsonl", ["[X] borders on [Y] ."]), "borders", domain="country")
    facts = load_facts("borders")
    assert {fact.subject_id for fact in facts} == {fact.subject_id for fact in known}
    assert all(fact.split == before[fact.subject_id] for fact in facts)
    assert before.items() <= read_registry().items()


def test_pararel_patterns_beside_the_triples(tmp_path: Path) -> None:
    (tmp_path / "trex").mkdir()
    (tmp_path / "patterns").mkdir()
    (tmp_path / "trex" / "P1.jsonl").write_text('{"sub_label": "a", "obj_label": "b"}\n')
    (tmp_path / "patterns" / "P1.jsonl").write_text(
        '{"pattern": "[X] is in [Y] ."}\n{"pattern": "[Y] has [X] ."}\n'
    )
    assert read_lama(tmp_path / "trex" / "P1.jsonl").templates == ("{subject} is in",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[X] is located in [Y] .", "{subject} is located in"),
        ("[X] spielt [Y].", "{subject} spielt"),
        ("[Y] is where [X] is.", None),
        ("[X] plays [Y] music.", None),
        ("[X] plays.", None),
    ],
)
def test_templates_end_on_the_object(text: str, expected: str | None) -> None:
    assert template_before_object(text) == expected


@pytest.mark.parametrize("content", ["", "[]", "{", '{"samples": [{"subject": "a"}]}', '{"name": "x"}'])
def test_what_is_not_lre_is_one_line_and_makes_nothing(tasks: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    result = _run("import", "lre", str(tmp_path / "bad.json"), "--relation", "bad")
    assert isinstance(result.exception, UserError)
    assert "bad.json" in str(result.exception)
    assert not (tasks / "bad").exists()


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_taken_and_impossible_names_are_refused(tasks: Path, tmp_path: Path) -> None:
    lre = str(_lre(tmp_path / "lre.json"))
    for name, message in (("country_capital", "exists"), ("Bad Name", "no relation name")):
        result = _run("import", "lre", lre, "--relation", name)
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)


def test_a_new_relation_starts_with_files_that_load(tasks: Path) -> None:
    assert _run("new", "sea_depth").exit_code == 0
    assert load_relation("sea_depth").name == "sea_depth"
    assert len(load_facts("sea_depth")) == 1
    assert isinstance(_run("new", "sea_depth").exception, UserError)
