"""`relbench lm-eval` through lm_eval's real command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interventions.errors import UserError
from interventions.masks import Mask, difference, union
from interventions.model_id import ModelId
from interventions.units import Site
from relbench.lm_eval_cli import _default_batch_size, concepts_of, run
from relbench.logged import read_logged
from tests.tiny import tiny_model

TASKS = "relbench_country_capital_en,relbench_star_constellation_en"


@pytest.fixture(scope="module")
def mask(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masks") / "capital.mask"
    model = tiny_model("llama", max_position_embeddings=2048)
    units = {Site(layer, "act"): np.arange(24, dtype=np.int32) for layer in range(3)}
    Mask(units, ModelId.of(model), {"operation": "top_k", "concept": "country_capital@en"}).save(path)
    return path


def _arguments(model: Path, out: Path, *more: str, mask: Path | None = None, tasks: str = TASKS) -> list[str]:
    settings = f"pretrained={model}" + (f",mask={mask}" if mask else "")
    return [
        "run", "--model", "relbench", "--model_args", settings, "--tasks", tasks, "--limit", "3",
        "--num_fewshot", "1", "--device", "cpu", "--output_path", str(out), "--log_samples", *more,
    ]  # fmt: skip


def _results(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("results_*.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_the_table_shows_baseline_and_delta(
    tiny_checkpoint: Path, mask: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(_arguments(tiny_checkpoint, tmp_path, mask=mask))
    printed = capsys.readouterr().out
    assert printed.count("recall_baseline") == 2
    assert printed.count("recall_delta") == 2
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert len(folders) == 2
    assert folders[0] == "baseline"
    masked, plain = _results(tmp_path / folders[1]), _results(tmp_path / "baseline")
    for task in TASKS.split(","):
        entry = masked["results"][task]
        assert entry["recall_baseline,none"] == plain["results"][task]["recall,none"]
        assert entry["recall_delta,none"] == entry["recall,none"] - entry["recall_baseline,none"]
        assert entry["answer_logprob,none"] != plain["results"][task]["answer_logprob,none"]
    assert masked["config"]["model"] == "relbench"
    assert masked["config"]["model_args"]["mask"] == str(mask)
    assert masked["config"]["relbench"]["interventions"]
    assert plain["config"]["relbench"]["interventions"] == []
    assert len(read_logged(tmp_path / "baseline")) == 6


def test_groups_tell_target_from_off_target(
    tiny_checkpoint: Path, mask: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        _arguments(tiny_checkpoint, tmp_path, mask=mask, tasks="relbench_paper12_en,relbench_country_capital")
    )
    (folder,) = (path for path in tmp_path.iterdir() if path.name != "baseline")
    groups = _results(folder)["groups"]
    assert "recall_delta_target,none" in groups["relbench_country_capital"]
    assert "recall_delta_off_target,none" not in groups["relbench_country_capital"]
    assert "recall_delta_off_target,none" in groups["relbench_paper12_en"]
    assert "recall_delta_target,none" not in groups["relbench_paper12_en"]
    assert "recall_delta_off_target" in capsys.readouterr().out


def test_a_baseline_from_a_folder_is_not_measured_again(
    tiny_checkpoint: Path, mask: Path, tmp_path: Path
) -> None:
    run(_arguments(tiny_checkpoint, tmp_path / "first", mask=mask))
    (measured,) = (path for path in (tmp_path / "first").iterdir() if path.name != "baseline")
    arguments = _arguments(tiny_checkpoint, tmp_path / "second", mask=mask)
    arguments[4] += f",baseline={tmp_path / 'first' / 'baseline'}"
    run(arguments)
    (reused,) = (tmp_path / "second").iterdir()
    assert _results(reused)["results"] == _results(measured)["results"]


def test_no_baseline_when_not_wanted(
    tiny_checkpoint: Path, mask: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = _arguments(tiny_checkpoint, tmp_path, mask=mask)
    arguments[4] += ",baseline=none"
    run(arguments)
    assert "recall_baseline" not in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] != ["baseline"]


def test_the_response_cache_never_mixes_masks_or_models(
    tiny_checkpoint: Path, mask: Path, tmp_path: Path
) -> None:
    cache = ("--use_cache", str(tmp_path / "cache" / "answers"))
    (tmp_path / "cache").mkdir()
    runs = {}
    other = tmp_path / "other"
    tiny_model("llama", seed=5, max_position_embeddings=2048).save_pretrained(other)
    for file in tiny_checkpoint.glob("token*"):
        (other / file.name).write_bytes(file.read_bytes())
    for name, model, chosen in (("masked", tiny_checkpoint, mask), ("other", other, None)):
        for attempt in ("fresh", "cached"):
            run(_arguments(model, tmp_path / name / attempt, *cache, mask=chosen))
            runs[name, attempt] = {
                (sample.task, sample.doc_id, folder.name): sample.metrics["answer_logprob"]
                for folder in (tmp_path / name / attempt).iterdir()
                for sample in read_logged(folder)
            }
        assert runs[name, "cached"] == runs[name, "fresh"]
    without_cache = tmp_path / "plain"
    run(_arguments(tiny_checkpoint, without_cache, mask=mask))
    plain = {
        (sample.task, sample.doc_id, folder.name): sample.metrics["answer_logprob"]
        for folder in without_cache.iterdir()
        for sample in read_logged(folder)
    }
    assert runs["masked", "cached"] == pytest.approx(plain, abs=1e-5)
    values = [set(runs[name, "cached"].values()) for name in ("masked", "other")]
    assert not values[0] & values[1]


def test_the_response_cache_tells_adapters_apart(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        tiny_model("llama", max_position_embeddings=2048),
        LoraConfig(target_modules=["down_proj"], init_lora_weights=False),
    )
    adapted.save_pretrained(tmp_path / "adapter")
    logprobs = []
    for name, more in (("plain", ""), ("adapted", f",peft={tmp_path / 'adapter'}")):
        arguments = _arguments(
            tiny_checkpoint,
            tmp_path / name,
            "--use_cache",
            str(tmp_path / "answers"),
            tasks=TASKS.split(",")[0],
        )
        arguments[4] += more
        run(arguments)
        logprobs.append([sample.metrics["answer_logprob"] for sample in read_logged(tmp_path / name)])
    assert all(abs(a - b) > 1e-4 for a, b in zip(*logprobs, strict=True))


def test_a_baseline_that_does_not_fit_does_not_cost_the_results(
    tiny_checkpoint: Path, mask: Path, tmp_path: Path
) -> None:
    # More tasks than are asked for are no harm, other documents are.
    run(_arguments(tiny_checkpoint, tmp_path / "base"))
    one = TASKS.split(",")[0]
    for limit, fits in (("3", True), ("2", False)):
        arguments = _arguments(tiny_checkpoint, tmp_path / limit, mask=mask, tasks=one)
        arguments[arguments.index("--limit") + 1] = limit
        arguments[4] += f",baseline={tmp_path / 'base'}"
        if fits:
            run(arguments)
        else:
            with pytest.warns(UserWarning, match="the results have no deltas"):
                run(arguments)
        assert ("recall_delta,none" in _results(tmp_path / limit)["results"][one]) is fits


def test_a_folder_with_several_runs_is_no_baseline(tiny_checkpoint: Path, mask: Path, tmp_path: Path) -> None:
    run(_arguments(tiny_checkpoint, tmp_path, mask=mask))
    with pytest.raises(UserError, match=r"several runs: .*baseline"):
        read_logged(tmp_path)


def test_what_is_taken_away_from_a_mask_is_no_target() -> None:
    layout = ModelId.of(tiny_model("llama"))
    a, b = (
        Mask({Site(0, "act"): np.array(units, np.int32)}, layout, {"operation": "top_k", "concept": name})
        for name, units in (("a@en", [1, 2]), ("b@en", [2, 3]))
    )
    assert concepts_of(difference(a, b)) == {"a@en"}
    assert concepts_of(union(a, b)) == {"a@en", "b@en"}


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ("run --model relbench --tasks x", True),
        ("run --model=relbench --tasks x", True),
        ("run -M relbench --tasks x", True),
        ("run --model relbench --batch_size=4", False),
        ("run --model relbench -b 4", False),
        ("run --model relbench --config c.yaml", False),
        ("run --model hf --tasks relbench", False),
        ("validate --tasks relbench", False),
    ],
)
def test_our_batch_size_is_the_default_of_our_model_alone(arguments: str, added: bool) -> None:
    assert _default_batch_size(arguments.split()) == (["--batch_size", "32"] if added else [])


@pytest.mark.parametrize("flag", ["true", "refresh"])
def test_the_request_cache_is_refused(tiny_checkpoint: Path, mask: Path, tmp_path: Path, flag: str) -> None:
    with pytest.raises(UserError, match="cache_requests"):
        run(_arguments(tiny_checkpoint, tmp_path, "--cache_requests", flag, mask=mask))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("mask=nowhere.mask", "nowhere.mask"),
        ("mode=zero", "without mask="),
        ("mask=MASK,k=3", "is a mask"),
        ("mask=MASK,mode=erase", "erase"),
        ("mask=MASK,positions=middle", "middle"),
    ],
)
def test_wrong_intervention_arguments(
    tiny_checkpoint: Path, mask: Path, tmp_path: Path, settings: str, message: str
) -> None:
    arguments = _arguments(tiny_checkpoint, tmp_path / "out")
    arguments[4] += "," + settings.replace("MASK", str(mask))
    with pytest.raises(UserError, match=message):
        run(arguments)
    assert not (tmp_path / "out").exists()


def test_overlapping_and_unknown_tasks(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Duplicate task"):
        run(
            _arguments(
                tiny_checkpoint, tmp_path, tasks="relbench_star_constellation,relbench_star_constellation_en"
            )
        )
    with pytest.raises(UserError, match="not found"):
        run(_arguments(tiny_checkpoint, tmp_path, tasks="relbench_nope"))


def test_other_models_pass_straight_through(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = _arguments(tiny_checkpoint, tmp_path)
    arguments[2] = "hf"
    run(arguments)
    assert "recall" in capsys.readouterr().out
    assert _results(tmp_path)["config"]["model"] == "hf"
