"""Submissions as records of Every Eval Ever, a shared schema for evaluation results.

Schema: `eval.schema.json`, version 0.3.0, as in the package every-eval-ever 0.3.0 and in the repository
evaleval/every_eval_ever. The package needs Python 3.12 and is no dependency; where it is installed, records are
checked against its schema before they are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import resources
from math import isfinite
from typing import Any

import jsonschema

from interventions.errors import UserError
from relbench.leaderboards.boards import MethodEntry, ModelEntry, Section, asked, make_boards
from relbench.leaderboards.exports.hub import SOURCE
from relbench.leaderboards.inert import web_link
from relbench.leaderboards.names import model_folder, revision_folder
from relbench.leaderboards.submission import Submission
from relbench.tables import Interval

SCHEMA_VERSION = "0.3.0"
RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")


def every_eval_ever(submission: Submission, relationship: str = "third_party") -> str:
    """A submission's record, as JSON.

    Recalls are one result a task; every scoring method has two a language, its off-target loss at 50 % target
    loss (where that is reached) and its mean selectivity.

    Args:
        submission: What is exported.
        relationship: Of the submitter to the model's developer, one of `RELATIONSHIPS`.

    Raises:
        UserError: The installed package's schema has another version, or refuses the record.
    """
    record = _record(submission, relationship)
    schema = _installed_schema()
    if schema is not None:
        _check(record, schema)
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _installed_schema() -> Mapping[str, Any] | None:
    try:
        text = (resources.files("every_eval_ever.schemas") / "eval.schema.json").read_text(encoding="utf-8")
    except (ImportError, OSError):
        return None
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def _check(record: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    version = schema.get("version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"the installed every-eval-ever has schema {version}, and records here are of {SCHEMA_VERSION}; "
            f"pip install every-eval-ever=={SCHEMA_VERSION}"
        )
    try:
        jsonschema.validate(record, schema)
    except jsonschema.ValidationError as error:
        raise UserError(
            f"the schema of every-eval-ever refuses {error.json_path}: {error.message}"
        ) from error


def _record(submission: Submission, relationship: str) -> dict[str, Any]:
    boards = make_boards([submission])
    made = datetime.strptime(submission.created, "%Y-%m-%d").replace(tzinfo=UTC)
    timestamp = str(int(made.timestamp()))
    name = submission.model.id.name
    results = [
        *(_recall(entry) for entry in boards.models if entry.recall is not None),
        *(
            result
            for section, entries in boards.methods.items()
            for entry in entries
            for result in _method(section, entry)
        ),
    ]
    # The day of the submission stands for the time of the record, so that the same submission gives the same file.
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"relbench.{submission.id}/{name.replace('/', '_')}/{timestamp}",
        "evaluation_timestamp": timestamp,
        "retrieved_timestamp": timestamp,
        "source_metadata": _source(submission, relationship),
        "model_info": _model(submission),
        "eval_library": {
            "name": "relbench",
            "version": _version(submission),
            "additional_details": _texts(submission.environment.get("packages", {})),
        },
        "evaluation_results": results,
    }


def _source(submission: Submission, relationship: str) -> dict[str, Any]:
    link, model = web_link(submission.submitter.link), submission.model.id
    return {
        "source_name": SOURCE,
        "source_type": "evaluation_run",
        "source_organization_name": submission.submitter.name,
        **({"source_organization_url": link} if link else {}),
        "evaluator_relationship": relationship,
        "additional_details": {
            "submission": f"{model_folder(model)}/{revision_folder(model)}/{submission.id}",
            "licence": submission.licence,
            "command": submission.command,
            "samples_sha256": submission.samples.sha256,
        },
    }


def _model(submission: Submission) -> dict[str, Any]:
    model = submission.model
    developer, slash, _ = model.id.name.partition("/")
    packages = submission.environment.get("packages", {})
    return {
        "name": model.id.name,
        "id": model.id.name,
        **({"developer": developer} if slash else {}),
        "inference_engine": {
            "name": "transformers",
            "version": str(packages.get("transformers", "unknown")),
        },
        "additional_details": {
            "deployment_type": "self_deployed",
            "model_availability": "open_weights",
            "revision": model.id.revision,
            "weights_fingerprint": model.id.fingerprint,
            "loaded_as": model.source,
            "dtype": model.dtype,
            "device": model.device,
        },
    }


def _version(submission: Submission) -> str:
    versions = sorted({str(method.code.get("relbench", "unknown")) for method in submission.methods})
    packages = submission.environment.get("packages", {})
    return str(packages.get("relbench-lm") or ", ".join(versions) or "unknown")


def _recall(entry: ModelEntry) -> dict[str, Any]:
    task = entry.task
    details = {"most_common_answer": _number(entry.majority), "testable": str(entry.testable).lower()}
    return {
        "evaluation_result_id": f"{task.relation}.{task.language}.recall",
        "evaluation_name": f"relbench.{task.relation}.{task.language}",
        "source_data": {
            "dataset_name": "relbench",
            "source_type": "other",
            "additional_details": _texts(
                {
                    "relation": task.relation,
                    "language": task.language,
                    "split": task.asked.split,
                    "task_hash": task.hash,
                    "facts": task.n,
                }
            ),
        },
        "metric_config": {
            "evaluation_description": "Share of facts whose greedy continuation is an accepted answer.",
            "metric_id": "relbench.recall",
            "metric_name": "recall",
            "metric_kind": "exact_match",
            "metric_unit": "proportion",
            "metric_parameters": {"num_fewshot": task.asked.shots, "template": task.asked.template},
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": _score(entry.recall, entry.interval, "Clopper–Pearson", details, task.n),
    }


def _method(section: Section, entry: MethodEntry) -> Iterator[dict[str, Any]]:
    name = f"relbench.methods.{entry.name}.{entry.language}"
    details = {
        "method": entry.name,
        "scores": entry.method.name if entry.method else "random",
        "unit_kinds": " ".join(section.kinds),
        "mode": section.mode,
        "positions": section.positions,
        "off_target_relations": entry.basis,
        "masked_relations": str(entry.targets),
        "language": entry.language,
        "data_version": section.data_version,
    }
    about = {
        "source_data": {
            "dataset_name": "relbench",
            "source_type": "other",
            "additional_details": _texts(
                {
                    "data_version": section.data_version,
                    "masked": len(section.concepts),
                    "split": asked(entry.submission).split,
                }
            ),
        }
    }
    if entry.off_target_at_half is not None:
        yield {
            "evaluation_result_id": f"{'-'.join(section.kinds)}.{section.mode}.{section.positions}.{name}.half",
            "evaluation_name": name,
            **about,
            "metric_config": _metric(
                "Mean loss on other relations where half of what is masked is lost.",
                "off_target_loss_at_half_target_loss",
                lower_is_better=True,
                least=0.0,
            ),
            "score_details": _score(
                entry.off_target_at_half, entry.off_target_at_half_interval, "bootstrap", details
            ),
        }
    if entry.mean_selectivity is not None:
        yield {
            "evaluation_result_id": f"{'-'.join(section.kinds)}.{section.mode}.{section.positions}.{name}.mean",
            "evaluation_name": name,
            **about,
            "metric_config": _metric(
                "Target loss − off-target loss, mean over the mask sizes.",
                "mean_selectivity",
                lower_is_better=False,
                least=-1.0,
            ),
            "score_details": _score(
                entry.mean_selectivity, entry.mean_selectivity_interval, "bootstrap", details
            ),
        }


def _metric(description: str, name: str, *, lower_is_better: bool, least: float) -> dict[str, Any]:
    return {
        "evaluation_description": description,
        "metric_id": f"relbench.{name}",
        "metric_name": name.replace("_", " "),
        "metric_kind": name,
        "metric_unit": "proportion",
        "lower_is_better": lower_is_better,
        "score_type": "continuous",
        "min_score": least,
        "max_score": 1.0,
    }


def _score(
    value: float | None,
    interval: Interval | None,
    method: str,
    details: Mapping[str, str],
    n: int | None = None,
) -> dict[str, Any]:
    """A score; an interval with a bound that is not reached is put in words, since JSON has no infinity."""
    found: dict[str, Any] = {"score": value, "details": dict(details)}
    uncertainty: dict[str, Any] = {}
    if interval is not None and all(map(isfinite, interval)):
        uncertainty["confidence_interval"] = {
            "lower": interval.low,
            "upper": interval.high,
            "confidence_level": 0.95,
            "method": method,
        }
    elif interval is not None:
        found["details"]["confidence_interval"] = f"from {_number(interval.low)}, upper bound not reached"
    if n is not None:
        uncertainty["num_samples"] = n
    return {**found, "uncertainty": uncertainty} if uncertainty else found


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in values.items()}


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"
