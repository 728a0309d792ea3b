"""What the installed tasks ask: the questions that a submission's samples must be answers to.

Made from the probes themselves, without building lm-eval's tasks, which takes seconds for each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from interventions.errors import UserError
from interventions.files import sha256_json
from relbench.languages import LANGUAGES
from relbench.leaderboards.samples_file import QuestionKey, question_key
from relbench.probes import Probe, fewshot_prefix, probes
from relbench.relations import load_facts, load_relation
from relbench.sweep_config import SweepConfig
from relbench.taskfiles import task_name
from relbench.taskhooks import document

Questions = Mapping[QuestionKey, Mapping[str, Any]]


def task_names(config: SweepConfig) -> dict[str, tuple[str, str]]:
    """Task → its relation and language, of all that a sweep evaluates."""
    return {
        task_name(relation, code): (relation, code)
        for relation in config.relations
        for code in config.languages
    }


@lru_cache(maxsize=4096)
def task_hash(relation: str, language: str) -> str:
    """Hash of everything that a task's prompts and answers are made of: templates and facts in its language.

    Raises:
        UserError: There is no such relation.
    """
    facts = [
        [
            fact.id,
            fact.subject_id,
            fact.split,
            fact.subject[language],
            [[one.id, list(one.labels.get(language, ()))] for one in fact.objects],
        ]
        for fact in load_facts(relation)
        if fact.has_language(language)
    ]
    templates = dict(load_relation(relation).templates.get(language, {}))
    return sha256_json([templates, LANGUAGES[language].delimiter, facts])


def data_version(hashes: Mapping[str, str]) -> str:
    """Name of a set of tasks: 16 digits that differ when a task is another or holds other data.

    Args:
        hashes: Task → its hash.
    """
    return sha256_json(dict(hashes))[:16]


def questions_of(config: SweepConfig, task: str) -> Questions:
    """The questions of one task in every template and with every number of shots of a sweep.

    Raises:
        UserError: There is no such relation or template, or there are too few few-shot examples.
    """
    relation, language = task_names(config)[task]
    found = {}
    for template in config.templates:
        for shots in config.shots:
            asked = _questions(
                relation, language, config.split, template, shots, config.shots_seed, config.limit
            )
            found.update({question_key(one): one for one in asked})
    return found


@lru_cache(maxsize=2048)
def _questions(
    relation: str, language: str, split: str, template: str, shots: int, shots_seed: int, limit: int | None
) -> Sequence[Mapping[str, Any]]:
    examples = probes(relation, language, "shots", template, shots_seed=shots_seed)
    if shots > len(examples):
        raise UserError(f"{relation} has {len(examples)} few-shot examples, not {shots}")
    prefix, in_shots = fewshot_prefix(examples[:shots]), {probe.answer_id for probe in examples[:shots]}
    return tuple(
        _question(probe, number, template, shots, prefix, in_shots)
        for number, probe in enumerate(probes(relation, language, split, template)[:limit])
    )


def _question(
    probe: Probe, number: int, template: str, shots: int, prefix: str, in_shots: set[str]
) -> dict[str, Any]:
    doc = document(probe)
    return {
        "task": task_name(probe.relation, probe.language),
        "relation": probe.relation,
        "language": probe.language,
        "template": template,
        "shots": shots,
        "doc_id": number,
        "fact_id": probe.fact_id,
        "subject_id": probe.subject_id,
        "answer_id": probe.answer_id,
        "answer_seen": probe.answer_seen,
        "copyable": probe.copyable,
        "answer_in_shots": probe.answer_id in in_shots,
        "filter": "none",
        # As lm-eval hashes them.
        "doc_hash": _sha(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _sha(prefix + probe.prompt),
        "target_hash": _sha(str(doc["gold"])),
    }


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
