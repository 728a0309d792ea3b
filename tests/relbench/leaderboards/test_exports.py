"""Exports: what Hugging Face's own classes read back, and what the schema of Every Eval Ever asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from interventions.errors import UserError
from relbench.commands.leaderboard import leaderboard
from relbench.leaderboards.exports.every_eval_ever import SCHEMA_VERSION, every_eval_ever
from relbench.leaderboards.exports.hub import eval_results, model_index
from relbench.leaderboards.submission import Submitter
from tests.relbench.leaderboards.entries import RELATIONS, english, two_languages, write

hub = pytest.importorskip("huggingface_hub")

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
# What version 0.3.0 of Every Eval Ever's schema asks of the parts that are written here.
FACTS: dict[str, Any] = {
    "type": "object",
    "required": [
        "schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "model_info", "eval_library",
        "evaluation_results",
    ],
    "properties": {
        "schema_version": {"const": "0.3.0"},
        "evaluation_id": {"type": "string", "pattern": "^[^/]+/[^/]+/[0-9]+$"},
        "evaluation_timestamp": {"type": "string"},
        "retrieved_timestamp": {"type": "string", "pattern": "^[0-9]+$"},
        "source_metadata": {
            "type": "object",
            "required": ["source_type", "source_organization_name", "evaluator_relationship"],
            "properties": {
                "source_type": {"enum": ["documentation", "evaluation_run"]},
                "evaluator_relationship": {"enum": ["first_party", "third_party", "collaborative", "other"]},
                "additional_details": _TEXTS,
            },
        },
        "model_info": {
            "type": "object",
            "required": ["name", "id", "additional_details"],
            "properties": {
                "additional_details": {**_TEXTS, "required": ["deployment_type", "model_availability"]},
            },
        },
        "eval_library": {
            "type": "object",
            "required": ["name", "version"],
            "properties": {"version": {"type": "string"}, "additional_details": _TEXTS},
        },
        "evaluation_results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["evaluation_name", "source_data", "metric_config", "score_details"],
                "properties": {
                    "source_data": {
                        "type": "object",
                        "required": ["dataset_name", "source_type"],
                        "properties": {"source_type": {"const": "other"}, "additional_details": _TEXTS},
                    },
                    "metric_config": {
                        "type": "object",
                        "required": ["lower_is_better", "score_type", "min_score", "max_score"],
                        "properties": {
                            "lower_is_better": {"type": "boolean"},
                            "score_type": {"const": "continuous"},
                            "min_score": {"type": "number"},
                            "max_score": {"type": "number"},
                        },
                    },
                    "score_details": {
                        "type": "object",
                        "required": ["score"],
                        "properties": {
                            "score": {"type": "number"},
                            "details": _TEXTS,
                            "uncertainty": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {
                                    "num_samples": {"type": "integer"},
                                    "confidence_interval": {
                                        "type": "object",
                                        "required": ["lower", "upper"],
                                        "properties": {
                                            "lower": {"type": "number"},
                                            "upper": {"type": "number"},
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
    "additionalProperties": False,
}  # fmt: skip


def test_model_index_is_read_back_by_the_hub_library() -> None:
    from huggingface_hub.repocard_data import model_index_to_eval_results

    raw = yaml.safe_load(model_index(two_languages()))
    name, results = model_index_to_eval_results(raw["model-index"])
    assert name == "org/other"
    assert len(results) == 2 * len(RELATIONS)
    (capital,) = [one for one in results if one.dataset_config == "country_capital_de"]
    assert (capital.metric_value, capital.metric_type, capital.dataset_split) == (
        24 / 30,
        "exact_match",
        "eval",
    )
    assert capital.dataset_revision == two_languages().tasks["relbench_country_capital_de"].hash
    assert capital.dataset_args["num_few_shot"] == 5
    assert (capital.source_name, capital.source_url) == ("relbench leaderboards", "https://example.org/a")
    # A model card with this metadata is one that the library loads.
    card = hub.ModelCard(f"---\n{yaml.safe_dump(raw)}---\n# card\n")
    assert len(card.data.eval_results) == len(results)


def test_without_an_address_there_is_no_source_to_name() -> None:
    nobody = replace(english(), submitter=Submitter("A. Person", ""))
    (result, *_) = yaml.safe_load(model_index(nobody))["model-index"][0]["results"]
    assert "source" not in result


def test_eval_results_are_read_back_by_the_hub_library() -> None:
    raw = yaml.safe_load(eval_results(two_languages(), "org/facts"))
    entries = hub.parse_eval_result_entries(raw)
    assert len(entries) == 2 * len(RELATIONS)
    (capital,) = [one for one in entries if one.task_id == "country_capital_de"]
    assert (capital.dataset_id, capital.value, capital.date) == ("org/facts", 24 / 30, "2026-01-31")


def test_what_has_no_recalls_is_not_exported_as_a_models_results() -> None:
    with pytest.raises(UserError, match="no recalls"):
        model_index(replace(english(), boards=("methods",)))


@pytest.mark.parametrize("made", [english, two_languages])
def test_every_eval_ever_records_have_what_the_schema_asks_for(made: Any) -> None:
    text = every_eval_ever(made())
    assert text == every_eval_ever(made())
    record = json.loads(text)
    jsonschema.validate(record, FACTS)
    identifiers = [one["evaluation_result_id"] for one in record["evaluation_results"]]
    assert len(set(identifiers)) == len(identifiers)
    for result in record["evaluation_results"]:
        metric, score = result["metric_config"], result["score_details"]
        assert metric["min_score"] <= score["score"] <= metric["max_score"]


def test_every_eval_ever_records_have_the_numbers() -> None:
    record = json.loads(every_eval_ever(english(), "first_party"))
    found = {one["evaluation_result_id"]: one for one in record["evaluation_results"]}
    recall = found["country_capital.en.recall"]["score_details"]
    assert (recall["score"], recall["uncertainty"]["num_samples"]) == (1.0, 30)
    half = found["act.zero.all.relbench.methods.good.all.half"]
    assert half["score_details"]["score"] == pytest.approx(0.1)
    assert half["metric_config"]["lower_is_better"] is True
    # What does not reach half has no such result, and still a mean selectivity.
    assert "act.zero.all.relbench.methods.poor.all.half" not in found
    assert found["act.zero.all.relbench.methods.poor.all.mean"]["metric_config"]["lower_is_better"] is False
    assert record["source_metadata"]["evaluator_relationship"] == "first_party"
    # Midnight of the submission's day, in seconds of the epoch.
    assert record["retrieved_timestamp"] == "1769817600"


def test_every_eval_ever_records_pass_the_schema_of_the_package() -> None:
    schemas = pytest.importorskip("every_eval_ever.schema", reason="every-eval-ever needs Python 3.12")
    assert schemas.get_schema_version() == SCHEMA_VERSION
    jsonschema.validate(json.loads(every_eval_ever(two_languages())), schemas.schema_json())


def test_the_installed_schema_is_asked_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from relbench.leaderboards.exports import every_eval_ever as module

    monkeypatch.setattr(module, "_installed_schema", lambda: {"version": "0.2.2"})
    with pytest.raises(UserError, match=r"schema 0\.2\.2.*every-eval-ever==0\.3\.0"):
        every_eval_ever(english())
    refusing = {"version": SCHEMA_VERSION, "properties": {"schema_version": {"const": "none"}}}
    monkeypatch.setattr(module, "_installed_schema", lambda: refusing)
    with pytest.raises(UserError, match=r"refuses \$\.schema_version"):
        every_eval_ever(english())


def test_the_command_writes_each_form_and_refuses_options_of_another(tmp_path: Path) -> None:
    submission, out = str(write(english(), tmp_path)), tmp_path / "out"

    def export(*arguments: str) -> Any:
        return CliRunner().invoke(leaderboard, ["export", submission, "-o", str(out), *arguments])

    assert export("--as", "model-index").exit_code == 0
    assert out.read_text() == model_index(english())
    assert export("--as", "every-eval-ever", "--relationship", "other").exit_code == 0
    assert out.read_text() == every_eval_ever(english(), "other")
    assert export("--as", "eval-results", "--dataset", "org/facts").exit_code == 0
    assert out.read_text() == eval_results(english(), "org/facts")
    out.unlink()
    for wrong in (
        ["--as", "eval-results"],
        ["--as", "model-index", "--dataset", "org/facts"],
        ["--as", "model-index", "--relationship", "other"],
    ):
        assert isinstance(export(*wrong).exception, UserError)
    assert not out.exists()
