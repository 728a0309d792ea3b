"""Evaluation results as Hugging Face keeps them: a model card's `model-index`, and `.eval_results/` files.

Both are made and checked by huggingface_hub's own classes. What a model recalls goes in; how well a scoring method
finds units is no property of the model, and stays out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from interventions.errors import UserError
from relbench.leaderboards.boards import ModelEntry, make_boards
from relbench.leaderboards.inert import web_link
from relbench.leaderboards.submission import Submission

SOURCE = "relbench leaderboards"
_MISSING = "this export needs huggingface_hub; install relbench-lm[hub]"


def model_index(submission: Submission) -> str:
    """The `model-index` metadata of a model card, as YAML.

    Raises:
        UserError: huggingface_hub is missing, or the submission has no recalls.
    """
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError as error:
        raise UserError(_MISSING) from error
    link = web_link(submission.submitter.link)
    results = [
        EvalResult(
            task_type="text-generation",
            task_name="factual recall",
            dataset_type="relbench",
            dataset_name=f"relbench {entry.task.relation} ({entry.task.language})",
            dataset_config=f"{entry.task.relation}_{entry.task.language}",
            dataset_split=entry.task.asked.split,
            dataset_revision=entry.task.hash,
            dataset_args={
                "num_few_shot": entry.task.asked.shots,
                "shots_seed": entry.task.asked.shots_seed,
                "template": entry.task.asked.template,
                "facts": entry.task.n,
            },
            metric_type="exact_match",
            metric_name="recall (greedy continuation is an accepted answer)",
            metric_value=entry.recall,
            metric_args=_bounds(entry),
            source_name=SOURCE if link else None,
            source_url=link,
        )
        for entry in _recalls(submission)
    ]
    card = ModelCardData(model_name=submission.model.id.name, eval_results=results)
    return _yaml({"model-index": card.to_dict()["model-index"]})


def eval_results(submission: Submission, dataset: str) -> str:
    """A file for a model repository's `.eval_results/`, as YAML.

    Args:
        submission: Whose recalls.
        dataset: The benchmark's dataset on the hub, `<org>/<name>`: such results belong to one.

    Raises:
        UserError: huggingface_hub is missing or too old, or the submission has no recalls.
    """
    try:
        from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    except ImportError as error:
        raise UserError(
            "this export needs a huggingface_hub that knows .eval_results files; pip install -U huggingface_hub"
        ) from error
    link = web_link(submission.submitter.link)
    entries = [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=f"{entry.task.relation}_{entry.task.language}",
            value=entry.recall,
            date=submission.created,
            source_url=link,
            source_name=SOURCE if link else None,
            notes=f"greedy recall, {entry.task.asked.shots} shots, {entry.task.asked.template} template, "
            f"{entry.task.n} facts, task {entry.task.hash[:12]}",
        )
        for entry in _recalls(submission)
    ]
    return _yaml(eval_result_entries_to_yaml(entries))


def _recalls(submission: Submission) -> Iterator[ModelEntry]:
    found = [entry for entry in make_boards([submission]).models if entry.recall is not None]
    if not found:
        raise UserError(f"{submission.id} is not for the models board: it has no recalls to export")
    yield from found


def _bounds(entry: ModelEntry) -> dict[str, float] | None:
    return (
        None
        if entry.interval is None
        else {"interval_low": entry.interval.low, "interval_high": entry.interval.high}
    )


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text
