"""Mistakes a user can make, through the command line: one line, exit status 2, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from interventions.masks import Mask
from interventions.model_id import ModelId
from interventions.scores import Scores
from interventions.units import Site, layout_of
from relbench.cli import main
from tests.tiny import tiny_model

LM_EVAL = (
    "lm-eval run --model relbench --device cpu --limit 2 --num_fewshot 0 --tasks relbench_country_capital_en"
)

EXPLAIN = "explain --prompt x --model {model} "


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> dict[str, str]:
    """Paths by name: a model, its scores and mask, another model's mask, and damaged copies."""
    folder = tmp_path_factory.mktemp("files")
    model = tiny_model("llama", max_position_embeddings=2048)
    identity, layout = ModelId.of(model), layout_of(model)
    rows = {
        site: np.random.default_rng(site.layer).random((1, layout.size("act")), dtype=np.float32)
        for site in layout.sites(("act",))
    }
    Scores(rows, ("country_capital@en",), identity, "made").save(folder / "scores")
    units = {Site(0, "act"): np.arange(5, dtype=np.int32)}
    Mask(units, identity).save(folder / "mask")
    Mask(units, ModelId.of(tiny_model("llama", seed=9))).save(folder / "other")
    whole = (folder / "mask").read_bytes()
    (folder / "short").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped").write_bytes(whole[:-3] + bytes([whole[-3] ^ 255]) + whole[-2:])
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    return {path.name: str(path) for path in folder.iterdir()} | {"model": str(tiny_checkpoint)}


CASES = [
    ("mask top-k nowhere --concept country_capital@en --k 3 -o OUT", "nowhere"),
    ("mask top-k {scores} --concept star@en --k 3 -o OUT", "star@en"),
    ("mask top-k {scores} --concept country_capital@en --k 999999 -o OUT", "999999"),
    ("mask top-k {short} --concept country_capital@en --k 3 -o OUT", "short"),
    ("mask top-k {mask} --concept country_capital@en --k 3 -o OUT", "mask"),
    ("mask top-k {scores} --concept country_capital@en --k 3 -o {scores}", "scores file"),
    ("mask top-k {scores} --concept country_capital@en --k 3 -o {folder}", "folder: Is a directory"),
    ("mask top-k {scores} --concept country_capital@en --k 3 -o {mask}/file", "mask: File exists"),
    ("mask top-k {scores} --concept country_capital@en --k 3 -o /proc/nowhere", "/proc/nowhere: "),
    ("mask export {mask} --as csv -o {folder}", "folder: Is a directory"),
    ("mask show {flipped}", "flipped"),
    ("mask show {empty}", "empty"),
    ("score guesswork --model {model} --relations country_capital -o OUT", "guesswork"),
    ("score average-precision --model {model} --relations nope -o OUT", "nope"),
    ("score average-precision --model {model} --relations country_capital --languages xx -o OUT", "xx"),
    (
        "score average-precision --model nowhere/model --relations country_capital,star_constellation -o OUT",
        "nowhere/model",
    ),
    ("score average-precision --model {model} --relations country_capital --option k -o OUT", "KEY=VALUE"),
    # Before the model is looked for.
    ("score auroc --model nowhere/model --relations country_capital -o OUT", "no negative prompts"),
    ("score auroc --model nowhere/model --kinds gates -o OUT", "unknown unit kind 'gates'"),
    ("score lape --model nowhere/model --option balance=length -o OUT", "no balance"),
    ("score average-precision --model {model} --relations country_capital --shots 99 -o OUT", "few-shot"),
    (LM_EVAL + " --model_args pretrained={model},mask={other}", "model"),
    (LM_EVAL + " --model_args pretrained={model},mask={flipped}", "flipped"),
    (LM_EVAL + " --model_args pretrained={model},mask={scores}", "concept="),
    (LM_EVAL + " --model_args mask={mask}", "pretrained="),
    (LM_EVAL + " --model_args pretrained={model},postions=all", "'postions'"),
    (LM_EVAL + " --model_args pretrained={model},dtype=float3", "float3"),
    (LM_EVAL.replace("_fewshot 0", "_fewshot 99") + " --model_args pretrained={model}", "--num_fewshot"),
    (EXPLAIN + "--dtype float3", "float3"),
    (EXPLAIN + "--device zap", "unknown device 'zap'"),
    (EXPLAIN + "--device cuda:99", "no device 'cuda:99'"),
    ("tasks check country_capital --tokenizer {folder}", "tokenizer"),
    ("sweep nowhere.yaml -o OUT", "nowhere.yaml"),
    ("report OUT", "sweep directory"),
    ("tasks show nope", "nope"),
    ("tasks check nope", "nope"),
    ("demo --model nowhere/model --out OUT", "nowhere/model"),
    ("demo --fractions many --out OUT", "many"),
    ("demo --fractions 7 --out OUT", "fractions"),
    ("models pull nothing", "nothing"),
]


@pytest.mark.parametrize(("command", "named"), CASES, ids=[command[:60] for command, _ in CASES])
def test_one_line_and_exit_status_2(
    command: str,
    named: str,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(command.replace("OUT", str(tmp_path / "out")).format(**files).split())
    assert exit_.value.code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("relbench: error: ")
    assert named in line
    assert list(tmp_path.iterdir()) == []


def test_no_traceback_from_a_real_process(files: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relbench", "mask", "show", files["short"]],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", ["mask random {mask} -o OUT", "planted -o OUT", "grade average-precision"]
)
def test_seeds_are_not_negative(
    command: str,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main([*command.replace("OUT", "out").format(**files).split(), "--seed", "-1"])
    assert exit_.value.code == 2
    assert "-1 is not in the range x>=0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_no_facts_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tasks" / "bare"
    folder.mkdir(parents=True)
    (folder / "relation.yaml").write_text(
        "relation: bare\ndescription: Nothing.\ndomain: thing\nrange: thing\nversion: 1\nlicence: CC0\n"
        "templates: {en: {completion: 'The {subject} is'}}\n"
    )
    (folder / "facts.jsonl").write_text("")
    monkeypatch.setattr("relbench.relations.tasks_dir", lambda: tmp_path / "tasks")
    with pytest.raises(SystemExit) as exit_:
        main(["tasks", "show", "bare"])
    assert exit_.value.code == 2
    assert "no shots facts" in capsys.readouterr().err
