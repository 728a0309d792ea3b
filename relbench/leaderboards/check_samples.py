"""A submission's samples beside what the installed tasks ask: every question once, every answer once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from relbench.leaderboards.checks import Found
from relbench.leaderboards.limits import SAMPLES_BYTES
from relbench.leaderboards.problems import Refused, quoted
from relbench.leaderboards.questions import Questions, questions_of, task_hash, task_names
from relbench.leaderboards.reading import open_regular
from relbench.leaderboards.samples_file import Question, QuestionKey, read_questions, samples_in
from relbench.leaderboards.submission import Submission
from relbench.samples import Sample
from relbench.sweep_config import SweepConfig

_BLOCK = 2**20


@dataclass(frozen=True)
class Read:
    """What was read of a samples file.

    Attributes:
        samples: Its samples, as far as they could be read.
        found: Everything that is wrong with them.
    """

    samples: list[Sample] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)


def read_checked(submission: Submission, config: SweepConfig) -> Read:
    """Read a submission's samples and compare them with the questions of the installed tasks.

    Of tasks whose data changed since, only the number of questions is known.
    """
    assert submission.path is not None
    read = Read()
    try:
        path = submission.path.parent / submission.samples.path
        if path.parent.is_symlink():
            raise Refused("expected a file in a folder, found a symbolic link, which is not followed")
        digest = hashlib.sha256()
        with open_regular(path, SAMPLES_BYTES) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        if digest.hexdigest() != submission.samples.sha256:
            found = f"expected the hash {submission.samples.sha256}, found {digest.hexdigest()}"
            read.found.append(Found("", found))
        _compare(submission, config, read)
    except Refused as refusal:
        read.found.append(Found(refusal.field, refusal.what))
    return read


def _compare(submission: Submission, config: SweepConfig, read: Read) -> None:
    assert submission.path is not None
    names = task_names(config)
    installed = {
        task: questions_of(config, task)
        for task in names
        if submission.tasks[task].hash == task_hash(*names[task])
    }
    ids = [one.id for one in submission.treatments]
    meet = {
        task: frozenset(
            number
            for number, one in enumerate(submission.treatments)
            if one.tasks is None or task in one.tasks
        )
        for task in names
    }
    seen: set[QuestionKey] = set()
    answers = 0
    wrong: Counter[str] = Counter()
    for question in read_questions(submission.path.parent / submission.samples.path, len(ids)):
        answers += len(question.answers)
        for one in _question_findings(question, config, names, installed, meet, seen):
            kind = one.field.rpartition(": ")[2]
            wrong[kind] += 1
            # A file that is wrong throughout is wrong in the same way.
            if wrong[kind] <= 3:
                read.found.append(one)
        seen.add(question.key)
        read.samples.extend(samples_in(question, ids))
    read.found.extend(
        Found("", f"{n - 3} more lines are wrong in {kind}") for kind, n in sorted(wrong.items()) if n > 3
    )
    read.found.extend(_missing(submission, config, seen))
    for name, stated, counted in (
        ("questions", submission.samples.questions, len(seen)),
        ("answers", submission.samples.answers, answers),
    ):
        if stated != counted:
            read.found.append(
                Found("", f"expected {stated} {name}, as the submission states, found {counted}")
            )


def _question_findings(
    question: Question,
    config: SweepConfig,
    names: Mapping[str, tuple[str, str]],
    installed: Mapping[str, Questions],
    meet: Mapping[str, frozenset[int]],
    seen: set[QuestionKey],
) -> Iterator[Found]:
    fields, line = question.fields, f"line {question.line}"
    task = fields["task"]
    if (
        task not in names
        or fields["template"] not in config.templates
        or fields["shots"] not in config.shots
        or (fields["relation"], fields["language"]) != names[task]
    ):
        yield Found(
            f"{line}: task", f"expected a task, template and shots of the config, found {quoted(task)}"
        )
        return
    if question.key in seen:
        yield Found(
            f"{line}: doc_id", f"expected each question once, found {fields['doc_id']} of {task} again"
        )
        return
    if task in installed:
        expected = installed[task].get(question.key)
        if expected is None:
            n = len(installed[task]) // (len(config.templates) * len(config.shots))
            found = f"expected a document of {task}, 0 to {n - 1}, found {fields['doc_id']}"
            yield Found(f"{line}: doc_id", found)
            return
        yield from _field_findings(line, fields, expected)
    given = Counter(answer.treatment for answer in question.answers)
    twice = sorted(number for number, times in given.items() if times > 1)
    missing, extra = sorted(meet[task] - given.keys()), sorted(given.keys() - meet[task])
    for numbers, what in (
        (missing, "expected an answer under treatment {}, found none"),
        (extra, f"expected none of a treatment that does not meet {task}, found treatment {{}}"),
        (twice, "expected one answer under each treatment, found two of {}"),
    ):
        if numbers:
            yield Found(f"{line}: answers", what.format(", ".join(map(str, numbers[:5]))))
    if not config.continuations and any(answer.continuation is not None for answer in question.answers):
        yield Found(f"{line}: answers", "expected no continuations, as the config says, found some")


def _field_findings(line: str, fields: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Found]:
    for name, value in expected.items():
        if fields[name] != value:
            wanted = f"expected {quoted(value)}, as the installed task has it"
            yield Found(f"{line}: {name}", f"{wanted}, found {quoted(fields[name])}")


def _missing(submission: Submission, config: SweepConfig, seen: set[QuestionKey]) -> Iterator[Found]:
    counted = Counter(key[:3] for key in seen)
    for task in task_names(config):
        n = submission.tasks[task].n
        for template in config.templates:
            for shots in config.shots:
                there = counted[task, template, shots]
                if there != n:
                    asked = f"{task} ({template}, {shots} shots)"
                    yield Found("", f"expected {n} questions of {asked}, found {there}")
