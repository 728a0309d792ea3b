"""Scoring the units of a model for relations: prompts of the detect facts through one scoring method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from interventions.errors import UserError
from interventions.files import sha256_json
from interventions.units import KINDS
from relbench.prompts import concept, prompts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from interventions.model_id import ModelId
    from interventions.prompts import Prompt
    from interventions.scores import Scores


@dataclass(frozen=True)
class ScoringPlan:
    """What is scored and from which prompts.

    Attributes:
        method: Name of a scoring method.
        relations, languages: Every pair is a concept.
        contrast_relations: A concept's negatives (of a statistical method) or what it is contrasted with (of
            attribution): these relations in its language, itself left out; None for `relations`. Headline
            off-target numbers must not rest on relations named here.
        template: Prompt template; None for the method's own. Several, comma-separated, are read one after the
            other, each fact once in each.
        shots: Few-shot examples before each prompt; None for the method's own number.
        shots_seed: Seed of their choice.
        split: The facts that scores are made from.
        limit: At most so many prompts a concept.
        kinds: Unit kinds.
        seed: Seed of the method.
        options: The method's own options.
    """

    method: str
    relations: tuple[str, ...]
    languages: tuple[str, ...] = ("en",)
    contrast_relations: tuple[str, ...] | None = None
    template: str | None = None
    shots: int | None = None
    shots_seed: int = 0
    split: str = "detect"
    limit: int | None = None
    kinds: tuple[str, ...] = ("act",)
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def concepts(self) -> tuple[str, ...]:
        """Concepts in the order of relations, then languages."""
        return tuple(concept(relation, code) for relation in self.relations for code in self.languages)

    @property
    def read_relations(self) -> tuple[str, ...]:
        """Relations whose prompts are read: the scored ones and those that they are contrasted with."""
        return tuple(dict.fromkeys([*self.relations, *(self.contrast_relations or ())]))

    def method_options(self) -> dict[str, Any]:
        """The method's options, with each concept's negatives when they are not simply all other concepts."""
        if self.contrast_relations is None and len(self.languages) == 1:
            return dict(self.options)
        others = self.relations if self.contrast_relations is None else self.contrast_relations
        negatives = {
            concept(relation, code): [concept(other, code) for other in others if other != relation]
            for relation in self.relations
            for code in self.languages
        }
        return {"negatives": negatives, **self.options}


def scoring_prompts(plan: ScoringPlan) -> list[Prompt]:
    """The prompts that `plan` scores from.

    Raises:
        UserError: Unknown method, relation, language or template, or no facts.
    """
    from interventions.methods import get_method

    method = get_method(plan.method)
    read = []
    for template in (plan.template or method.template).split(","):
        read += prompts(
            plan.read_relations,
            plan.languages,
            plan.split,
            template,
            shots=method.shots if plan.shots is None else plan.shots,
            shots_seed=plan.shots_seed,
            limit=plan.limit,
        )
    return read


def check_options(plan: ScoringPlan) -> None:
    """Let the method look at its options before a model is loaded, if it can.

    Raises:
        UserError: An option that the method does not have, or a value that it cannot have.
    """
    from interventions.methods import get_method

    check = getattr(get_method(plan.method), "check_options", None)
    if check is not None:
        check(plan.method_options())


def check_plan(plan: ScoringPlan) -> None:
    """Find what is wrong with a plan before a model is loaded, as far as that goes.

    Raises:
        UserError: Unknown names, kinds or options, no facts, or a concept with nothing to tell it from.
    """
    from interventions.methods import get_method

    unknown = [kind for kind in plan.kinds if kind not in KINDS]
    if unknown:
        raise UserError(f"unknown unit kind {unknown[0]!r}; kinds are {', '.join(KINDS)}")
    read = scoring_prompts(plan)
    check_options(plan)
    check = getattr(get_method(plan.method), "check_prompts", None)
    if check is not None:
        check(read, plan.concepts, plan.method_options())


def score(
    plan: ScoringPlan,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_id: ModelId,
    *,
    progress: bool = True,
) -> Scores:
    """Score every unit of `plan.kinds` for every concept.

    Raises:
        UserError: What the method or the prompts cannot do; see `scoring_prompts`.
    """
    from interventions.methods import get_method
    from interventions.scores import Scores

    method = get_method(plan.method)
    read = scoring_prompts(plan)
    result = method.score(
        model,
        tokenizer,
        read,
        plan.concepts,
        kinds=plan.kinds,
        seed=plan.seed,
        options=plan.method_options(),
        progress=progress,
    )
    parameters = {
        "template": plan.template or method.template,
        "shots": method.shots if plan.shots is None else plan.shots,
        "shots_seed": plan.shots_seed,
        "split": plan.split,
        "limit": plan.limit,
        "kinds": list(plan.kinds),
        **result.parameters,
    }
    return Scores(
        values=result.values,
        concepts=plan.concepts,
        model=model_id,
        method=plan.method,
        parameters=parameters,
        data_hash=data_hash(read),
        seed=plan.seed,
        references=result.references,
    )


def data_hash(read: Sequence[Prompt]) -> str:
    """Hash of prompts with their answers, in order: the data that scores depend on."""
    return sha256_json([asdict(prompt) for prompt in read])
