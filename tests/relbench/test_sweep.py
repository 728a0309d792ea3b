"""Sweeps on a tiny model: whole, continued and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from interventions.errors import UserError
from relbench.samples import BASELINE, read_samples
from relbench.sweep import run_sweep
from relbench.sweep_config import SweepConfig
from relbench.sweep_state import alone, read_treatments

RELATIONS = ["country_capital", "star_constellation"]


def _config(model: Path, **changes: Any) -> SweepConfig:
    raw = {
        "model": str(model),
        "device": "cpu",
        "relations": RELATIONS,
        "shots": 1,
        "methods": [{"name": "average-precision"}, {"name": "log-probability-increase", "shots": 1}],
        "fractions": [0.1],
        "controls": {"seeds": 2},
        "limit": 4,
        "detect_limit": 4,
    }
    return SweepConfig.from_dict({**raw, **changes}, "test")


@pytest.fixture(scope="module")
def finished(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_sweep(_config(tiny_checkpoint), tmp_path_factory.mktemp("sweep") / "run", progress=False)


def _bytes(directory: Path) -> dict[str, bytes]:
    """Everything in a sweep directory but what may differ: dates, the lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("run.json", ".lock")
    }


def test_every_treatment_meets_every_task(finished: Path) -> None:
    treatments = read_treatments(finished)
    assert [t.method for t in treatments].count("random") == 2
    assert len(treatments) == 1 + 2 * 2 + 2
    seen = {(s.intervention, s.task, s.doc_id) for s in read_samples(finished / "samples.jsonl")}
    assert len(seen) == len(treatments) * len(RELATIONS) * 4
    assert {t.k for t in treatments if t.mask} == {round(0.1 * 3 * 48)}


def test_results_are_in_lm_evals_format(finished: Path) -> None:
    from lm_eval.utils import make_table

    for treatment in read_treatments(finished):
        results = json.loads((finished / "results" / f"{treatment.id}.json").read_text())
        assert "relbench_country_capital_en" in make_table(results)
        assert results["config"]["relbench"]["treatment"]["id"] == treatment.id


def test_the_same_config_gives_the_same_bytes(finished: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    again = run_sweep(_config(tiny_checkpoint), tmp_path / "again", progress=False)
    assert _bytes(again) == _bytes(finished)


def test_a_finished_sweep_is_not_run_again(
    finished: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("relbench.lm.load_lm", loads)
    assert run_sweep(_config(tiny_checkpoint), finished, progress=False) == finished


@pytest.mark.parametrize("blocks", [0, 1, 5])
def test_an_interrupted_sweep_ends_with_the_same_bytes(
    finished: Path, tiny_checkpoint: Path, tmp_path: Path, blocks: int
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(finished, cut)
    journal = cut / "journal" / "0.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:blocks]) + lines[blocks][:50])
    for leftover in ("samples.jsonl", "run.json"):
        (cut / leftover).unlink()
    shutil.rmtree(cut / "results")
    run_sweep(_config(tiny_checkpoint), cut, progress=False)
    assert _bytes(cut) == _bytes(finished)


def test_what_scores_cost_outlives_an_interruption(
    finished: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("relbench.sweep._evaluate", killed)
        run_sweep(_config(tiny_checkpoint), tmp_path / "run", progress=False)
    run_sweep(_config(tiny_checkpoint), tmp_path / "run", progress=False)
    costs = json.loads((tmp_path / "run/run.json").read_text())["methods"]
    assert costs.keys() == {"average-precision", "log-probability-increase"}
    assert all(cost["seconds"] > 0 and cost["bytes"] > 1000 for cost in costs.values())
    assert _bytes(tmp_path / "run") == _bytes(finished)


def test_scores_of_another_config_are_not_taken(
    finished: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    other = [
        {"id": "average-precision", "name": "mean-difference"},
        {"name": "log-probability-increase", "shots": 1},
    ]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        # Before anything says what the directory is of.
        patch.setattr("relbench.sweep._prepare", killed)
        run_sweep(_config(tiny_checkpoint, methods=other), tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "scores" / "average-precision.safetensors").exists()
    run_sweep(_config(tiny_checkpoint), tmp_path / "run", progress=False)
    assert _bytes(tmp_path / "run") == _bytes(finished)


def test_what_is_missing_of_a_finished_sweep_is_made_again(
    finished: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "samples.jsonl").unlink()
    run_sweep(_config(tiny_checkpoint), copy, progress=False)
    assert _bytes(copy) == _bytes(finished)


def test_a_mode_without_its_statistic_is_refused_before_the_baseline(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    config = _config(
        tiny_checkpoint,
        methods=[{"name": "average-precision", "options": {"references": False}}],
        modes=["resample"],
        controls={"seeds": 0},
    )
    with pytest.raises(UserError, match="samples"):
        run_sweep(config, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "journal").exists()
    assert not (tmp_path / "run" / "sweep.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ks": [2, 100_000], "fractions": []}, "more than the 144"),
        ({"fractions": [0.001, 0.002]}, "two sizes come to the same number of units, 1"),
    ],
)
def test_sizes_are_refused_before_scoring(
    tiny_checkpoint: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_sweep(_config(tiny_checkpoint, **changes), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"shots": 0}, "shots"), ({"fractions": [0.2]}, "fractions"), ({"limit": 3}, "limit")],
)
def test_another_config_in_the_same_directory_is_refused(
    finished: Path, tiny_checkpoint: Path, changes: dict[str, Any], named: str
) -> None:
    before = _bytes(finished)
    with pytest.raises(UserError, match=f"another {named}"):
        run_sweep(_config(tiny_checkpoint, **changes), finished, progress=False)
    assert _bytes(finished) == before


def test_a_second_process_is_told_so(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with alone(tmp_path / "busy"), pytest.raises(UserError, match="another process"):
        run_sweep(_config(tiny_checkpoint), tmp_path / "busy", progress=False)


def test_a_random_mask_has_the_layers_of_all_masks(finished: Path) -> None:
    from interventions.masks import Mask

    treatments = read_treatments(finished)
    load = {t.id: Mask.load(finished / t.mask) for t in treatments if t.mask}
    pooled = sum(load[t.id].layers() for t in treatments if t.concept)
    for t in treatments:
        if t.method == "random":
            expected = pooled / pooled.sum() * len(load[t.id])
            assert abs(load[t.id].layers() - expected).max() <= 1


def test_without_methods_the_baseline_alone_is_measured(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = _config(tiny_checkpoint, methods=[], languages=["en", "ja"])
    directory = run_sweep(config, tmp_path / "run", progress=False)
    assert [treatment.id for treatment in read_treatments(directory)] == [BASELINE]
    samples = read_samples(directory / "samples.jsonl")
    assert {(s.intervention, s.language) for s in samples} == {(BASELINE, "en"), (BASELINE, "ja")}
    assert len(samples) == 2 * 2 * 4


Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relations": ["nope"]}, "unknown relation"),
        ({"languages": ["xx"]}, "unknown language"),
        ({"methods": [{"name": "guess"}]}, "guess"),
        ({"fractions": [2]}, "fractions"),
        ({"surprise": 1}, "surprise: is unknown"),
        ({"shots": -1}, "shots"),
        ({"templates": ["poem"]}, "poem"),
        ({"perplexity": "neutral", "positions": ["context"]}, "perplexity: a text has no context"),
    ],
)
def test_a_wrong_config_is_refused_before_anything_is_written(
    tiny_checkpoint: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_sweep(_config(tiny_checkpoint, **change), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "model: [", "model: x\n"])
def test_a_file_that_is_no_config_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml"):
        SweepConfig.from_yaml(path)
    with pytest.raises(UserError, match="missing"):
        SweepConfig.from_yaml(tmp_path / "none.yaml")


def test_a_key_that_stands_twice_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: a\nmethods:\n  - name: random\n    shots: 1\n    shots: 2\n")
    with pytest.raises(UserError, match=r"config\.yaml:5: shots stands twice"):
        SweepConfig.from_yaml(path)


@pytest.mark.parametrize("name", ["figures/mine.png", "results/table.csv", "samples.jsonl", "report.html"])
def test_a_folder_with_other_files_of_our_names_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(UserError, match=f"has {name.split('/')[0]} but no sweep.yaml"):
        run_sweep(_config(tiny_checkpoint), tmp_path, progress=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]


def test_packaged_configs_are_configs() -> None:
    from importlib.resources import files

    for name in ("demo.yaml", "demo-quick.yaml"):
        raw = yaml.safe_load((files("relbench") / "configs" / name).read_text())
        assert SweepConfig.from_dict(raw, name).controls.seeds == 3
