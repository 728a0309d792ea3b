"""Checks of the probe data: everything that would make a number wrong, found before a model is loaded."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from interventions.errors import UserError
from relbench.languages import LANGUAGES
from relbench.probes import DEFAULT_TEMPLATE, is_copyable
from relbench.relations import SPLITS, TEMPLATES, Fact, Relation, load_facts, load_relation
from relbench.splits import N_SHOTS, read_registry
from relbench.taskfiles import languages_of

# Below this a relation's recall says little; the format's promise to users.
MIN_FACTS = 60
MAX_SHARE = 0.25


@dataclass(frozen=True)
class Finding:
    """One thing the check found: errors make numbers wrong, warnings are for the author to weigh."""

    relation: str
    language: str | None
    level: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        where = self.relation if self.language is None else f"{self.relation} [{self.language}]"
        return f"{where}: {self.message}"


@dataclass(frozen=True)
class Summary:
    """Counts of a relation in one language, for the table that `relbench tasks check` prints."""

    relation: str
    language: str
    per_split: dict[str, int]
    answers: int
    majority: float
    unseen: float
    copyable: float


def check(relations: Sequence[str]) -> list[Finding]:
    """Everything wrong or doubtful in the files of `relations`."""
    findings: list[Finding] = []
    everything: dict[str, tuple[Relation, tuple[Fact, ...]]] = {}
    for name in relations:
        try:
            everything[name] = (load_relation(name), load_facts(name))
        except UserError as error:
            findings.append(Finding(name, None, "error", str(error)))
    for name, (relation, facts) in everything.items():
        findings += _templates(relation)
        findings += _identities(name, facts)
        findings += _splits(name, facts)
        for language in relation.languages:
            findings += _labels(name, language, facts)
            findings += _balance(name, language, facts)
    findings += _across({name: facts for name, (_, facts) in everything.items()})
    return findings


def summaries(relations: Sequence[str]) -> list[Summary]:
    """A summary for every relation and language that can be a task."""
    table = []
    for name in relations:
        facts = load_facts(name)
        for language in languages_of(load_relation(name)):
            present = [fact for fact in facts if fact.has_language(language)]
            tested = [fact for fact in present if fact.split == "eval"]
            seen = {o.id for fact in present if fact.split == "detect" for o in fact.objects}
            answers = Counter(fact.answer_id for fact in tested)
            table.append(
                Summary(
                    relation=name,
                    language=language,
                    per_split={split: sum(f.split == split for f in present) for split in SPLITS},
                    answers=len({fact.answer_id for fact in present}),
                    majority=max(answers.values()) / len(tested),
                    unseen=sum(not any(o.id in seen for o in f.objects) for f in tested) / len(tested),
                    copyable=sum(is_copyable(f.subject[language], f.accepted(language)) for f in tested)
                    / len(tested),
                )
            )
    return table


def check_tokens(
    relations: Sequence[str], languages: Sequence[str], encode: Callable[[str], list[int]]
) -> list[Finding]:
    """What a tokenizer makes of prompts and answers, in every template.

    Args:
        relations, languages: What to check.
        encode: Text → token ids, as lm-eval would call it.

    Returns:
        Errors for answers without a token of their own, warnings for boundaries that move (one a
        template) and for accepted answers whose tokens begin another object's.
    """
    findings: list[Finding] = []
    for name in relations:
        relation = load_relation(name)
        facts = load_facts(name)
        for language in languages:
            if language in relation.languages:
                present = [fact for fact in facts if fact.has_language(language)]
                findings += _tokens(relation, language, present, encode)
    return findings


def _tokens(
    relation: Relation, language: str, facts: Sequence[Fact], encode: Callable[[str], list[int]]
) -> Iterator[Finding]:
    by_tokens: dict[tuple[int, ...], tuple[str, str]] = {}
    for name, template in relation.templates[language].items():
        moved: list[str] = []
        for fact in facts:
            prompt = template.replace("{subject}", fact.subject[language]) + LANGUAGES[language].delimiter
            # Where lm-eval splits: it moves white space at the end of the prompt to the answer.
            context = encode(prompt.rstrip())
            for object_ in fact.objects:
                for answer in object_.labels.get(language, ()):
                    whole = encode(prompt + answer)
                    own = tuple(whole[len(context) :])
                    if not own:
                        message = f"{answer!r} has no token of its own after {prompt!r}"
                        yield Finding(relation.name, language, "error", message)
                    elif whole[: len(context)] != context:
                        moved.append(f"{answer!r} after {prompt!r}")
                    else:
                        by_tokens.setdefault(own, (object_.id, answer))
        if moved:
            message = (
                f"template {name!r}: the token boundary moves before {len(moved)} answers, such as {moved[0]}"
            )
            yield Finding(relation.name, language, "warning", message)
    yield from _token_prefixes(relation.name, language, by_tokens)


def _token_prefixes(
    name: str, language: str, by_tokens: dict[tuple[int, ...], tuple[str, str]]
) -> Iterator[Finding]:
    for tokens, (identity, answer) in by_tokens.items():
        for length in range(1, len(tokens)):
            other = by_tokens.get(tokens[:length])
            if other and other[0] != identity:
                yield Finding(
                    name,
                    language,
                    "warning",
                    f"the tokens of {other[1]!r} begin those of {answer!r}: either would count as the first",
                )


def _templates(relation: Relation) -> Iterator[Finding]:
    for language, templates in relation.templates.items():
        if language not in LANGUAGES:
            yield Finding(relation.name, language, "error", "unknown language in templates")
            continue
        if DEFAULT_TEMPLATE not in templates:
            yield Finding(relation.name, language, "error", f"no template {DEFAULT_TEMPLATE!r}")
        for missing in sorted(set(TEMPLATES) - templates.keys() - {DEFAULT_TEMPLATE}):
            yield Finding(relation.name, language, "warning", f"no template {missing!r}")
        for name, text in templates.items():
            if text.count("{subject}") != 1:
                yield Finding(
                    relation.name, language, "error", f"template {name!r} needs exactly one {{subject}}"
                )
            yield from _text(relation.name, language, f"template {name!r}", text)


def _text(relation: str, language: str, what: str, text: str) -> Iterator[Finding]:
    if not text.strip():
        yield Finding(relation, language, "error", f"{what} is empty")
    elif text != " ".join(text.split()):
        yield Finding(relation, language, "error", f"{what} has stray white space: {text!r}")
    if text != unicodedata.normalize("NFC", text):
        yield Finding(relation, language, "error", f"{what} is not in Unicode form NFC: {text!r}")


def _identities(name: str, facts: Sequence[Fact]) -> Iterator[Finding]:
    for identity, number in Counter(fact.id for fact in facts).items():
        if number > 1:
            yield Finding(name, None, "error", f"{number} facts have the id {identity!r}")
    for subject, number in Counter(fact.subject_id for fact in facts).items():
        if number > 1:
            yield Finding(
                name, None, "error", f"{number} facts are about {subject!r}; put several answers into one"
            )
    for fact in facts:
        if not fact.id.startswith(f"{name}."):
            yield Finding(name, None, "error", f"fact id {fact.id!r} does not start with {name!r} and a dot")
    if len(facts) < MIN_FACTS:
        yield Finding(name, None, "warning", f"{len(facts)} facts; under {MIN_FACTS} say little")


def _splits(name: str, facts: Sequence[Fact]) -> Iterator[Finding]:
    missing = sum(fact.split is None for fact in facts)
    if missing:
        yield Finding(name, None, "error", f"{missing} facts have no split; run `relbench tasks split`")
        return
    registry = read_registry()
    for fact in facts:
        fixed = registry.get(fact.subject_id)
        if fixed != fact.split:
            yield Finding(
                name, None, "error", f"{fact.id} is in {fact.split}, the registry has {fixed} for its subject"
            )
    shots = sum(fact.split == "shots" for fact in facts)
    if shots < N_SHOTS:
        yield Finding(name, None, "warning", f"{shots} few-shot examples instead of {N_SHOTS}")


def _labels(name: str, language: str, facts: Sequence[Fact]) -> Iterator[Finding]:
    lacking = [fact.id for fact in facts if not fact.has_language(language)]
    if lacking:
        yield Finding(name, language, "warning", f"{len(lacking)} facts have no label, such as {lacking[0]}")
    owners: dict[str, set[str]] = defaultdict(set)
    subjects: dict[str, set[str]] = defaultdict(set)
    for fact in facts:
        if not fact.has_language(language):
            continue
        subjects[fact.subject[language].casefold()].add(fact.subject_id)
        yield from _text(name, language, f"subject of {fact.id}", fact.subject[language])
        for object_ in fact.objects:
            labels = object_.labels.get(language, ())
            if len(set(labels)) < len(labels):
                yield Finding(name, language, "error", f"{fact.id} repeats an answer: {', '.join(labels)}")
            for label in labels:
                owners[label.casefold()].add(object_.id)
                yield from _text(name, language, f"an answer of {fact.id}", label)
    for label, identities in sorted(owners.items()):
        if len(identities) > 1:
            yield Finding(
                name, language, "error", f"{label!r} names several objects: {', '.join(sorted(identities))}"
            )
    for label, identities in sorted(subjects.items()):
        if len(identities) > 1:
            yield Finding(
                name, language, "error", f"{label!r} names several subjects: {', '.join(sorted(identities))}"
            )


def _balance(name: str, language: str, facts: Sequence[Fact]) -> Iterator[Finding]:
    tested = [fact for fact in facts if fact.split == "eval" and fact.has_language(language)]
    if not tested:
        return
    answer, number = Counter(fact.answer_id for fact in tested).most_common(1)[0]
    if number > MAX_SHARE * len(tested):
        yield Finding(name, language, "warning", f"{answer} answers {number} of {len(tested)} eval facts")


def _across(relations: dict[str, tuple[Fact, ...]]) -> Iterator[Finding]:
    """The same entity has the same labels and split everywhere."""
    labels: dict[tuple[str, str], tuple[str, str]] = {}
    for name, facts in relations.items():
        for fact in facts:
            for language, label in fact.subject.items():
                known = labels.setdefault((fact.subject_id, language), (label, name))
                if known[0] != label:
                    yield Finding(
                        name,
                        language,
                        "warning",
                        f"{fact.subject_id} is {label!r} here and {known[0]!r} in {known[1]}",
                    )
