"""Probe tasks as lm-eval builds them, with their requests, ready to be scored many times."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from interventions.errors import UserError
from relbench.paths import tasks_dir
from relbench.probes import DEFAULT_TEMPLATE
from relbench.samples import Sample

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task


@dataclass(frozen=True)
class BuiltTask:
    """An lm-eval task with its documents and requests.

    Attributes:
        name: Task name.
        template, shots: Of its prompts.
        task: lm-eval's task.
        docs: Documents by document id.
        instances: Requests, document by document.
        shot_answers: Identities of the answers that stand in the few-shot examples.
    """

    name: str
    template: str
    shots: int
    task: Task
    docs: Mapping[int, Mapping[str, Any]]
    instances: tuple[Instance, ...]
    shot_answers: frozenset[str]


def build_tasks(
    names: Sequence[str], *, shots: int, metadata: Mapping[str, Any] | None = None, limit: int | None = None
) -> list[BuiltTask]:
    """Load probe tasks and make their requests.

    Args:
        names: Tasks, groups or tags of the tasks folder.
        shots: Few-shot examples before every prompt.
        metadata: What the documents depend on: `template`, `split`, `shots_seed`.
        limit: At most so many documents a task, the first ones.

    Raises:
        UserError: Unknown or overlapping names, or more shots than there are examples.
    """
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(
        include_path=str(tasks_dir()), include_defaults=False, metadata=dict(metadata or {})
    )
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise UserError(f"unknown task {unknown[0]!r}; `relbench tasks list` shows relations and languages")
    try:
        loaded = manager.load(list(names))["tasks"]
    except ValueError as error:
        raise UserError(f"the tasks overlap: {error}; name each task once") from error
    template = str((metadata or {}).get("template", DEFAULT_TEMPLATE))
    return [_build(name, template, task, shots, limit) for name, task in loaded.items()]


def _build(name: str, template: str, task: Task, shots: int, limit: int | None) -> BuiltTask:
    examples = list(task.fewshot_docs() or ())
    if shots > len(examples):
        raise UserError(f"{name} has {len(examples)} few-shot examples, not {shots}")
    docs = dict(task.doc_iterator(rank=0, limit=limit, world_size=1))
    instances: list[Instance] = []
    for doc_id, doc in docs.items():
        made = task.construct_requests(
            doc=doc, ctx=task.fewshot_context(doc, num_fewshot=shots), metadata=(name, doc_id, 1)
        )
        instances.extend(made if isinstance(made, list) else [made])
    return BuiltTask(
        name,
        template,
        shots,
        task,
        docs,
        tuple(instances),
        frozenset(doc["answer_id"] for doc in examples[:shots]),
    )


def with_documents(built: BuiltTask, doc_ids: Collection[int]) -> BuiltTask:
    """The same task with some of its documents only."""
    return replace(
        built,
        docs={number: doc for number, doc in built.docs.items() if number in doc_ids},
        instances=tuple(one for one in built.instances if int(one.doc_id or 0) in doc_ids),
    )


def samples_of(built: BuiltTask, scores: Sequence[Any], intervention: str) -> list[Sample]:
    """A sample record for every document of a task.

    Args:
        built: The task.
        scores: A model response for each of its requests, in order.
        intervention: Id of what was done to the model, "baseline" for nothing.
    """
    by_doc: dict[int, list[tuple[Instance, Any]]] = {}
    for instance, score in zip(built.instances, scores, strict=True):
        by_doc.setdefault(int(instance.doc_id or 0), []).append((instance, score))
    return [
        _sample(
            built, doc_id, [instance for instance, _ in pairs], [score for _, score in pairs], intervention
        )
        for doc_id, pairs in by_doc.items()
    ]


def _sample(
    built: BuiltTask, doc_id: int, instances: Sequence[Instance], scores: Sequence[Any], intervention: str
) -> Sample:
    from lm_eval.utils import handle_non_serializable, hash_string

    doc = built.docs[doc_id]
    metrics = built.task.process_results(doc, list(scores))
    # As lm-eval hashes them, so that our records pair with its --log_samples output.
    text = json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
    return Sample(
        intervention=intervention,
        task=built.name,
        relation=doc["relation"],
        language=doc["language"],
        template=built.template,
        shots=built.shots,
        doc_id=doc_id,
        fact_id=doc["fact_id"],
        subject_id=doc["subject_id"],
        answer_id=doc["answer_id"],
        answer_seen=doc["answer_seen"],
        copyable=doc["copyable"],
        answer_in_shots=doc["answer_id"] in built.shot_answers,
        filter="none",
        doc_hash=hash_string(text),
        prompt_hash=hash_string(instances[0].args[0]),
        target_hash=hash_string(str(built.task.doc_to_target(doc))),
        recall=int(metrics["recall"]),
        answer_logprob=metrics["answer_logprob"],
        first_token_rank=round(1 / metrics["first_token_mrr"]) if "first_token_mrr" in metrics else None,
    )


def responses_of(built: BuiltTask, scores: Sequence[Any]) -> dict[int, list[list[Any]]]:
    """Document → `[log probability, is greedy]` of each of its requests, plain JSON values."""
    said: dict[int, list[list[Any]]] = {}
    for instance, score in zip(built.instances, scores, strict=True):
        said.setdefault(int(instance.doc_id or 0), []).append([float(score[0]), bool(score[1])])
    return said


def logged_sample(built: BuiltTask, record: Mapping[str, Any]) -> dict[str, Any]:
    """What `lm_eval --log_samples` writes for a document.

    Args:
        built: The task.
        record: A sample's fields, and `resps`, the document's entry of `responses_of`.
    """
    doc_id = record["doc_id"]
    doc = built.docs[doc_id]
    requests = [one.args for one in built.instances if int(one.doc_id or 0) == doc_id]
    metrics = {"recall": record["recall"], "answer_logprob": record["answer_logprob"]}
    if record["first_token_rank"]:
        metrics["first_token_mrr"] = 1 / record["first_token_rank"]
    return {
        "doc_id": doc_id,
        "doc": doc,
        "target": built.task.doc_to_target(doc),
        "arguments": {
            f"gen_args_{number}": {f"arg_{place}": text for place, text in enumerate(arguments)}
            for number, arguments in enumerate(requests)
        },
        "resps": [[said] for said in record["resps"]],
        "filtered_resps": record["resps"],
        "filter": record["filter"],
        "metrics": sorted(metrics),
        "doc_hash": record["doc_hash"],
        "prompt_hash": record["prompt_hash"],
        "target_hash": record["target_hash"],
        **metrics,
    }
