"""The samples of a submission: gzip-packed JSON lines, one a question with the answer under every treatment.

A sweep's own samples repeat each question for every treatment. Here a line holds what identifies the question and
`answers`, a list of `[treatment, recall, answer log probability, rank of the first token]`, each followed by the
greedy continuation where it was recorded. A treatment is its number in the submission's `treatments`. Log
probabilities are rounded to six decimals, a thousandth of what may differ when a sample is evaluated again.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from interventions.errors import UserError
from interventions.files import atomic_write, canonical_json
from relbench.leaderboards.limits import ANSWERS, QUESTIONS
from relbench.leaderboards.problems import Refused, quoted
from relbench.leaderboards.reading import gzip_lines, parse_json, printable
from relbench.samples import Sample

DECIMALS = 6

# What a line says of its question, and the type that it has there.
QUESTION: Mapping[str, type] = {
    "task": str,
    "relation": str,
    "language": str,
    "template": str,
    "shots": int,
    "doc_id": int,
    "fact_id": str,
    "subject_id": str,
    "answer_id": str,
    "answer_seen": bool,
    "copyable": bool,
    "answer_in_shots": bool,
    "filter": str,
    "doc_hash": str,
    "prompt_hash": str,
    "target_hash": str,
}
# Longest text of a question, and of a continuation; least log probability; largest vocabulary.
_TEXT = 300
_CONTINUATION = 4000
_LEAST_LOGPROB = -1e6
_VOCABULARY = 2**31

QuestionKey = tuple[str, str, int, int]


class Answer(NamedTuple):
    """What the model answered under one treatment (its number in the submission)."""

    treatment: int
    recall: int
    answer_logprob: float
    first_token_rank: int | None
    continuation: str | None


class Question(NamedTuple):
    """A line of a samples file: `fields` are those of `QUESTION`."""

    line: int
    fields: Mapping[str, Any]
    answers: Sequence[Answer]

    @property
    def key(self) -> QuestionKey:
        """Task, template, shots and document: what must be asked once."""
        return question_key(self.fields)


def question_key(fields: Mapping[str, Any]) -> QuestionKey:
    """Task, template, shots and document of a question."""
    return fields["task"], fields["template"], fields["shots"], fields["doc_id"]


def write_questions(path: Path, samples: Iterable[Sample], treatments: Sequence[str]) -> tuple[int, int]:
    """Write samples as a submission's samples file; equal samples give equal bytes.

    Args:
        path: Where.
        samples: Of every treatment.
        treatments: Ids, in the submission's order.

    Returns:
        Numbers of questions and of answers.

    Raises:
        UserError: Two treatments were not asked the same.
    """
    number = {name: place for place, name in enumerate(treatments)}
    questions: dict[QuestionKey, dict[str, Any]] = {}
    answers: dict[QuestionKey, list[list[Any]]] = {}
    answer: list[Any]
    for sample in samples:
        fields = {name: getattr(sample, name) for name in QUESTION}
        key = question_key(fields)
        if questions.setdefault(key, fields) != fields:
            raise UserError(
                f"document {sample.doc_id} of {sample.task} was another question under {sample.intervention} than "
                "before; run the sweep again in a new directory"
            )
        # Adding zero makes −0.0 into 0.0.
        logprob = round(sample.answer_logprob, DECIMALS) + 0.0
        answer = [number[sample.intervention], sample.recall, logprob, sample.first_token_rank]
        answers.setdefault(key, []).append(
            answer if sample.continuation is None else [*answer, sample.continuation]
        )
    with atomic_write(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for key in sorted(questions):
            line = {**questions[key], "answers": sorted(answers[key], key=lambda answer: answer[0])}
            packed.write((canonical_json(line) + "\n").encode())
    return len(questions), sum(map(len, answers.values()))


def read_questions(path: Path, n_treatments: int) -> Iterator[Question]:
    """The lines of a samples file, checked for their form one by one.

    Args:
        path: The file.
        n_treatments: How many treatments the submission names.

    Raises:
        Refused: What is wrong, and in which line; nothing after it is read.
    """
    total = 0
    for number, line in enumerate(gzip_lines(path), start=1):
        try:
            if number > QUESTIONS:
                raise Refused(f"expected at most {QUESTIONS} lines, found more")
            question = Question(number, *_question(parse_json(line), n_treatments))
        except Refused as refusal:
            field = f"line {number}: {refusal.field}" if refusal.field else f"line {number}"
            raise Refused(refusal.what, field) from None
        total += len(question.answers)
        if total > ANSWERS:
            raise Refused(f"expected at most {ANSWERS} answers, found more", f"line {number}")
        yield question


def samples_in(question: Question, treatments: Sequence[str]) -> Iterator[Sample]:
    """The samples of a line; their treatments are named again."""
    for answer in question.answers:
        yield Sample(
            intervention=treatments[answer.treatment],
            **question.fields,
            recall=answer.recall,
            answer_logprob=answer.answer_logprob,
            first_token_rank=answer.first_token_rank,
            continuation=answer.continuation,
        )


def _question(raw: Any, n_treatments: int) -> tuple[dict[str, Any], list[Answer]]:
    if not isinstance(raw, dict):
        raise Refused(f"expected an object, found {quoted(raw)}")
    odd = sorted(raw.keys() ^ {*QUESTION, "answers"})
    if odd:
        what = "a key that is unknown" if odd[0] in raw else "none"
        raise Refused(f"expected the keys of a question, found {what}", odd[0])
    fields = {name: raw[name] for name in QUESTION}
    for name, kind in QUESTION.items():
        value = fields[name]
        if type(value) is not kind:
            words = {str: "text", int: "an integer", bool: "true or false"}[kind]
            raise Refused(f"expected {words}, found {quoted(value)}", name)
        if type(value) is int and not 0 <= value < 10**6:
            raise Refused(f"expected 0 or more, below 1000000, found {value}", name)
        if isinstance(value, str) and len(value) > _TEXT:
            raise Refused(f"expected at most {_TEXT} characters, found {len(value)}", name)
    printable(fields)
    if fields["filter"] != "none":
        raise Refused(f"expected 'none', found {quoted(fields['filter'])}", "filter")
    if not isinstance(raw["answers"], list):
        raise Refused(f"expected a list, found {quoted(raw['answers'])}", "answers")
    return fields, [_answer(one, place, n_treatments) for place, one in enumerate(raw["answers"])]


def _answer(raw: Any, place: int, n_treatments: int) -> Answer:
    if not isinstance(raw, list) or not 4 <= len(raw) <= 5:
        raise Refused(f"expected a list of four or five values, found {quoted(raw)}", f"answers[{place}]")
    treatment, recall, logprob, rank = raw[:4]
    continuation = raw[4] if len(raw) == 5 else None
    if type(treatment) is not int or not 0 <= treatment < n_treatments:
        expected = f"expected a treatment's number, 0 to {n_treatments - 1}"
        raise Refused(f"{expected}, found {quoted(treatment)}", f"answers[{place}][0]")
    if type(recall) is not int or recall not in (0, 1):
        raise Refused(f"expected a recall of 0 or 1, found {quoted(recall)}", f"answers[{place}][1]")
    if type(logprob) not in (int, float) or not _LEAST_LOGPROB <= logprob <= 0:
        expected = f"expected a log probability, {_LEAST_LOGPROB:.0f} to 0"
        raise Refused(f"{expected}, found {quoted(logprob)}", f"answers[{place}][2]")
    if rank is not None and (type(rank) is not int or not 1 <= rank < _VOCABULARY):
        raise Refused(f"expected a rank, 1 or more, or null, found {quoted(rank)}", f"answers[{place}][3]")
    if len(raw) == 5 and (type(continuation) is not str or len(continuation) > _CONTINUATION):
        expected = f"expected a continuation of at most {_CONTINUATION} characters"
        raise Refused(f"{expected}, found {quoted(continuation)}", f"answers[{place}][4]")
    return Answer(treatment, recall, float(logprob), rank, continuation)
