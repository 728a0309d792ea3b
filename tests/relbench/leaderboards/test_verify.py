"""Verification: a right submission passes, and each thing that is wrong with one is named in one line."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from interventions.files import sha256_json
from relbench.cli import relbench
from relbench.leaderboards.rules import load_rules
from relbench.leaderboards.verify import verify
from tests.relbench.leaderboards.made import (
    MODEL,
    RELATIONS,
    drop,
    edit,
    edit_lines,
    make_directory,
    masks_of,
    problems,
    put,
    samples_path,
    submit,
)

FOLDER = f"results/made-up/weights-{'5' * 16}"
FILE = f"{FOLDER}/made.json"
SAMPLES = f"{FOLDER}/samples/made.jsonl.gz"
META = f"{FOLDER}/model_meta.json"

Change = Callable[[dict[str, Any]], None]
Lines = list[Any]


def test_a_submission_that_was_added_passes(verified: Path) -> None:
    assert problems(verified) == []


@pytest.mark.parametrize(
    ("change", "field", "expected", "found"),
    [
        # Form.
        (put("schema_version", 2), "schema_version", "expected 1", "2"),
        (put("note", "hello"), "", "expected no key 'note'", "it"),
        (drop("licence"), "", "expected the key 'licence'", "none"),
        (put("licence", "do what you like"), "licence", "expected an SPDX licence identifier", "'do what"),
        (put("submitter.link", "javascript:alert(1)"), "submitter.link", "expected an http or https address", "'java"),
        (put("submitter.name", ""), "submitter.name", "expected at least 1 characters", "0"),
        (put("created", "yesterday"), "created", "expected a date YYYY-MM-DD", "'yesterday'"),
        (put("created", "2026-02-30"), "created", "expected a day of the calendar", "'2026-02-30'"),
        (put("board.names", []), "board.names", "expected at least 1 entries", "0"),
        (put("board.names", ["fastest"]), "board.names[0]", "expected one of methods, models, transfer", "'fastest'"),
        (put("board.protocol", 2), "board.protocol", "expected at most 1", "2"),
        (put("model.dtype", "int4"), "model.dtype", "expected one of float32, bfloat16, float16", "'int4'"),
        (put("treatments.3.k", -1), "treatments[3].k", "expected at least 1", "-1"),
        (put("treatments.3.fraction", 1.5), "treatments[3].fraction", "expected at most 1", "1.5"),
        (put("methods.0.tuned_on", "eval"), "methods[0].tuned_on", "expected one of tune, nothing", "'eval'"),
        (put("methods.0.cost.seconds", -3), "methods[0].cost.seconds", "expected at least 0", "-3"),
        (put("methods.0.shots", "five"), "methods[0].shots", "expected integer", "'five'"),
        (put("samples.path", "../../other.jsonl.gz"), "samples.path", "expected samples/<submission>.jsonl.gz", "'../"),
        (put("masks.0.url", "../secret"), "masks[0].url", "expected an http or https address, or", "'../secret'"),
        (put("results.recall.rows.0", [1]), "results.recall.rows[0]", "expected 13 values", "1"),
        # Names.
        (put("reproduce.command", "rm -rf ."), "reproduce.command", "expected 'relbench leaderboard config", "'rm -rf"),
        (put("model.id.layout.d_ff", 101), "model.id", "expected the identity of a model", "that the model layout"),
        # Against the config.
        (put("config.colour", "red"), "config", "expected a sweep's config", "that colour: is unknown"),
        (put("config.shots", 5), "config.shots", "expected the value as a sweep resolves it", "it otherwise"),
        (put("config.modes.0.mode", "mean"), "config", "expected a sweep's config", "that modes: pooled random masks"),
        (put("config.relations.0", "../../etc"), "config.relations", "expected installed relations", "'../../etc'"),
        (put("config.templates", ["riddle"]), "config.templates", "expected completion, paraphrase, ", "'riddle'"),
        (put("config.model", "another"), "config.model", "expected 'made-up'", "'another'"),
        (put("config.dtype", "bfloat16"), "config.dtype", "expected 'float32'", "'bfloat16'"),
        (put("config.controls.seeds", 9), "config.controls.seeds", "expected at least 10 random masks", "9"),
        (put("methods.0.template", "completion"), "methods[0].template", "expected 'question', as the config", "'comp"),
        (put("methods.0.shots", 4), "methods[0].shots", "expected 0, as the config has it", "4"),
        (put("methods.0.kinds", ["gate"]), "methods[0].kinds", "expected ('act',), as the config has it", "('gate',)"),
        (put("methods.0.options", {"pooling": "max"}), "methods[0].options", "expected {}", "{'pooling': 'max'}"),
        (put("methods.0.contrast_relations", []), "methods[0].contrast_relations", "expected company_hq, ", "none"),
        (put("treatments.0.id", "start"), "treatments[0]", "expected the baseline", "'start'"),
        (put("treatments.3.k", 4), "treatments[3].k", "expected 3 units", "4"),
        (put("treatments.13.seed", None), "treatments[13].seed", "expected a seed of random masks alone", "None"),
        (put("treatments.3.seed", 1), "treatments[3].seed", "expected a seed of random masks alone", "1"),
        (put("treatments.3.digest", None), "treatments[3].digest", "expected the digest of the mask's content", "None"),
        (put("treatments.3.matched_to", "x"), "treatments[3].matched_to", "expected a treatment of the subm", "'x'"),
        (put("data.version", "0" * 16), "data.version", "expected '", f"'{'0' * 16}'"),
        # Against the samples.
        (put("samples.sha256", "0" * 64), None, f"expected the hash {'0' * 64}", ""),
        (put("samples.questions", 161), None, "expected 161 questions, as the submission states", "160"),
        (put("samples.answers", 1), None, "expected 1 answers, as the submission states", "6880"),
        # Results.
        (put("results.recall.rows.1.3", 0.5), "results.recall.rows[1].recall", "expected 0.9, as recomputed", "0.5"),
        (put("results.recall.rows.1.3", 0.900001), "results.recall.rows[1].recall", "expected 0.9", "0.900001"),
        (put("results.recall.rows.1.4.0", 0.9), "results.recall.rows[1].recall_interval", "expected [0.7", "[0.9, "),
        (put("results.counts.rows.0.5", 99), "results.counts.rows[0].lost", "expected 2, as recomputed", "99"),
        (put("results.counts.rows.0.5", True), "results.counts.rows[0].lost", "expected 2, as recomputed", "True"),
        (put("results.recall.columns.3", "memory"), "results.recall.columns", "expected the columns relation, ", "rel"),
        (drop("results.masks"), "results.masks.rows", "expected 12 rows, as recomputed from the samples", "0"),
        (drop("results.curves.rows.0"), "results.curves.rows", "expected ", ""),
    ],
)  # fmt: skip
def test_a_change_of_the_submission(
    root: Path, submission: Path, change: Change, field: str | None, expected: str, found: str
) -> None:
    edit(submission, change)
    (line,) = problems(root)
    start = FILE if field is not None else SAMPLES
    assert line.startswith(f"{start}: {field}: {expected}" if field else f"{start}: {expected}"), line
    assert f", found {found}" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (put("id", "another"), ["id", "reproduce.command", "samples.path"]),
        (put("treatments.3.mask", "masks/none.safetensors"), ["masks[2].path", "treatments[3].mask"]),
        (put("treatments.3.concept", "river_country@en"), ["treatments", "treatments[3].concept"]),
        (put("treatments.3.mode", "mean"), ["treatments", "treatments[3].mode"]),
        (drop("data.tasks.relbench_company_hq_en"), ["data.tasks", "data.version"]),
        (
            put("data.tasks.relbench_company_hq_en.n", 39),
            ["data.tasks.relbench_company_hq_en.n", "expected 39 q"],
        ),
        (drop("treatments.42"), ["masks[41].path", "treatments", "line 1"]),
        (
            put("config.limit", 39),
            ["config.limit", *(f"data.tasks.relbench_{one}_en.n" for one in sorted(RELATIONS))],
        ),
        (put("config.relations", RELATIONS[:3]), ["config.relations", "data.tasks"]),
        (put("config.fractions", [0.003]), ["config.fractions", "treatments[1].fraction"]),
    ],
)
def test_all_that_a_change_makes_wrong_is_named(
    root: Path, submission: Path, change: Change, fields: list[str]
) -> None:
    edit(submission, change)
    said = [line.split(": ")[1] for line in problems(root) if ": expected " in line]
    assert [one[: len(field)] for one, field in zip(said, fields, strict=False)] == fields


def test_several_mistakes_are_all_named(root: Path, submission: Path) -> None:
    edit(submission, put("licence", ""))
    edit(submission, put("treatments.1.k", 0))
    edit(submission, put("methods.0.tuned_on", "eval"))
    fields = {line.split(": ")[1] for line in problems(root)}
    assert fields == {"licence", "methods[0].tuned_on", "treatments[1].k"}


def test_a_config_without_keys_that_came_later_passes(root: Path, submission: Path) -> None:
    edit(submission, drop("config.log_samples"))
    assert problems(root) == []


def test_an_older_protocol_is_not_held_to_todays_rules(root: Path) -> None:
    newer = replace(load_rules(), protocol=2, limit=50)
    assert verify(root, rules=newer).problems == ()


def _answer(place: int, value: Any) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[7]["answers"][2][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: lines.pop(), "expected 40 questions of relbench_landmark_on_continent_en (completion, 5 shots)"),
        (lambda lines: lines.append(lines[0]), "line 161: doc_id: expected each question once, found 0 of relbench_co"),
        (lambda lines: lines[7]["answers"].pop(), "line 8: answers: expected an answer under treatment 42, found none"),
        (
            lambda lines: lines[7]["answers"].append(lines[7]["answers"][5]),
            "line 8: answers: expected one answer under each treatment, found two of 5",
        ),
        (lambda lines: lines[7].update(doc_hash="0" * 64), "line 8: doc_hash: expected '"),
        (lambda lines: lines[7].update(prompt_hash="0" * 64), "line 8: prompt_hash: expected '"),
        (lambda lines: lines[7].update(target_hash="0" * 64), "line 8: target_hash: expected '"),
        (lambda lines: lines[7].update(fact_id="company_hq.x"), "line 8: fact_id: expected 'company_hq."),
        (lambda lines: lines[7].update(copyable=not lines[7]["copyable"]), "line 8: copyable: expected "),
        (lambda lines: lines[7].update(doc_id=40), "line 8: doc_id: expected a document of relbench_company_hq_en, 0 "),
        (lambda lines: lines[7].update(shots=0), "line 8: task: expected a task, template and shots of the config"),
        (lambda lines: lines[7].update(filter="strict"), "line 8: filter: expected 'none', found 'strict'"),
        (lambda lines: lines[7].update(doc_id=-1), "line 8: doc_id: expected 0 or more, below 1000000, found -1"),
        (lambda lines: lines[7].update(copyable=1), "line 8: copyable: expected true or false, found 1"),
        (lambda lines: lines[7].update(note=""), "line 8: note: expected the keys of a question, found a key that is"),
        (lambda lines: lines[7].pop("relation"), "line 8: relation: expected the keys of a question, found none"),
        (lambda lines: lines[7].update(fact_id="a\nb"), "line 8: fact_id: expected printable characters, found 'a"),
        (_answer(0, 43), "line 8: answers[2][0]: expected a treatment's number, 0 to 42, found 43"),
        (_answer(1, 2), "line 8: answers[2][1]: expected a recall of 0 or 1, found 2"),
        (_answer(1, True), "line 8: answers[2][1]: expected a recall of 0 or 1, found True"),
        (_answer(2, 0.5), "line 8: answers[2][2]: expected a log probability, -1000000 to 0, found 0.5"),
        (_answer(3, 0), "line 8: answers[2][3]: expected a rank, 1 or more, or null, found 0"),
        (lambda lines: lines[7]["answers"][2].append("x"), "line 8: answers: expected no continuations, as the config"),
        (lambda lines: lines[7]["answers"][2].append(1), "line 8: answers[2][4]: expected a continuation of at most"),
        (lambda lines: lines[7]["answers"][2].pop(), "line 8: answers[2]: expected a list of four or five values"),
    ],
)  # fmt: skip
def test_a_change_of_the_samples(
    root: Path, submission: Path, change: Callable[[Lines], Any], expected: str
) -> None:
    edit_lines(submission, change)
    said = problems(root)
    assert all(line.startswith(f"{SAMPLES}: ") for line in said)
    assert any(line.startswith(f"{SAMPLES}: {expected}") for line in said), said


def test_samples_that_were_changed_without_a_word(root: Path, submission: Path) -> None:
    edit_lines(submission, lambda lines: lines[7]["answers"][2].__setitem__(2, -3.0), honest=False)
    (line,) = problems(root)
    assert re.fullmatch(f"{SAMPLES}: expected the hash [0-9a-f]{{64}}, found [0-9a-f]{{64}}", line)


def test_one_flipped_answer_changes_the_numbers_that_rest_on_it(root: Path, submission: Path) -> None:
    def flip(lines: Lines) -> None:
        # Treatment 2 is the mask of three units for company_hq; it loses facts 0, 1 and 2.
        answer = lines[0]["answers"][2]
        assert (lines[0]["task"], lines[0]["copyable"], answer[:2]) == (
            "relbench_company_hq_en",
            False,
            [2, 0],
        )
        answer[1] = 1

    edit_lines(submission, flip)
    said = problems(root)
    fields = {line.split(": ")[1] for line in said}
    assert all(line.startswith(f"{FILE}: results.") for line in said)
    assert all("as recomputed from the samples, found " in line for line in said)
    counted = json.loads(submission.read_text())["results"]["counts"]["rows"]
    (row,) = [
        number
        for number, (name, relation, *_) in enumerate(counted)
        if (name, relation) == ("average-precision.company_hq@en.k3", "company_hq")
    ]
    assert {f"results.counts.rows[{row}].lost", "results.masks.rows[1].target_loss"} <= fields
    assert not any(field.startswith("results.recall") for field in fields)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (put("fingerprint", "6" * 64), f"{META}: fingerprint: expected '5555"),
        (put("name", "other"), f"{META}: name: expected 'made-up', as made has it, found 'other'"),
        (put("parameters", 0), f"{META}: parameters: expected at least 1, found 0"),
        (drop("licence"), f"{META}: expected the key 'licence', found none"),
    ],
)
def test_a_change_of_the_models_file(root: Path, submission: Path, change: Change, expected: str) -> None:
    edit(submission.parent / "model_meta.json", change)
    (line,) = problems(root)
    assert line.startswith(expected)


def test_files_that_are_missing_or_in_the_wrong_place(root: Path, submission: Path) -> None:
    (submission.parent / "model_meta.json").unlink()
    other = SAMPLES.replace("made.jsonl", "other.jsonl")
    (root / SAMPLES).rename(root / other)
    (root / "results" / "notes.txt").write_text("hello")
    assert problems(root) == [
        f"{META}: cannot be read: No such file or directory",
        f"{SAMPLES}: cannot be read: No such file or directory",
        f"{other}: expected other.json of these samples, found none",
        "results/notes.txt: expected results/<org__model>/<revision>/ with <submission>.json, model_meta.json and "
        "samples/<submission>.jsonl.gz, found this beside them",
    ]


def test_a_submission_in_another_models_folder(root: Path, submission: Path) -> None:
    moved = root / "results" / "other" / "main"
    moved.parent.mkdir()
    shutil.move(submission.parent, moved)
    (line,) = problems(root)
    assert "model.id: expected a model of the folder other/main, found one of made-up/weights-5" in line


def test_the_same_run_under_another_name_is_a_duplicate(root: Path, submission: Path) -> None:
    shutil.copy(samples_path(submission), samples_path(submission.with_name("copy.json")))
    text = submission.read_text().replace('"made"', '"copy"').replace("made.", "copy.")
    text = text.replace("-o made", "-o copy")
    submission.with_name("copy.json").write_text(text)
    said = problems(root)
    # The first by name counts; what they share is named.
    assert [line.split(": ")[:2] for line in said] == [
        [FILE, "config"],
        [FILE, "results"],
        [FILE, "samples.sha256"],
    ]
    assert all(line.endswith(f"expected no duplicate, found the same in {FOLDER}/copy.json") for line in said)


def test_the_same_outcomes_under_another_version_are_a_duplicate(root: Path, submission: Path) -> None:
    with gzip.open(samples_path(submission)) as file:
        answers = file.read()
    # Packed otherwise, so that the files differ.
    packed = gzip.compress(answers, compresslevel=1, mtime=0)
    samples_path(submission.with_name("copy.json")).write_bytes(packed)
    text = submission.read_text().replace('"made"', '"copy"').replace("made.", "copy.")
    raw = json.loads(text.replace("-o made", "-o copy"))
    raw["samples"]["sha256"] = hashlib.sha256(packed).hexdigest()
    raw["methods"][0]["code"]["relbench"] = "9.9.9"
    submission.with_name("copy.json").write_text(json.dumps(raw))
    assert [line.split(": ")[:2] for line in problems(root)] == [[FILE, "results"]]


def test_a_submission_that_cannot_be_judged_does_not_keep_others_from_it(
    root: Path, submission: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("unexpected")

    monkeypatch.setattr("relbench.leaderboards.verify.results_of", fails)
    (line,) = problems(root)
    assert line.startswith(f"{FILE}: ")
    assert "found one that raises KeyError" in line


def test_random_masks_must_differ_and_masks_meet_their_tasks(root: Path, submission: Path) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["treatments"][34]["digest"] = raw["treatments"][33]["digest"]
        raw["treatments"][15]["tasks"] = ["relbench_company_hq_en", "relbench_food_from_country_en"]

    edit(submission, change)
    said = [line.split(": ", 1)[1] for line in problems(root)]
    assert any(
        line.startswith("treatments[34].digest: expected random masks that differ, found that of")
        for line in said
    )
    assert any(line.startswith("treatments[15].tasks: expected the tasks that the config") for line in said)


def test_an_id_is_taken_by_one_model_only(root: Path, tmp_path: Path) -> None:
    other = replace(MODEL, name="org/other", fingerprint="7" * 64)
    folder = make_directory(tmp_path / "run", model=other)
    elsewhere = tmp_path / "elsewhere"
    path = submit(folder, elsewhere)
    shutil.copytree(path.parent, root / path.parent.relative_to(elsewhere))
    assert [line.split(": ")[:2] for line in problems(root)] == [
        [f"results/org__other/weights-{'7' * 16}/made.json", "id"],
        [f"results/org__other/weights-{'7' * 16}/made.json", "samples.sha256"],
    ]


def test_data_that_changed_since_is_known_by_its_hash(root: Path, submission: Path) -> None:
    task, old = "relbench_company_hq_en", "e" * 64

    def older(raw: dict[str, Any]) -> None:
        raw["data"]["tasks"][task]["hash"] = old
        hashes = {name: one["hash"] for name, one in raw["data"]["tasks"].items()}
        raw["data"]["version"] = sha256_json(hashes)[:16]

    edit(submission, older)
    (line,) = problems(root)
    assert re.search(rf"data\.tasks\.{task}\.hash: expected [0-9a-f]{{64}}, the hash of the installed", line)
    (root / "past_tasks.json").write_text(json.dumps({task: [old]}))
    assert problems(root) == []
    (root / "past_tasks.json").write_text(json.dumps({task: old}))
    assert problems(root)[0].startswith(f"past_tasks.json: {task}: expected array, found '")


def test_a_mask_that_meets_too_few_tasks(tmp_path: Path) -> None:
    """On the Methods board the masks of a language meet every masked relation in it, and random masks all."""
    treatments = masks_of("average-precision", [f"{relation}@en" for relation in RELATIONS])
    root = tmp_path / "leaderboards"
    path = submit(make_directory(tmp_path / "run", treatments=treatments), root)

    def fewer(raw: dict[str, Any]) -> None:
        raw["treatments"][3]["tasks"] = ["relbench_company_hq_en"]
        raw["treatments"][13]["tasks"] = ["relbench_company_hq_en"]

    edit(path, fewer)
    said = [line.split(": ", 1)[1] for line in problems(root) if FILE in line]
    elsewhere = "expected the tasks that the config has it meet, found ('relbench_company_hq_en',)"
    assert sorted(said) == [
        "treatments: expected 10 random masks at 0.0003 on the methods board, found 9",
        f"treatments[13].tasks: {elsewhere}",
        "treatments[3].tasks: expected the tasks that are compared for average-precision for "
        "landmark_on_continent@en at 0.0003 on the methods board, found fewer",
        f"treatments[3].tasks: {elsewhere}",
    ]


def test_the_command_prints_every_problem_and_stops_with_2(root: Path, submission: Path) -> None:
    done = CliRunner().invoke(relbench, ["leaderboard", "verify", str(root)])
    assert (done.exit_code, done.output) == (0, "1 submission verified\n")
    edit(submission, put("submitter.link", "\u202eevil"))
    edit(submission.parent / "model_meta.json", put("parameters", -1))
    done = CliRunner().invoke(relbench, ["leaderboard", "verify", str(root)])
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        f"{FILE}: submitter.link: expected printable characters, found '\\u202eevil'",
    ]
