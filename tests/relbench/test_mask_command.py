"""`relbench mask`: every subcommand on files of a tiny model; mistakes are one line and exit status 2."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from interventions.mask import Mask
from interventions.masks import overlap, top_k
from interventions.model_id import ModelId
from interventions.removed import removed_share, value_norms
from interventions.scores import Scores
from interventions.units import Site
from relbench.cli import main
from tests.interventions.making import model_id, random_scores
from tests.tiny import tiny_model, tiny_tokenizer

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line: (exit status, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(["mask", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scores_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scores") / "tiny.scores"
    identity = ModelId.of(tiny_model("llama"), name="tiny-llama")
    concepts = ("country_capital@en", "star_constellation@en")
    random_scores(("act", "attn"), concepts=concepts, model=identity).save(path)
    return path


CONCEPT = ("--concept", "country_capital@en")


def test_top_k_writes_the_mask_of_the_python_call(run: Run, scores_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.mask"
    code, text, _ = run("top-k", scores_path, *CONCEPT, "--k", 20, "-o", out)
    assert code == 0 and text.startswith("20 units (")
    scores = Scores.load(scores_path)
    assert Mask.load(out) == top_k(scores, "country_capital@en", 20)
    bottom = top_k(scores, CONCEPT[1], 7, side="bottom", kinds=["act"])
    for options, expected in (
        (("--k", 7, "--side", "bottom", "--kinds", "act"), bottom),
        (("--fraction", 0.1), top_k(scores, CONCEPT[1], 14)),
    ):
        assert run("top-k", scores_path, *CONCEPT, *options, "-o", out)[0] == 0
        assert Mask.load(out) == expected
    assert run("top-k", scores_path, *CONCEPT, "--band", 5, 25, "-o", out)[0] == 0
    assert len(Mask.load(out)) == 20
    assert run("top-k", scores_path, *CONCEPT, "--k", 4, "--per-layer", "-o", out)[0] == 0
    assert Mask.load(out).layers().tolist() == [4, 4, 4]
    assert run("top-k", scores_path, *CONCEPT, "--threshold", 1.0, "-o", out)[0] == 0
    assert Mask.load(out).provenance["value"] == 1.0


def test_many_ties_at_rank_k_are_warned_of(run: Run, tmp_path: Path) -> None:
    random_scores(concepts=("a@en",), levels=3).save(tmp_path / "s")
    code, _, err = run("top-k", tmp_path / "s", "--concept", "a@en", "--k", 50, "-o", tmp_path / "m")
    assert code == 0 and "units tie at rank 50" in err


def test_random_controls(run: Run, scores_path: Path, tmp_path: Path) -> None:
    mask, drawn = tmp_path / "m", tmp_path / "r"
    run("top-k", scores_path, *CONCEPT, "--k", 30, "-o", mask)
    options = ("--seed", 3, "--disjoint", "--match", "contribution", "--scores", scores_path)
    assert run("random", mask, *options, "-o", drawn)[0] == 0
    known, control = Mask.load(mask), Mask.load(drawn)
    assert overlap(known, control) == 0 and control.references
    assert {s: u.size for s, u in known.units.items()} == {s: u.size for s, u in control.units.items()}
    run("top-k", scores_path, "--concept", "star_constellation@en", "--k", 30, "-o", tmp_path / "m2")
    assert run("random", mask, tmp_path / "m2", "--pooled", "--k", 17, "-o", drawn)[0] == 0
    assert len(Mask.load(drawn)) == 17


def test_combine_show_and_compare(run: Run, scores_path: Path, model_path: Path, tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in ("a.mask", "b.mask", "c.mask"))
    run("top-k", scores_path, *CONCEPT, "--k", 30, "-o", a)
    run("top-k", scores_path, "--concept", "star_constellation@en", "--k", 40, "-o", b)
    assert run("combine", "union", a, b, "-o", c)[0] == 0
    shared = overlap(Mask.load(a), Mask.load(b))
    assert len(Mask.load(c)) == 70 - shared
    assert run("combine", "complement", a, "-o", c)[0] == 0
    assert len(Mask.load(c)) == 3 * (48 + 32) - 30

    code, text, _ = run("show", a, "--model", model_path)
    assert code == 0
    for wanted in ("30 (act", "FFN neurons", "country_capital@en", "share of the value vectors' norm", "█"):
        assert wanted in text
    code, text, _ = run("show", a, "--json", "--scores", scores_path)
    shown = json.loads(text)
    assert sum(shown["layers"]) == shown["units"] == 30 and shown["provenance"]["k"] == 30
    assert 0 < shown["removed"]["contribution"]["act"] < 1
    assert run("show", a)[0] == 0

    code, text, _ = run("compare", a, b, c, "--csv", tmp_path / "pairs.csv")
    assert code == 0 and f"{shared} / " in text and "would share" in text
    with open(tmp_path / "pairs.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 and int(rows[0]["shared"]) == shared and int(rows[1]["shared"]) == 0


def test_the_removed_share_counts_gate_up_and_act_of_a_neuron_once() -> None:
    norms = value_norms(tiny_model("llama"))
    weight = tiny_model("llama").model.layers[1].mlp.down_proj.weight
    assert norms[Site(1, "act")][7] == pytest.approx(weight[:, 7].norm().item())
    units = {Site(1, "gate"): [3, 7], Site(1, "act"): [7], Site(0, "down"): [1]}
    share = removed_share(Mask(units, model_id()), norms)  # type: ignore[arg-type]
    total = sum(float(norms[Site(layer, "act")].sum()) for layer in range(3))
    assert share == {"act": pytest.approx(float(norms[Site(1, "act")][[3, 7]].sum()) / total)}


def test_exports_come_back(run: Run, scores_path: Path, model_path: Path, tmp_path: Path) -> None:
    mask, again = tmp_path / "m", tmp_path / "again"
    run("top-k", scores_path, *CONCEPT, "--k", 30, "-o", mask)
    units = {site: found.tolist() for site, found in Mask.load(mask).units.items()}

    def returned() -> bool:
        return {site: found.tolist() for site, found in Mask.load(again).units.items()} == units

    assert run("export", mask, "--as", "peft", "-o", tmp_path / "peft")[0] == 0
    card = (tmp_path / "peft" / "README.md").read_text()
    assert "country_capital" in card and "| Language | en |" in card
    assert run("import", tmp_path / "peft", "-o", again)[0] == 0 and returned()
    scaled = ("--mode", "scale", "--factor", 0.5)
    assert run("export", mask, "--as", "peft", *scaled, "-o", tmp_path / "half")[0] == 0
    code, text, _ = run("import", tmp_path / "half", "--model", model_path, "-o", again)
    assert code == 0 and "mode=scale,factor=0.5" in text and returned()
    assert run("export", mask, "--as", "csv", "-o", tmp_path / "m.csv")[0] == 0
    assert run("import", tmp_path / "m.csv", "--model", model_path, "-o", again)[0] == 0 and returned()
    made = run("export", mask, "--as", "checkpoint", "--model", model_path, "-o", tmp_path / "folded")
    assert made[0] == 0 and (tmp_path / "folded" / "tokenizer.json").exists()


def test_push_to_hub_uploads_the_folder(
    run: Run, scores_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[str, str, bool]] = []

    def push(folder: str, repo: str, *, private: bool) -> str:
        assert (Path(folder) / "README.md").exists()
        pushed.append((folder, repo, private))
        return f"https://hub.invalid/{repo}"

    monkeypatch.setattr("interventions.hub.push", push)
    mask, out = tmp_path / "m", tmp_path / "peft"
    run("top-k", scores_path, *CONCEPT, "--k", 3, "-o", mask)
    code, text, _ = run("export", mask, "--as", "peft", "--push-to-hub", "me/x", "--private", "-o", out)
    assert code == 0 and "https://hub.invalid/me/x" in text
    assert pushed == [(str(out), "me/x", True)]


def test_mistakes_are_one_line_and_write_nothing(
    run: Run, scores_path: Path, model_path: Path, tmp_path: Path
) -> None:
    mask, out = tmp_path / "m", tmp_path / "out"
    run("top-k", scores_path, *CONCEPT, "--k", 130, "--kinds", "act", "-o", mask)
    (tmp_path / "list.csv").write_text("layer,unit\n0,99\n")
    other = tmp_path / "other"
    random_scores(model=model_id(fingerprint="0" * 64)).save(tmp_path / "foreign")
    run("top-k", tmp_path / "foreign", "--concept", "a@en", "--k", 3, "-o", other)
    capital = (scores_path, *CONCEPT)
    for arguments, message in (
        (("top-k", *capital, "-o", out), "exactly one of --k, --fraction"),
        (("top-k", *capital, "--k", 1, "--fraction", 0.1, "-o", out), "exactly one of"),
        (("top-k", *capital, "--k", 999, "-o", out), "k = 999 is more than the 240 units"),
        (("top-k", *capital, "--threshold", 1, "--per-layer", "-o", out), "--per-layer goes with --k"),
        (("top-k", scores_path, "--concept", "x@en", "--k", 1, "-o", out), "no scores for concept 'x@en'"),
        (("top-k", tmp_path / "none", *CONCEPT, "--k", 1, "-o", out), "cannot read"),
        (("top-k", mask, *CONCEPT, "--k", 1, "-o", out), "holds 'mask', not scores"),
        (("random", mask, "--disjoint", "-o", out), "a disjoint draw is impossible"),
        (("random", mask, "--match", "contribution", "-o", out), "needs --scores"),
        (("random", mask, mask, "-o", out), "give one mask, or --pooled"),
        (("random", mask, "--pooled", "--disjoint", "-o", out), "--pooled goes with"),
        (("combine", "union", mask, other, "-o", out), "two models"),
        (("combine", "complement", mask, mask, "-o", out), "takes one mask"),
        (("combine", "union", mask, "--kinds", "act", "-o", out), "goes with complement"),
        (("compare", mask), "at least two masks"),
        (("show", scores_path), "holds 'scores', not mask"),
        (("show", other, "--scores", scores_path), "the scores are of tiny-llama"),
        (("show", mask, "--model", tmp_path), "cannot load the model"),
        (("import", tmp_path / "list.csv", "-o", out), "add --model"),
        (("import", tmp_path / "list.csv", "--model", model_path, "-o", out), "unit 99 of 0.act"),
        (("import", tmp_path / "nothing", "-o", out), "there is no"),
        (("export", mask, "--as", "checkpoint", "-o", out), "needs --model"),
        (("export", mask, "--as", "peft", "-o", tmp_path), "exists already"),
        (("export", mask, "--as", "csv", "--push-to-hub", "a/b", "-o", out), "goes with --as peft"),
        (("export", mask, "--as", "peft", "--mode", "scale", "-o", out), "needs factor="),
        (("export", other, "--as", "checkpoint", "--model", model_path, "-o", out), "--force"),
    ):
        code, text, err = run(*arguments)
        assert code == 2 and text == "", arguments
        assert err.startswith("relbench: error: ") and err.count("\n") == 1 and message in err, err
        assert not out.exists() and not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
