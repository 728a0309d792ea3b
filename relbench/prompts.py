"""Probes as the prompts that scoring methods read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interventions.errors import UserError
from interventions.prompts import Prompt
from relbench.languages import LANGUAGES
from relbench.probes import DEFAULT_TEMPLATE, Probe, fewshot_prefix, probes
from relbench.relations import relation_names


def concept(relation: str, language: str) -> str:
    """The name of a relation in one language, as scores and masks carry it: `<relation>@<lang>`."""
    return f"{relation}@{language}"


def parse_concept(text: str) -> tuple[str, str]:
    """Relation and language of a concept.

    Raises:
        UserError: Not of the form `<relation>@<lang>`, or no such relation or language.
    """
    relation, at, language = text.rpartition("@")
    if not at or language not in LANGUAGES:
        raise UserError(f"{text!r} is no concept; write <relation>@<lang>, such as country_capital@en")
    if relation not in relation_names():
        raise UserError(f"unknown relation {relation!r}; the tasks folder has {', '.join(relation_names())}")
    return relation, language


def prompt_from_probe(probe: Probe, template: str, prefix: str = "") -> Prompt:
    """`probe`, worded by `template`, as a prompt with few-shot examples `prefix` before it."""
    span = probe.subject_span
    return Prompt(
        text=prefix + probe.prompt,
        answer=probe.delimiter + probe.answer,
        accepted=tuple(probe.delimiter + answer for answer in probe.accepted),
        concept=concept(probe.relation, probe.language),
        id=probe.fact_id,
        subject_id=probe.subject_id,
        answer_id=probe.answer_id,
        subject_span=None if span is None else (span[0] + len(prefix), span[1] + len(prefix)),
        template=template,
    )


def prompts(
    relations: Iterable[str],
    languages: Sequence[str],
    split: str = "detect",
    template: str = DEFAULT_TEMPLATE,
    *,
    shots: int = 0,
    shots_seed: int = 0,
    limit: int | None = None,
) -> list[Prompt]:
    """The prompts of several relations and languages, relation by relation.

    Args:
        relations: Names of relations.
        languages: Language codes.
        split: Which facts.
        template: Which template.
        shots: Number of few-shot examples before each prompt.
        shots_seed: Seed of their choice, as in the lm-eval tasks.
        limit: At most so many prompts of each relation and language, the first of the split.

    Raises:
        UserError: Unknown names, no facts, or fewer few-shot examples than asked for.
    """
    gathered = []
    for relation in relations:
        for language in languages:
            prefix = ""
            if shots:
                examples = probes(relation, language, "shots", template, shots_seed=shots_seed)
                if len(examples) < shots:
                    raise UserError(f"{relation} has {len(examples)} few-shot examples, not {shots}")
                prefix = fewshot_prefix(examples[:shots])
            for probe in probes(relation, language, split, template)[:limit]:
                gathered.append(prompt_from_probe(probe, template, prefix))
    return gathered
