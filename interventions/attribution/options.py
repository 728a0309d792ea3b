"""Options of the attribution methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from interventions.attribution.aggregate import AGGREGATIONS, CONTRASTS
from interventions.errors import UserError

FORMS = ("first-order", "exact", "exact-top")


@dataclass(frozen=True)
class Options:
    """Options of the attribution methods; `Options.parse` reads them from a mapping.

    Attributes:
        form: Of the log-probability increase: "first-order" (all units, cheap), "exact" (all units),
            "exact-top" (each prompt's exact top `top`, 0 elsewhere).
        tokens: "all": scores summed over the answer's tokens; "first": its first token only.
        answer: "gold", or "predicted": the model's most probable next token, whatever the answer.
        aggregate: One of `AGGREGATIONS`.
        top: K of "frequency" and "exact-top".
        contrast: One of `CONTRASTS`.
        negatives: Concept → the concepts it is contrasted with; None for all other concepts that have
            prompts.
        correct_only: Leave out prompts whose greedy continuation is no accepted answer.
        batch_size: Prompts of a forward pass.
        budget_mib: Memory that vocabulary-sized blocks may take.
        steps: Steps of integrated gradients.
        counterfactual_positions: Of attribution patching: "last", or "all" between prompts of equal length.
    """

    form: str = "first-order"
    tokens: str = "all"
    answer: str = "gold"
    aggregate: str = "mean"
    top: int = 300
    contrast: str = "others"
    negatives: Mapping[str, Sequence[str]] | None = None
    correct_only: bool = False
    batch_size: int = 16
    budget_mib: int = 256
    steps: int = 20
    counterfactual_positions: str = "last"

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> Options:
        """Options from names and values; text values are converted.

        Raises:
            UserError: Unknown option, or a value that is not allowed.
        """
        known = {item.name: item for item in fields(cls)}
        values: dict[str, Any] = {}
        for raw, value in options.items():
            name = raw.replace("-", "_")
            if name not in known:
                raise UserError(f"unknown option {raw!r}; attribution methods take {', '.join(known)}")
            values[name] = _convert(name, value, known[name].default)
        parsed = cls(**values)
        named = parsed.negatives
        if named is not None and not (
            isinstance(named, Mapping) and all(isinstance(others, (list, tuple)) for others in named.values())
        ):
            raise UserError("negatives must name, for each concept, the list of concepts to contrast it with")
        for name, allowed in _ALLOWED.items():
            if getattr(parsed, name) not in allowed:
                raise UserError(f"{name} is {getattr(parsed, name)!r}; choose one of {', '.join(allowed)}")
        return parsed

    @property
    def budget(self) -> int:
        """`budget_mib` in bytes."""
        return self.budget_mib * 2**20


_ALLOWED = {
    "form": FORMS,
    "tokens": ("all", "first"),
    "answer": ("gold", "predicted"),
    "aggregate": AGGREGATIONS,
    "contrast": CONTRASTS,
    "counterfactual_positions": ("last", "all"),
}


def _convert(name: str, value: object, default: object) -> object:
    if isinstance(default, bool):
        words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise UserError(f"{name} is {value!r}; write true or false")
    if isinstance(default, int):
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1:
            raise UserError(f"{name} is {value!r}; it must be a whole number, at least 1")
        return number
    return value
