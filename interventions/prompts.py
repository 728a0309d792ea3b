"""A prompt as scoring methods see it: text, the answer, and which concept it is an example of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """One prompt whose next words should be an answer.

    Attributes:
        text: The prompt; ends right before the answer.
        answer: The canonical answer with its leading delimiter (" Paris", "东京").
        accepted: Every accepted answer with its leading delimiter; the canonical one first.
        concept: What the prompt is a positive example of, an opaque string.
        id: Unique within a prompt set.
        subject_id: Identity of the subject; prompts of one subject are not independent.
        answer_id: Identity of the canonical answer.
        subject_span: Character span of the subject in `text`, when it occurs there.
        template: Which wording it is put in, where a prompt set has several; an opaque string.
    """

    text: str
    answer: str
    accepted: tuple[str, ...]
    concept: str
    id: str
    subject_id: str
    answer_id: str
    subject_span: tuple[int, int] | None = None
    template: str = ""
