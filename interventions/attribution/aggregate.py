"""From scores of prompts to scores of concepts: aggregation over prompts and contrast of concepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from interventions.errors import UserError

AGGREGATIONS = ("mean", "zscore", "mrr", "frequency")
CONTRASTS = ("others", "same-answer-type", "none")


def per_prompt(scores: Tensor, aggregation: str, top: int) -> Tensor:
    """What is averaged over prompts.

    Args:
        scores: `[B, units]`: the units of one kind in the whole model.
        aggregation: "mean": the scores; "zscore": scores standardised over the units; "mrr": reciprocal
            ranks; "frequency": whether the unit is among the `top` of the prompt.
        top: K of "frequency".

    Returns:
        `[B, units]`.
    """
    if aggregation == "mean":
        return scores
    if aggregation == "zscore":
        spread = scores.std(-1, keepdim=True, correction=0)
        return (scores - scores.mean(-1, keepdim=True)) / spread.clamp_min(torch.finfo(scores.dtype).tiny)
    order = scores.argsort(dim=-1, descending=True, stable=True)
    if aggregation == "mrr":
        ranks = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
        return torch.empty_like(scores).scatter_(-1, order, (1 / ranks).expand_as(scores))
    return torch.zeros_like(scores).scatter_(-1, order[:, :top], 1.0)


def answer_type(answer_id: str) -> str:
    """The type of an answer id: `city` of `city:paris`; the whole id when it has no type."""
    return answer_id.partition(":")[0]


@dataclass
class _Sum:
    total: Tensor
    count: int = 0

    def add(self, values: Tensor) -> None:
        self.total += values.sum(0, dtype=self.total.dtype)
        self.count += len(values)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count


@dataclass
class Summary:
    """Running sums of one concept's prompts; memory grows with its distinct answers alone."""

    by_answer: dict[str, _Sum] = field(default_factory=dict)

    def add(self, values: Tensor, answers: Sequence[str]) -> None:
        """Add `[B, units]` values of prompts with the given answer ids."""
        for answer in dict.fromkeys(answers):
            here = torch.tensor([other == answer for other in answers], device=values.device)
            own = self.by_answer.setdefault(answer, _Sum(torch.zeros_like(values[0])))
            own.add(values[here])

    @property
    def count(self) -> int:
        return sum(part.count for part in self.by_answer.values())

    def mean(self, kinds: frozenset[str] | None = None) -> Tensor:
        """Mean over the prompts, `[units]`; over those with answers of some types when `kinds` is given."""
        parts = [
            part for answer, part in self.by_answer.items() if kinds is None or answer_type(answer) in kinds
        ]
        return torch.stack([part.total for part in parts]).sum(0) / sum(part.count for part in parts)

    def types(self) -> frozenset[str]:
        """Types of the answers."""
        return frozenset(map(answer_type, self.by_answer))

    def answer_spread(self) -> Tensor:
        """Standard deviation over answers of each answer's mean, `[units]`; 0 for one answer."""
        return torch.stack([part.mean for part in self.by_answer.values()]).std(0, correction=0)


def contrasted(
    summaries: Mapping[str, Summary],
    concepts: Sequence[str],
    contrast: str,
    negatives: Mapping[str, Sequence[str]],
) -> list[Tensor]:
    """Each concept's mean less the mean of the means of its negatives.

    Peers weigh the same however many prompts they have.

    Args:
        summaries: Of all concepts that have prompts.
        concepts: Those to score.
        contrast: "others": all negatives; "same-answer-type": the negatives' prompts whose answers are of a
            type that the concept's answers have; "none": subtract nothing.
        negatives: For each concept those it is contrasted with.

    Returns:
        A tensor `[units]` for each concept.

    Raises:
        UserError: A concept has nothing to be contrasted with.
    """
    scores = []
    for concept in concepts:
        own = summaries[concept]
        score = own.mean()
        if contrast != "none":
            types = own.types() if contrast == "same-answer-type" else None
            others = [summaries[negative] for negative in negatives[concept]]
            others = [other for other in others if types is None or types & other.types()]
            if not others:
                wanted = f" with answers of type {', '.join(sorted(types))}" if types else ""
                raise UserError(
                    f"{concept} has no other concept{wanted} to be contrasted with; "
                    "score more relations together, or choose another contrast"
                )
            score = score - torch.stack([other.mean(types) for other in others]).mean(0)
        scores.append(score)
    return scores
