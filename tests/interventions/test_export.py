"""Exports: PEFT, checkpoint and CSV give the same model as hooks, and come back as the same mask."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM

from interventions.apply import Intervention, intervene
from interventions.errors import UserError
from interventions.export import SIDECAR, export_checkpoint, export_csv, export_peft, new_folder
from interventions.hub import model_card, push
from interventions.imports import import_csv, import_peft
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.units import Site, layout_of
from tests.interventions.making import model_id, random_mask
from tests.interventions.mutating import mutate, mutations
from tests.tiny import MODEL_TYPES, tiny_model, tiny_tokenizer

IDS = torch.tensor([[1, 5, 77, 200, 41, 9, 30], [1, 8, 8, 130, 250, 3, 4]])

# An adapter scales one side of a linear map, so input and output units go into two.
INPUTS = ("act", "attn", "gate", "up")
OUTPUTS = ("down", "attn_out", "q", "k", "v")


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("kinds", [INPUTS, OUTPUTS], ids=["inputs", "outputs"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_adapter_equals_the_hooks_and_comes_back(
    model_type: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    model = tiny_model(model_type)
    baseline = logits(model)
    mask = random_mask(model, [kind for kind in kinds if kind in layout_of(model).kinds])
    for one in (Intervention(mask), Intervention(mask, "scale", factor=0.25)):
        with intervene(model, one, how="hook"):
            hooked = logits(model)
        folder = tmp_path / one.mode
        export_peft(one, folder)
        adapted = PeftModel.from_pretrained(tiny_model(model_type), folder).eval()
        torch.testing.assert_close(logits(adapted), hooked, atol=1e-6, rtol=1e-6)
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(logits(merged), hooked, atol=1e-6, rtol=1e-6)
        ones = PeftModel.from_pretrained(tiny_model(model_type), folder / "baseline").eval()
        assert torch.equal(logits(ones), baseline)
        back = import_peft(folder)
        assert back.mask == mask and back.factor == one.multiplier
        assert back.mask.provenance["masks"] == [mask.provenance]


def test_an_adapter_is_written_the_same_every_time(tmp_path: Path) -> None:
    one = Intervention(random_mask(tiny_model("gpt2"), INPUTS[:2]))
    for name in ("a", "b"):
        export_peft(one, tmp_path / name)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_an_empty_mask_is_an_adapter_of_ones(tmp_path: Path) -> None:
    model = tiny_model("llama")
    export_peft(Intervention(Mask({}, ModelId.of(model))), tmp_path / "a")
    adapted = PeftModel.from_pretrained(tiny_model("llama"), tmp_path / "a").eval()
    assert torch.equal(logits(adapted), logits(model))
    assert len(import_peft(tmp_path / "a").mask) == 0


def test_what_an_adapter_cannot_say_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = tiny_model("llama")
    mask = random_mask(model, ["act"], references=["mean"])
    both = random_mask(model, ["act", "down"])
    for one, message in (
        (Intervention(mask, "mean"), "mode mean cannot be a PEFT"),
        (Intervention(mask, "constant", value=1.0), "only multiplies"),
        (Intervention(mask, positions="context"), "acts everywhere"),
        (Intervention(both), "both sides of .*down_proj: export act and down apart"),
    ):
        with pytest.raises(UserError, match=message):
            export_peft(one, tmp_path / "a")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(UserError, match="exists already"):
        export_peft(Intervention(mask), tmp_path / "used")
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_adapters_of_other_tools_are_read(tmp_path: Path) -> None:
    """An (IA)³ adapter that PEFT itself made and saved, with short module names."""
    from peft import IA3Config, get_peft_model

    model = tiny_model("llama")
    identity = ModelId.of(model)
    config = IA3Config(target_modules=["down_proj", "v_proj"], feedforward_modules=["down_proj"])
    adapted = get_peft_model(tiny_model("llama"), config)
    with torch.no_grad():
        for layer in adapted.base_model.model.model.layers:
            layer.mlp.down_proj.ia3_l["default"][0, 7] = 0
            layer.self_attn.v_proj.ia3_l["default"][3, 0] = 0
    adapted.save_pretrained(tmp_path / "a")
    imported = import_peft(tmp_path / "a", identity)
    units = {(str(site), *found.tolist()) for site, found in imported.mask.units.items()}
    assert units == {(f"{n}.act", 7) for n in range(3)} | {(f"{n}.v", 3) for n in range(3)}
    with pytest.raises(UserError, match="which weights it is for; add --model"):
        import_peft(tmp_path / "a")
    with pytest.raises(UserError, match="another model's size"):
        import_peft(tmp_path / "a", ModelId.of(tiny_model("llama", intermediate_size=64)))
    with pytest.raises(UserError, match="of a gpt2 model"):
        import_peft(tmp_path / "a", ModelId.of(tiny_model("gpt2")))
    with torch.no_grad():
        adapted.base_model.model.model.layers[0].mlp.down_proj.ia3_l["default"][0, 8] = 0.5
    adapted.save_pretrained(tmp_path / "trained")
    with pytest.raises(UserError, match="2 different factors: a trained adapter"):
        import_peft(tmp_path / "trained", identity)


def test_damaged_adapters_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    export_peft(Intervention(random_mask(tiny_model("llama"), ["act"])), folder)
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    whole, settings = weights.read_bytes(), config.read_text()

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            import_peft(folder)

    weights.write_bytes(whole[:-3])
    refused("damaged or no safetensors")
    first_zero = whole.index(bytes(4), whole.index(b"}}"))
    weights.write_bytes(whole[:first_zero] + np.float32(1).tobytes() + whole[first_zero + 4 :])
    refused("name different units, so one of them was changed")
    weights.unlink()
    refused("cannot read .*No such file")
    weights.write_bytes(whole)
    config.write_text(settings.replace("IA3", "LORA"))
    refused("type LORA, not IA3")
    config.write_text("{")
    refused("not readable JSON")
    config.write_text("[]")
    refused("not a JSON object")
    with pytest.raises(UserError, match="cannot read"):
        import_peft(tmp_path / "none")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_folded_checkpoint_loads_anywhere(model_type: str, tmp_path: Path) -> None:
    model = tiny_model(model_type)
    baseline = logits(model)
    mask = random_mask(model, layout_of(model).kinds)
    one = Intervention(mask)
    with intervene(model, one, how="hook"):
        hooked = logits(model)
    export_checkpoint(model, tiny_tokenizer(), one, tmp_path / "c", card="# card")
    assert torch.equal(logits(model), baseline)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "c", dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), hooked, atol=1e-6, rtol=1e-6)
    assert (tmp_path / "c" / "README.md").read_text() == "# card"
    assert json.loads((tmp_path / "c" / "relbench_mask.json").read_text())["units"]["0.act"]


def test_a_checkpoint_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    model = tiny_model("llama")
    for one, message in (
        (Intervention(random_mask(model, ["act"], references=["mean"]), "mean"), "replaces responses"),
        (Intervention(random_mask(tiny_model("llama", seed=1), ["act"])), "other weights"),
    ):
        with pytest.raises(UserError, match=message):
            export_checkpoint(model, None, one, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_folder(tmp_path / "a") as where:
        (where / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as where:
        (where / "file").touch()
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["file"]


@pytest.mark.fuzz
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(("adapter_model.safetensors", "adapter_config.json", SIDECAR)), mutations())
def test_a_mutated_adapter_is_refused_or_unharmed(
    tmp_path: Path, name: str, edits: list[tuple[str, int, bytes]]
) -> None:
    mask = random_mask(tiny_model("llama"), ["act", "v"]) if not (tmp_path / "whole").exists() else None
    if mask is not None:
        export_peft(Intervention(mask), tmp_path / "whole")
        mask.save(tmp_path / "mask")
        shutil.copytree(tmp_path / "whole", tmp_path / "mutated")
    path = tmp_path / "mutated" / name
    whole = path.read_bytes()
    path.write_bytes(mutate(whole, edits))
    try:
        units = import_peft(tmp_path / "mutated").mask.units
    except UserError as error:
        assert "\n" not in str(error)
        return
    finally:
        path.write_bytes(whole)
    known = Mask.load(tmp_path / "mask").units
    assert {site: found.tolist() for site, found in units.items()} == {
        site: found.tolist() for site, found in known.items()
    }


# ---------------------------------------------------------------------------------------------------- CSV


def test_csv_round_trip(tmp_path: Path) -> None:
    mask = random_mask(tiny_model("llama"), ("act", "attn", "gate"))
    export_csv(mask, tmp_path / "m.csv")
    lines = (tmp_path / "m.csv").read_text().splitlines()
    assert lines[0] == "layer,kind,unit" and len(lines) == 1 + len(mask)
    assert import_csv(tmp_path / "m.csv", mask.model) == mask


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no units"),
        ("layer,unit\n", "lists no units"),
        ("layer,neuron\n1,2\n", "line 2: need the columns layer and unit"),
        ("layer,unit\n1,x\n", "line 2: need the columns"),
        ("layer,unit\n1\n", "line 2: need the columns"),
        ("layer,unit\n1,4\n7,2\n", "no layer 7"),
        ("layer,unit\n1,48\n", "unit 48 of 1.act"),
        ("layer,unit\n1,-1\n", "unit -1 of 1.act"),
        ("layer,unit\n1,99999999999\n", "no model has a unit 99999999999"),
        ("layer,unit\n1,4\n1,4\n", "twice"),
        ("layer,kind,unit\n1,foo,4\n", "line 2: '1.foo' is not a site"),
        ("layer,unit\n-1,4\n", "line 2: '-1.act' is not a site"),
    ],
)
def test_bad_csv_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        import_csv(tmp_path / "m.csv", model_id())


def test_csv_without_kinds_and_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("\ufeffunit,layer\n9,1\n3,1\n2,0\n", encoding="utf-8")
    mask = import_csv(tmp_path / "m.csv", model_id(), kind="attn")
    assert {site: units.tolist() for site, units in mask.units.items()} == {
        Site(0, "attn"): [2],
        Site(1, "attn"): [3, 9],
    }
    (tmp_path / "m.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read"):
        import_csv(tmp_path / "m.csv", model_id())


# ---------------------------------------------------------------------------------------------------- hub


class FakeHub:
    """Stands in for huggingface_hub.HfApi: keeps what was uploaded, or fails."""

    uploaded: dict[str, tuple[dict[str, bytes], bool]]
    error: Exception | None

    def __init__(self) -> None:
        if FakeHub.error is not None:
            raise FakeHub.error

    def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> str:
        assert exist_ok
        inspect.signature(HfApi.create_repo).bind(self, repo, private=private, exist_ok=exist_ok)
        FakeHub.uploaded[repo] = ({}, private)
        return f"https://hub.invalid/{repo}"

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        options = {"repo_id": repo_id, "folder_path": folder_path, "commit_message": commit_message}
        inspect.signature(HfApi.upload_folder).bind(self, **options)
        FakeHub.uploaded[repo_id] = (files(Path(folder_path)), FakeHub.uploaded[repo_id][1])


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> type[FakeHub]:
    FakeHub.uploaded, FakeHub.error = {}, None
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    return FakeHub


def test_an_export_is_pushed_with_its_card(tmp_path: Path, fake_hub: type[FakeHub]) -> None:
    mask = random_mask(tiny_model("llama"), ["act"])
    one = Intervention(Mask(mask.units, mask.model, {"method": "average-precision", "k": 9}))
    facts = {"Relation": "country_capital", "Language": "en"}
    card = model_card(one, form="peft", base_model="org/base", facts=facts, repo="me/masked")
    export_peft(one, tmp_path / "a", base="org/base", card=card)
    assert push(tmp_path / "a", "me/masked", private=True) == "https://hub.invalid/me/masked"
    contents, private = fake_hub.uploaded["me/masked"]
    assert private and set(contents) == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "baseline/adapter_config.json",
        "baseline/adapter_model.safetensors",
        "relbench_mask.json",
    }
    text = contents["README.md"].decode()
    for wanted in (
        'base_model: "org/base"',
        "country_capital",
        "average-precision",
        "| k | 9 |",
        "pretrained=org/base,peft=DIR",
        "hf download me/masked --local-dir DIR",
    ):
        assert wanted in text


def test_the_card_is_yaml_front_matter(tmp_path: Path) -> None:
    import yaml

    one = Intervention(random_mask(tiny_model("llama"), ["act"]), "scale", factor=0.5)
    for form in ("peft", "checkpoint"):
        card = model_card(one, form=form, base_model='odd: "name"', facts={})  # type: ignore[arg-type]
        front = yaml.safe_load(card.split("---\n")[1])
        assert front["base_model"] == 'odd: "name"' and "relbench" in front["tags"]
        assert "scale by 0.5" in card


@pytest.mark.parametrize("error", [OSError("no network"), ValueError("bad name\nsecond line")])
def test_a_failed_push_is_one_line_and_keeps_the_export(
    tmp_path: Path, fake_hub: type[FakeHub], error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    export_peft(Intervention(random_mask(tiny_model("llama"), ["act"])), tmp_path / "a")
    fake_hub.create_repo = fail  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(UserError, match=r"cannot push to me/x: (no network|bad name); the export is in"):
            push(tmp_path / "a", "me/x")
    finally:
        del fake_hub.create_repo
    assert (tmp_path / "a" / "adapter_config.json").exists()


# ------------------------------------------------------------------------------- an unmodified lm-eval


TASK = """
task: tiny_export
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: 0
target_delimiter: ""
metric_list:
  - metric: acc
"""


@pytest.mark.slow
def test_lm_evals_own_hf_model_runs_the_adapter(tmp_path: Path) -> None:
    """`lm_eval run --model hf --model_args pretrained=M,peft=DIR` gives the numbers of our hooks."""
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    one = Intervention(random_mask(model, ["act", "attn"], each=8))
    export_peft(one, tmp_path / "adapter", base=str(tmp_path / "m"))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    documents = [
        {"question": f"{number} is next to", "choices": [f" {number + 1}", " blue", " the sea"]}
        for number in range(4)
    ]
    (tasks / "data.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (tasks / "tiny_export.yaml").write_text(TASK.format(data=tasks / "data.jsonl"))

    def answers(peft: str | None) -> list[list[float]]:
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        arguments = f"pretrained={tmp_path / 'm'},dtype=float32" + (f",peft={peft}" if peft else "")
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", arguments]
        command += ["--tasks", "tiny_export", "--include_path", str(tasks), "--device", "cpu"]
        command += ["--batch_size", "1", "--log_samples", "--output_path", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (samples,) = out.rglob("samples_*.jsonl")
        found = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda s: s["doc_id"])
        return [[float(response[0][0]) for response in sample["resps"]] for sample in found]

    def ours() -> list[list[float]]:
        table = []
        for document in documents:
            row = []
            for choice in document["choices"]:
                context = tokenizer(document["question"])["input_ids"]
                whole = tokenizer(document["question"] + choice)["input_ids"]
                with torch.no_grad():
                    scores = model(torch.tensor([whole])).logits[0].log_softmax(-1)
                tokens = range(len(context), len(whole))
                row.append(float(sum(scores[t - 1, whole[t]] for t in tokens)))
            table.append(row)
        return table

    with intervene(model, one, how="hook"):
        masked = ours()
    np.testing.assert_allclose(answers(str(tmp_path / "adapter")), masked, atol=1e-4)
    np.testing.assert_allclose(answers(str(tmp_path / "adapter" / "baseline")), ours(), atol=1e-4)
    assert np.abs(np.array(masked) - np.array(ours())).max() > 0.1
