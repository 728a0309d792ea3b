"""What a sweep's config asks for is what is done: sizes, modes, templates, controls, languages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interventions.algebra import overlap
from interventions.errors import UserError
from interventions.masks import Mask
from interventions.units import Site
from relbench.analysis.pairing import pair
from relbench.logged import read_logged
from relbench.samples import BASELINE, Sample, read_samples
from relbench.sweep import run_sweep
from relbench.sweep_config import SweepConfig
from relbench.sweep_state import read_treatments
from relbench.treatments import Treatment

RAW: Mapping[str, Any] = {
    "device": "cpu",
    "relations": ["country_capital", "star_constellation"],
    "shots": 0,
    "methods": ["random"],
    "ks": [5, 20],
    "controls": {"seeds": 1},
    "limit": 3,
    "detect_limit": 3,
}


def _run(model: Path, directory: Path, **changes: Any) -> tuple[dict[str, Treatment], list[Sample]]:
    config = SweepConfig.from_dict({**RAW, "model": str(model), **changes}, "test")
    run_sweep(config, directory, progress=False)
    treatments = {treatment.id: treatment for treatment in read_treatments(directory)}
    return treatments, read_samples(directory / "samples.jsonl")


def _mask(directory: Path, treatment: Treatment) -> Mask:
    assert treatment.mask is not None
    return Mask.load(directory / treatment.mask)


def test_bands_and_complements_come_from_the_sizes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    treatments, _ = _run(tiny_checkpoint, tmp_path / "run", bands=True, complement=True)
    name = "random-scores.country_capital@en"
    small, large = (_mask(tmp_path / "run", treatments[f"{name}.k{k}"]) for k in (5, 20))
    band = _mask(tmp_path / "run", treatments[f"{name}.band5-20"])
    assert len(band) == 15 and overlap(band, small) == 0 and overlap(band, large) == 15
    kept = _mask(tmp_path / "run", treatments[f"{name}.k20.complement"])
    assert len(kept) == 3 * 48 - 20 and overlap(kept, large) == 0
    control = treatments["random.seed0.k20.complement"]
    assert control.selection == "complement" and len(_mask(tmp_path / "run", control)) == 3 * 48 - 20
    assert treatments[f"{name}.band5-20"].band == (5, 20)


def test_every_mask_meets_every_mode_and_position(tiny_checkpoint: Path, tmp_path: Path) -> None:
    treatments, samples = _run(
        tiny_checkpoint,
        tmp_path / "run",
        ks=[40],
        modes=["zero", {"mode": "scale", "factor": 1}],
        positions=["all", "continuation"],
    )
    masks = {t.mask for t in treatments.values() if t.mask}
    assert len(masks) == 3 and len(treatments) == 1 + 3 * 4
    by_treatment = {
        name: [s.answer_logprob for s in samples if s.intervention == name] for name in treatments
    }
    stem = "random-scores.country_capital@en.k40"
    # Times 1 is nothing done; zero everywhere is not zero at the answer alone.
    for place in ("all", "continuation"):
        assert by_treatment[f"{stem}.scale1.{place}"] == pytest.approx(by_treatment[BASELINE], abs=1e-5)
    whole, answer = (np.array(by_treatment[f"{stem}.zero.{place}"]) for place in ("all", "continuation"))
    assert np.abs(whole - np.array(by_treatment[BASELINE])).max() > 1e-3
    assert np.abs(whole - answer).max() > 1e-3


def test_templates_and_shots_are_asked_apart(tiny_checkpoint: Path, tmp_path: Path) -> None:
    treatments, samples = _run(
        tiny_checkpoint, tmp_path / "run", ks=[5], templates=["completion", "question"], shots=[0, 2]
    )
    settings = {(s.template, s.shots) for s in samples}
    assert settings == {(template, shots) for template in ("completion", "question") for shots in (0, 2)}
    assert len(samples) == len(treatments) * 2 * 3 * 4
    assert len({s.prompt_hash for s in samples if s.intervention == BASELINE}) == 2 * 3 * 4
    # Each setting's samples pair with the baseline's of that setting alone.
    for template, shots in settings:
        own = [s for s in samples if (s.template, s.shots) == (template, shots)]
        for name in treatments:
            pair([s for s in own if s.intervention == BASELINE], [s for s in own if s.intervention == name])
        results = json.loads(
            (tmp_path / "run/results" / f"{BASELINE}.{template}-{shots}shot.json").read_text()
        )
        assert set(results["n-shot"].values()) == {shots}
        assert results["config"]["relbench"]["template"] == template


@pytest.mark.parametrize("match", ["mask", "norm"])
def test_matched_controls_have_their_masks_sites(tiny_checkpoint: Path, tmp_path: Path, match: str) -> None:
    treatments, _ = _run(
        tiny_checkpoint,
        tmp_path / "run",
        methods=[{"name": "gradient-activation", "shots": 0}],
        controls={"seeds": 2, "match": match},
    )
    controls = [t for t in treatments.values() if t.method == "random"]
    assert len(controls) == 2 * 2 * 2
    for control in controls:
        own = treatments[str(control.matched_to)]
        first, second = _mask(tmp_path / "run", own), _mask(tmp_path / "run", control)
        count: dict[Site, int] = {site: units.size for site, units in first.units.items()}
        assert {site: units.size for site, units in second.units.items()} == count
        assert first != second and control.k == own.k and control.fraction == own.fraction


def test_masks_in_their_own_language_and_transfer_at_one_size(tiny_checkpoint: Path, tmp_path: Path) -> None:
    treatments, samples = _run(
        tiny_checkpoint,
        tmp_path / "run",
        languages=["en", "fr"],
        ks=[],
        fractions=[0.05, 0.1],
        evaluate="own-language",
        transfer_fractions=[0.1],
    )
    asked = {(s.intervention, s.language) for s in samples}
    for treatment in treatments.values():
        everywhere = treatment.concept is None or treatment.fraction == 0.1
        own = str(treatment.concept).rpartition("@")[2]
        expected = {"en", "fr"} if everywhere else {own}
        assert {language for name, language in asked if name == treatment.id} == expected


def test_only_the_named_concepts_are_masked_and_evaluated_under_masks(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    concepts = ["country_capital@en", "country_capital@fr", "star_constellation@en"]
    treatments, samples = _run(
        tiny_checkpoint,
        tmp_path / "run",
        relations=[*RAW["relations"], "element_symbol"],
        languages=["en", "fr", "de"],
        concepts=concepts,
        methods=["mean-difference"],
        ks=[5],
    )
    assert {t.concept for t in treatments.values() if t.concept} == set(concepts)
    for treatment in treatments.values():
        asked = {f"{s.relation}@{s.language}" for s in samples if s.intervention == treatment.id}
        assert len(asked) == 9 if treatment.id == BASELINE else asked == set(concepts)


def test_scores_that_were_made_before_are_masked_alike(tiny_checkpoint: Path, tmp_path: Path) -> None:
    first, _ = _run(tiny_checkpoint, tmp_path / "made", ks=[5])
    scores = {"id": "given", "path": str(tmp_path / "made/scores/random-scores.safetensors")}
    second, _ = _run(tiny_checkpoint, tmp_path / "given", ks=[5], methods=[], scores=[scores])
    for name in ("country_capital@en", "star_constellation@en"):
        assert first[f"random-scores.{name}.k5"].digest == second[f"given.{name}.k5"].digest


def test_contrast_relations_are_read_but_not_masked(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from interventions.scores import Scores

    treatments, samples = _run(
        tiny_checkpoint,
        tmp_path / "run",
        ks=[5],
        methods=["mean-difference"],
        contrast_relations=["element_symbol"],
    )
    scores = Scores.load(tmp_path / "run/scores/mean-difference.safetensors")
    assert set(scores.concepts) == {"country_capital@en", "star_constellation@en"}
    assert "element_symbol" in json.dumps(scores.parameters)
    assert not any("element_symbol" in name for name in treatments)
    assert {s.relation for s in samples} == set(RAW["relations"])


def test_a_costly_method_reads_fewer_prompts() -> None:
    methods = ["lape", {"name": "auroc", "limit": 2}]
    config = SweepConfig.from_dict({**RAW, "model": "smollm2-135m", "methods": methods}, "test")
    assert [plan.limit for plan in config.scoring_plans()] == [3, 2]


def test_continuations_are_asked_where_recall_changed(tmp_path: Path) -> None:
    from relbench.blocks import Block, asked
    from tests.relbench.records import sample

    before = [sample(i, int(i < 3)).to_dict() for i in range(5)]
    after = [sample(i, int(i in (0, 3)), intervention="m").to_dict() for i in range(5)]
    where = {"task": "t", "template": "completion", "shots": "5"}
    done = {Block("recall", BASELINE, **where): before, Block("recall", "m", **where): after}
    assert asked(Block("continuation", "m", **where), done) == [1, 2, 3]
    assert asked(Block("continuation", BASELINE, **where), done) == [0, 1, 2, 3, 4]


def test_continuations_begin_with_the_answer_where_recall_is_one(tiny_checkpoint: Path) -> None:
    """On any model, what is greedily generated begins with an accepted answer exactly where recall is 1."""
    from relbench.continuations import continuations
    from relbench.harness import build_tasks, samples_of
    from relbench.lm import load_lm

    lm = load_lm(str(tiny_checkpoint), device="cpu")
    (task,) = build_tasks(["relbench_thing_count_en"], shots=1, limit=4)
    records = continuations(lm, task, [2, 0, 3], limit=6)
    assert [record["doc_id"] for record in records] == [2, 0, 3]
    recall = {s.doc_id: s.recall for s in samples_of(task, lm.loglikelihood(list(task.instances)), "x")}
    for record in records:
        accepted = task.docs[record["doc_id"]]["choices"]
        begins = any((" " + record["text"].lstrip()).startswith(choice) for choice in accepted)
        assert begins >= bool(recall[record["doc_id"]])


def test_perplexity_is_the_models_loss(tiny_checkpoint: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = tmp_path / "own.txt"
    text.write_text("One day it rained.\n\nThe next day it did not.\n", encoding="utf-8")
    _run(tiny_checkpoint, tmp_path / "run", ks=[5], perplexity=str(text))
    records = [json.loads(line) for line in (tmp_path / "run/perplexity.jsonl").read_text().splitlines()]
    neutral = [r for r in records if r["kind"] == "neutral" and r["treatment"] == BASELINE]
    assert [r["language"] for r in neutral] == ["any", "any"]
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    for record, document in zip(neutral, text.read_text().strip().split("\n\n"), strict=True):
        ids = torch.tensor([tokenizer.encode(document)])
        with torch.no_grad():
            loss = model(ids, labels=ids).loss.item()
        assert record["logprob"] == pytest.approx(-loss * record["n_tokens"], rel=1e-4)
        assert record["n_tokens"] == ids.shape[1] - 1
    kinds = {(r["kind"], r["treatment"]) for r in records}
    assert ("relation", BASELINE) in kinds and len({name for _, name in kinds}) == 4


def test_logged_samples_are_lm_evals(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Folder by folder what `lm_eval --log_samples` gives, so that its readers and ours pair them."""
    treatments, samples = _run(tiny_checkpoint, tmp_path / "run", ks=[20], log_samples=True)
    base = read_logged(tmp_path / "run/logged" / BASELINE)
    for name in treatments:
        logged = read_logged(tmp_path / "run/logged" / name)
        assert len(pair(base, logged)) == 6
        recall = {(s.task, s.doc_id): s.answer_logprob for s in samples if s.intervention == name}
        assert {(s.task, s.doc_id): s.metrics["answer_logprob"] for s in logged} == recall
    line = json.loads(
        next((tmp_path / "run/logged" / BASELINE).glob("samples_*")).read_text().splitlines()[0]
    )
    assert line["resps"][0][0][0] == pytest.approx(line["answer_logprob"])
    assert line["arguments"]["gen_args_0"]["arg_0"].strip()


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("model: x\nrelations: [country_capital]\nshots: -1\n", 3, "shots"),
        ("model: x\nrelations: [country_capital]\nmethods:\n  - name: lape\n    colour: red\n", 5, "colour"),
        ("model: x\nrelations: [country_capital]\nmodes:\n  - zero\n  - mode: scale\n", 5, "modes"),
        ("model: x\nrelations: [country_capital]\nfractions: [0.1]\nks: [3]\n", 3, "fractions"),
        ("relations: [country_capital]\n", 1, "model"),
        ("model: x\nrelations: [country_capital]\ncontrols: {seeds: 2, match: best}\n", 3, "controls.match"),
        ("model: x\nrelations: [country_capital]\nmodes: [mean]\n", 3, "match"),
        ("model: x\nrelations: [country_capital]\nmethods: [lape, lape]\n", 3, "lape"),
        (
            "model: x\nrelations: [country_capital]\ncontinuations: true\npositions: [context]\n",
            3,
            "continuations",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int, key: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"config\.yaml:{line}: .*{key}"):
        SweepConfig.from_yaml(path)


def test_groups_of_relations_have_names() -> None:
    config = SweepConfig.from_dict({"model": "x", "relations": "paper12"}, "test")
    assert len(config.relations) == 12 and "company_ceo" in config.relations
    assert len(SweepConfig.from_dict({"model": "x", "relations": "all"}, "test").relations) == 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": [{"name": "lape", "options": {"colour": 1}}]}, "colour"),
        ({"methods": [{"name": "log-probability-increase", "options": {"form": "best"}}]}, "form"),
        ({"kinds": ["cell"]}, "cell"),
        ({"contrast_relations": ["nope"]}, "nope"),
        ({"scores": [{"id": "a", "path": "none.safetensors"}]}, "none.safetensors"),
        ({"perplexity": "none.txt"}, "none.txt"),
    ],
)
def test_what_is_not_there_is_found_before_the_model_loads(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    message: str,
) -> None:
    def loads(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("relbench.lm.load_lm", loads)
    with pytest.raises(UserError, match=message):
        _run(tiny_checkpoint, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_counts_what_is_then_done(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relbench.blocks import Block, Evaluator
    from relbench.dry_run import describe, estimate

    changes = {"complement": True, "languages": ["en", "fr"], "evaluate": "own-language", "perplexity": None}
    changes["concepts"] = ["country_capital@en", "country_capital@fr", "star_constellation@en"]
    config = SweepConfig.from_dict({**RAW, "model": str(tiny_checkpoint), **changes}, "test")
    estimated = estimate(config)
    done: list[int] = []
    real = Evaluator.run

    def counted(self: Evaluator, block: Block, *rest: Any) -> Any:
        done.append(self.cost(block))
        return real(self, block, *rest)

    monkeypatch.setattr(Evaluator, "run", counted)
    treatments, samples = _run(tiny_checkpoint, tmp_path / "run", **changes)
    assert estimated.treatments == len(treatments)
    assert estimated.blocks == len(done) and estimated.tokens == sum(done)
    assert estimated.samples == len(samples)
    assert estimated.passes > 0 and estimated.tokens_per_second > 0
    assert f"{len(treatments)} treatments" in describe(estimated, config)
