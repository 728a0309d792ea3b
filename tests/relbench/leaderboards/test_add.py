"""From a sweep directory to a submission: what is made, what is refused, and that nothing is left half done."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from interventions.errors import UserError
from interventions.files import sha256_file
from relbench.cli import relbench
from relbench.findings import make_findings
from relbench.leaderboards import add as adding
from relbench.leaderboards.add import NotAdded
from relbench.leaderboards.submission import Submission, read_submissions
from relbench.samples import Sample
from relbench.sweep_config import SweepConfig
from relbench.treatments import Treatment
from tests.relbench.leaderboards.made import (
    MODEL,
    RELATIONS,
    edit,
    loses_its_own,
    make_directory,
    masks_of,
    problems,
    put,
    samples_path,
    submit,
)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _only(root: Path) -> Submission:
    (found,) = read_submissions(root)
    return found


def _copy(directory: Path, to: Path) -> Path:
    return Path(shutil.copytree(directory, to))


def test_the_results_are_those_of_the_report(finished_sweep: Path, verified: Path) -> None:
    """The same numbers as `relbench report` gives, but for what needs the masks themselves."""
    found, report = _only(verified), make_findings(finished_sweep)
    for name in ("recall", "methods", "curves", "masks"):
        assert [dict(row) for row in found.table(name)] == [dict(row) for row in report.table(name).rows]


def test_the_counts_and_losses_are_those_that_were_put_there(verified: Path) -> None:
    """By hand: of 40 facts 36 are right; masks lose facts 0 and 1 of other relations, one of 30 units 0 to 29 of
    its own; random masks lose fact 0. Copyable facts are left out."""
    found = _only(verified)
    counts = {(row["treatment"], row["relation"]): row for row in found.table("counts")}
    row = counts["average-precision.company_hq@en.k30", "company_hq"]
    asked = json.loads(_lines(verified)[0])
    assert asked["task"] == "relbench_company_hq_en"
    kept = [json.loads(line) for line in _lines(verified)[:40]]
    headline = [one["doc_id"] for one in kept if not one["copyable"]]
    right = [number for number in headline if number < 36]
    lost = [number for number in right if number < 30]
    assert (row["n"], row["right"], row["lost"], row["gained"]) == (len(headline), len(right), len(lost), 0)
    mask = next(m for m in found.table("masks") if m["treatment"] == "average-precision.company_hq@en.k30")
    assert mask["target_loss"] == len(lost) / len(right)
    recall = next(one for one in found.table("recall") if one["relation"] == "company_hq")
    assert (recall["n"], recall["recall"]) == (40, 0.9)


def _lines(root: Path) -> list[str]:
    import gzip

    (path,) = root.glob("results/*/*/samples/*.gz")
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_the_same_sweep_gives_the_same_bytes(finished_sweep: Path, verified: Path, tmp_path: Path) -> None:
    submit(finished_sweep, tmp_path / "again")
    assert _files(tmp_path / "again") == _files(verified)


def test_hashes_are_of_the_files(finished_sweep: Path, verified: Path) -> None:
    found = _only(verified)
    assert found.path is not None
    assert found.samples.sha256 == sha256_file(samples_path(found.path))
    assert {mask.path: mask.sha256 for mask in found.masks} == {
        f"masks/{path.name}": sha256_file(path) for path in (finished_sweep / "masks").iterdir()
    }


def test_the_command_makes_the_config_again(verified: Path, finished_sweep: Path, tmp_path: Path) -> None:
    found = _only(verified)
    out = tmp_path / "made.yaml"
    path = found.path
    assert path is not None
    assert (
        f"relbench leaderboard config leaderboards/{path.relative_to(verified)} -o made.yaml" in found.command
    )
    done = CliRunner().invoke(relbench, ["leaderboard", "config", str(path), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert (
        SweepConfig.from_yaml(out).to_dict()
        == yaml.safe_load((finished_sweep / "sweep.yaml").read_text())["config"]
    )


def test_what_a_submitter_says_is_in_it(finished_sweep: Path, tmp_path: Path) -> None:
    arguments = [
        "--name",
        "Émilie du Châtelet",
        "--link",
        "https://example.org",
        "--licence",
        "MIT",
        "--id",
        "mine",
    ]
    arguments += [
        "--tuned-on",
        "average-precision=tune",
        "--mask-url",
        "https://example.org/m/",
        "--board",
        "methods",
    ]
    command = ["leaderboard", "add", str(finished_sweep), "--root", str(tmp_path), *arguments]
    done = CliRunner().invoke(relbench, command)
    assert done.exit_code == 0, done.output
    found = _only(tmp_path)
    assert done.output == f"added {found.path}\n"
    assert (found.id, found.submitter.name, found.licence) == ("mine", "Émilie du Châtelet", "MIT")
    assert found.methods[0].tuned_on == "tune"
    assert found.masks[0].url == f"https://example.org/m/{found.masks[0].path}"


def test_a_sweep_of_several_languages(tmp_path: Path) -> None:
    """Methods and transfer in one; masks are judged in their language, and in each other language."""
    codes = ["en", "de"]
    concepts = [f"{relation}@{code}" for relation in RELATIONS for code in codes]
    directory = make_directory(
        tmp_path / "run", treatments=masks_of("average-precision", concepts), languages=codes
    )
    submit(directory, tmp_path / "leaderboards")
    assert problems(tmp_path / "leaderboards") == []
    found = _only(tmp_path / "leaderboards")
    assert found.boards == ("methods", "transfer")
    rows = [row for row in found.table("transfer") if row["masked_language"] == "en"]
    assert {row["language"] for row in rows} == {"de"}
    assert not {"shared", "jaccard"} & set(rows[0])
    assert {row["language"] for row in found.table("recall")} == set(codes)


def test_a_baseline_alone_is_for_the_board_of_models(tmp_path: Path) -> None:
    directory = make_directory(
        tmp_path / "run", treatments=[], relations="all", methods=[], fractions=[], controls={"seeds": 3}
    )
    submit(directory, tmp_path / "leaderboards")
    assert problems(tmp_path / "leaderboards") == []
    found = _only(tmp_path / "leaderboards")
    assert (found.boards, found.methods, set(found.results)) == (("models",), (), {"recall"})


def test_masks_of_some_concepts_beside_the_recall_of_all(tmp_path: Path) -> None:
    concepts = [f"{relation}@en" for relation in RELATIONS]
    tasks = tuple(f"relbench_{relation}_en" for relation in RELATIONS)
    treatments = [replace(one, tasks=tasks) for one in masks_of("average-precision", concepts)]
    directory = make_directory(tmp_path / "run", treatments=treatments, relations="all", concepts=concepts)
    submit(directory, tmp_path / "leaderboards")
    assert problems(tmp_path / "leaderboards") == []
    found = _only(tmp_path / "leaderboards")
    assert found.boards == ("methods", "models")
    assert len(found.table("recall")) > len(RELATIONS) == found.table("methods")[0]["targets"]


def test_paths_of_this_machine_are_not_published(tmp_path: Path) -> None:
    model = tmp_path / "checkpoints" / "secret"
    model.mkdir(parents=True)
    directory = make_directory(tmp_path / "run", model=replace(MODEL, name="public"))
    state = yaml.safe_load((directory / "sweep.yaml").read_text())
    state["config"] |= {"model": str(model), "perplexity": "/home/ada/text.txt"}
    (directory / "sweep.yaml").write_text(yaml.safe_dump(state, sort_keys=False))
    path = submit(directory, tmp_path / "leaderboards")
    assert str(tmp_path) not in path.read_text() and "/home/ada" not in path.read_text()
    assert _only(tmp_path / "leaderboards").model.source == "public"


def test_the_default_preset_was_tuned(tmp_path: Path) -> None:
    entry = {"preset": "default"}
    concepts = [f"{relation}@en" for relation in RELATIONS]
    directory = make_directory(tmp_path / "run", methods=[entry], treatments=masks_of("default", concepts))
    path = submit(directory, tmp_path / "leaderboards")
    assert _only(tmp_path / "leaderboards").methods[0].tuned_on == "tune"
    edit(path, put("methods.0.tuned_on", "nothing"))
    (line,) = problems(tmp_path / "leaderboards")
    assert "methods[0].tuned_on: expected 'tune', on which preset default was chosen, found 'nothing'" in line


def _refused(directory: Path, root: Path, match: str, **said: Any) -> None:
    before = _files(root) if root.exists() else None
    with pytest.raises(UserError, match=match):
        submit(directory, root, **said)
    assert (_files(root) if root.exists() else None) == before


def test_what_is_not_finished_is_refused(finished_sweep: Path, tmp_path: Path) -> None:
    root = tmp_path / "leaderboards"
    _refused(tmp_path, root, "is not a sweep directory")
    directory = _copy(finished_sweep, tmp_path / "run")
    (directory / "run.json").rename(directory / "kept.json")
    _refused(directory, root, "has no run.json: the sweep is not finished")
    (directory / "run.json").write_text("{}")
    _refused(directory, root, "run.json does not say on what the sweep ran")
    (directory / "kept.json").rename(directory / "run.json")
    mask = next((directory / "masks").iterdir())
    mask.rename(tmp_path / "mask")
    _refused(directory, root, "is missing; a submission says the hash of every mask")
    (tmp_path / "mask").rename(mask)
    lines = (directory / "samples.jsonl").read_text().splitlines(keepends=True)
    (directory / "samples.jsonl").write_text("".join(lines[:-1]))
    _refused(directory, root, r"(pair|expected an answer under treatment)")
    assert not root.exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"limit": 20}, "does not ask what the boards ask: limit: expected 40 as on all boards, found 20"),
        ({"controls": {"seeds": 3}}, "keeps the rules of no board: controls.seeds: expected at least 10"),
        ({"shots": [0]}, r"does not ask what the boards ask: shots\[0\]: expected 5"),
    ],
)
def test_what_keeps_no_boards_rules_is_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    _refused(make_directory(tmp_path / "run", **changes), tmp_path / "leaderboards", match)


def test_a_board_whose_rules_are_not_kept_is_refused(finished_sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAdded) as refused:
        submit(finished_sweep, tmp_path / "leaderboards", boards=("transfer",))
    assert [one.field for one in refused.value.problems] == ["config.languages"]
    assert not (tmp_path / "leaderboards").exists()


def test_other_facts_than_the_installed_ones_are_refused(finished_sweep: Path, tmp_path: Path) -> None:
    directory = _copy(finished_sweep, tmp_path / "run")
    text = (directory / "samples.jsonl").read_text()
    sample = json.loads(text.splitlines()[0])
    (directory / "samples.jsonl").write_text(text.replace(sample["doc_hash"], "0" * 64))
    _refused(directory, tmp_path / "leaderboards", "doc_hash: expected '.*', as the installed task has it")


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"id": "../x"}, "is no name for a submission"),
        ({"name": "a\nb"}, "submitter.name: expected printable characters"),
        ({"link": "javascript:alert(1)"}, "submitter.link: expected an http or https address"),
        ({"licence": "=cmd()"}, "licence: expected an SPDX licence identifier"),
        ({"tuned_on": {"other": "tune"}}, "names 'other', which is no method of the sweep"),
        ({"mask_url": "../masks"}, r"masks\[0\].url: expected an http or https address"),
    ],
)
def test_what_a_submitter_must_not_say(
    finished_sweep: Path, tmp_path: Path, said: dict[str, Any], match: str
) -> None:
    _refused(finished_sweep, tmp_path / "leaderboards", match, **said)


def test_a_second_time_is_refused(finished_sweep: Path, root: Path) -> None:
    _refused(finished_sweep, root, "is there already; give the submission another --id")
    with pytest.raises(NotAdded) as refused:
        submit(finished_sweep, root, id="again")
    assert {problem.field for problem in refused.value.problems} == {"config", "results", "samples.sha256"}
    command = [
        "leaderboard",
        "add",
        str(finished_sweep),
        "--root",
        str(root),
        "--name",
        "x",
        "--licence",
        "MIT",
    ]
    done = CliRunner().invoke(relbench, [*command, "--id", "again"])
    assert done.exit_code == 2
    assert done.stderr.splitlines()[0] == "relbench: error: the submission is not added"
    assert all(": expected no duplicate, found the same in " in line for line in done.stderr.splitlines()[1:])
    assert problems(root) == []


def test_a_better_run_stands_beside_the_first(root: Path, tmp_path: Path) -> None:
    def better(treatment: Treatment, sample: Sample) -> bool:
        return sample.doc_id != 38 if treatment.method == "baseline" else loses_its_own(treatment, sample)

    directory = make_directory(tmp_path / "run", outcome=better, seed=1)
    submit(directory, root, id="better")
    assert problems(root) == []
    assert [one.id for one in read_submissions(root)] == ["better", "made"]
    (line, *_) = _damaged_neighbour(root)
    assert "made.json" in line


def _damaged_neighbour(root: Path) -> list[str]:
    (path,) = root.glob("results/*/*/made.json")
    path.write_text("{")
    return problems(root)


def test_a_damaged_neighbour_does_not_keep_others_out(root: Path, tmp_path: Path) -> None:
    _damaged_neighbour(root)
    submit(make_directory(tmp_path / "run", seed=1), root, id="new")
    assert [one.id for one in read_submissions(root)] == ["new"]


def test_a_disk_that_is_full_leaves_nothing_behind(
    finished_sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if target.name == "made.json":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(adding.Path, "rename", full)
    with pytest.raises(UserError, match="No space left on device; nothing was added"):
        submit(finished_sweep, tmp_path / "leaderboards")
    assert _files(tmp_path) == {}
