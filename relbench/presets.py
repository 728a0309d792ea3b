"""Presets: a scoring method with all its settings under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interventions.errors import UserError


@dataclass(frozen=True)
class Preset:
    """A scoring method and what it reads.

    Attributes:
        method: Name of the method.
        template: Prompt template.
        shots: Few-shot examples before each scored prompt.
        kinds: Unit kinds.
        options: The method's own options.
        about: Where the settings come from.
        tuned_on: The split that they were chosen on; "nothing" when they were taken from elsewhere.
    """

    method: str
    template: str
    shots: int
    kinds: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    tuned_on: str = "nothing"


PRESETS: Mapping[str, Preset] = {
    "relspec": Preset(
        method="average-precision",
        template="question",
        shots=0,
        kinds=("gate", "up", "down"),
        options={"pooling": "mean", "correct_only": True, "correct_tokens": 2, "negatives_per_positive": 4},
        about="the protocol of arXiv 2502.17355",
    ),
    "default": Preset(
        method="cohens-d",
        template="completion,paraphrase",
        shots=0,
        kinds=("act",),
        options={"pooling": "mean"},
        about="the most selective statistical settings in benchmarks/preset_choice.md",
        tuned_on="tune",
    ),
}


def get_preset(name: str) -> Preset:
    """The preset called `name`.

    Raises:
        UserError: There is none.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
