"""Scoring methods that read single predictions: from prompts to a score per unit and concept.

For each prompt the residual stream is read where the answer's tokens are predicted, every unit is scored
there, and the scores are summed over those tokens; prompts are aggregated to concepts, and a concept's score
is contrasted with the other concepts', which takes away what answers and general machinery share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interventions.attribution import compared, scorers
from interventions.attribution.aggregate import Summary, contrasted, per_prompt
from interventions.attribution.counterfactuals import counterfactuals
from interventions.attribution.lens import lens_of
from interventions.attribution.options import Options
from interventions.attribution.readouts import Encoded, encode
from interventions.attribution.scorers import Scorer, Setting, reads
from interventions.attribution.stream import WRITING_KINDS, writes_of
from interventions.correct import answered_correctly
from interventions.errors import UserError
from interventions.methods import MethodResult
from interventions.units import Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from interventions.prompts import Prompt


def first_token_collisions(encoded: Sequence[Encoded], answers: Sequence[str]) -> float:
    """Share of prompts whose answer's first token is also that of another answer (by answer id)."""
    owners: dict[int, set[str]] = {}
    for item, answer in zip(encoded, answers, strict=True):
        owners.setdefault(item.targets[0], set()).add(answer)
    return sum(len(owners[item.targets[0]]) > 1 for item in encoded) / max(1, len(encoded))


@dataclass(frozen=True)
class Attribution:
    """A scoring method over a scorer of single readouts.

    Attributes:
        name: The method's name.
        scorer: Scores the units at the readouts of a batch.
        kinds: Unit kinds that it can score.
        template: Default prompt template.
        shots: Default number of few-shot examples.
    """

    name: str
    scorer: Scorer
    kinds: tuple[str, ...] = WRITING_KINDS
    template: str = "completion"
    shots: int = 5

    def check_options(self, options: Mapping[str, object]) -> None:
        """Read the options without a model.

        Raises:
            UserError: Unknown option, or a value that is not allowed.
        """
        Options.parse(options)

    def score(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        concepts: Sequence[str],
        *,
        kinds: tuple[str, ...],
        seed: int = 0,
        options: Mapping[str, object] | None = None,
        progress: bool = False,
    ) -> MethodResult:
        """Scores of every unit for `concepts`.

        Args:
            model: A causal language model of a family with a lens.
            tokenizer: Its tokenizer.
            prompts: Prompts of `concepts` and of those that they are contrasted with.
            concepts: What to score, in order.
            kinds: "act", "attn" or both.
            seed: Of whatever the method draws.
            options: See `Options`.
            progress: Show a progress bar when stderr is a terminal.

        Returns:
            Values and, as references, `answer_spread` (standard deviation over answers of the answers' mean
            scores, by concept), `mean_abs` and `norm` (mean |m| and |v| of each unit, for matched random
            masks).

        Raises:
            UserError: Unknown option or kind, a concept without prompts, a family without a lens.
        """
        chosen = Options.parse(options or {})
        for kind in kinds:
            if kind not in self.kinds:
                raise UserError(f"{self.name} scores units of kind {', '.join(self.kinds)}, not {kind!r}")
        prompts, notes = self._kept(model, tokenizer, prompts, chosen)
        negatives = self._negatives(prompts, concepts, chosen)
        wanted = set(concepts).union(*negatives.values())
        prompts = [prompt for prompt in prompts if prompt.concept in wanted]
        first_only = chosen.tokens == "first" or chosen.answer == "predicted"
        encoded = [encode(tokenizer, prompt.text, prompt.answer, first_only=first_only) for prompt in prompts]
        stand_ins: list[Encoded] = []
        if self.name == "attribution-patching":
            prompts, encoded, stand_ins, dropped = self._with_counterfactuals(prompts, encoded, chosen, seed)
            notes |= {"prompts_without_counterfactual": dropped}
        lens = lens_of(model)
        by_kind = {kind: writes_of(model, kind) for kind in kinds}
        setting = Setting(model, lens, by_kind, chosen, encoded=encoded, counterfactuals=stand_ins)
        if self.name in compared.RANKED and chosen.answer == "gold":
            for kind in kinds:
                setting.rank(kind).add(token for item in encoded for token in item.targets)
        summaries, mean_abs = self._summaries(setting, prompts, encoded, progress)
        values: dict[Site, NDArray[np.float32]] = {}
        references: dict[str, dict[Site, NDArray[np.float32]]] = {
            "answer_spread": {},
            "mean_abs": {},
            "norm": {},
        }
        for kind, writes in setting.writes.items():
            scores = torch.stack(contrasted(summaries[kind], concepts, chosen.contrast, negatives))
            spread = torch.stack([summaries[kind][concept].answer_spread() for concept in concepts])
            for layer, write in enumerate(writes):
                site, width = Site(layer, kind), len(write.vectors)
                here = slice(layer * width, (layer + 1) * width)
                values[site] = _array(scores[:, here])
                references["answer_spread"][site] = _array(spread[:, here])
                references["mean_abs"][site] = _array(mean_abs[kind][layer])
                references["norm"][site] = _array(write.norms)
        parameters = self._parameters(chosen, prompts, encoded, negatives) | notes
        return MethodResult(values=values, references=references, parameters=parameters)

    def _kept(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        options: Options,
    ) -> tuple[list[Prompt], dict[str, Any]]:
        if not options.correct_only:
            return list(prompts), {}
        correct = answered_correctly(model, tokenizer, prompts)
        kept = [prompt for prompt, right in zip(prompts, correct, strict=True) if right]
        return kept, {"prompts_before_correct_only": _counts(prompts)}

    def _with_counterfactuals(
        self, prompts: Sequence[Prompt], encoded: Sequence[Encoded], options: Options, seed: int
    ) -> tuple[list[Prompt], list[Encoded], list[Encoded], int]:
        """Prompts that have a counterfactual, their tokens and its tokens, and how many have none."""
        present = list(dict.fromkeys(prompt.concept for prompt in prompts))
        allowed = {concept: [other for other in present if other != concept] for concept in present}
        found = counterfactuals(prompts, encoded, {**allowed, **(options.negatives or {})}, seed=seed)
        everywhere = options.counterfactual_positions == "all"
        kept = [
            (prompt, own, other)
            for prompt, own, other in zip(prompts, encoded, found, strict=True)
            if other is not None and (not everywhere or len(other.ids) == len(own.ids))
        ]
        for concept in present:
            if not any(prompt.concept == concept for prompt, _, _ in kept):
                length = " of equal length in tokens" if everywhere else ""
                raise UserError(
                    f"no prompt of {concept} has a counterfactual{length} among the other concepts; "
                    "score more relations together, or take counterfactual_positions=last"
                )
        return [k[0] for k in kept], [k[1] for k in kept], [k[2] for k in kept], len(prompts) - len(kept)

    def _negatives(
        self, prompts: Sequence[Prompt], concepts: Sequence[str], options: Options
    ) -> dict[str, tuple[str, ...]]:
        present = list(dict.fromkeys(prompt.concept for prompt in prompts))
        for concept in concepts:
            if concept not in present:
                why = " that the model answers correctly" if options.correct_only else ""
                raise UserError(
                    f"there are no prompts of {concept}{why}; score it with other facts, or leave it out"
                )
        if options.contrast == "none":
            return {concept: () for concept in concepts}
        if options.negatives is None:
            return {concept: tuple(other for other in present if other != concept) for concept in concepts}
        chosen = {}
        for concept in concepts:
            named = options.negatives.get(concept, ())
            chosen[concept] = tuple(other for other in named if other != concept)
            missing = [other for other in chosen[concept] if other not in present]
            if missing:
                raise UserError(
                    f"{concept} is to be contrasted with {', '.join(missing)}, which have no prompts"
                )
        return chosen

    def _summaries(
        self, setting: Setting, prompts: Sequence[Prompt], encoded: Sequence[Encoded], progress: bool
    ) -> tuple[dict[str, dict[str, Summary]], dict[str, Tensor]]:
        """Summaries by kind and concept, and the mean |m| of the units by kind `[L, units]`."""
        options = setting.options
        summaries: dict[str, dict[str, Summary]] = {kind: {} for kind in setting.writes}
        mean_abs: dict[str, Tensor] = {}
        groups = [prompt.concept for prompt in prompts]
        readouts = sum(len(item.targets) for item in encoded)
        for read in reads(setting, encoded, groups, progress=progress):
            members = [prompts[index] for index in read.batch.members]
            for kind, scores in self.scorer(setting, read).items():
                layers, _, width = scores.shape
                by_prompt = torch.zeros(
                    len(members), layers * width, dtype=scores.dtype, device=scores.device
                )
                by_prompt.index_add_(0, read.batch.readouts.rows, scores.transpose(0, 1).flatten(1))
                if not bool(torch.isfinite(by_prompt).all()):
                    raise UserError(
                        f"{self.name} gives scores that are not finite on prompts of {members[0].concept}"
                    )
                summary = summaries[kind].setdefault(members[0].concept, Summary())
                answers = [prompt.answer_id for prompt in members]
                summary.add(per_prompt(by_prompt, options.aggregate, options.top), answers)
                sizes = compared.coefficient(
                    setting.lens, read.stream, setting.writes[kind], kind, read.targets
                ).sum(1)
                mean_abs[kind] = mean_abs.get(kind, 0) + sizes / readouts
        return summaries, mean_abs

    def _parameters(
        self,
        options: Options,
        prompts: Sequence[Prompt],
        encoded: Sequence[Encoded],
        negatives: Mapping[str, Sequence[str]],
    ) -> dict[str, Any]:
        used = asdict(options)
        for name in ("negatives", "budget_mib"):
            del used[name]
        if self.name != "log-probability-increase":
            del used["form"]
        if self.name != "integrated-gradients":
            del used["steps"]
        if self.name != "attribution-patching":
            del used["counterfactual_positions"]
        if options.aggregate != "frequency" and used.get("form") != "exact-top":
            del used["top"]
        collisions = {}
        for concept in dict.fromkeys(prompt.concept for prompt in prompts):
            own = [index for index, prompt in enumerate(prompts) if prompt.concept == concept]
            share = first_token_collisions([encoded[i] for i in own], [prompts[i].answer_id for i in own])
            collisions[concept] = round(share, 6)
        return used | {
            "prompts": _counts(prompts),
            "negatives": {concept: list(others) for concept, others in negatives.items()},
            "first_token_collisions": collisions,
        }


def _counts(prompts: Sequence[Prompt]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for prompt in prompts:
        counts[prompt.concept] = counts.get(prompt.concept, 0) + 1
    return counts


def _array(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().float().cpu().numpy()
    return array


LOG_PROBABILITY_INCREASE = Attribution("log-probability-increase", scorers.log_probability_increase)
VALUE_LOG_PROBABILITY = Attribution("value-log-probability", scorers.static_scorer("value-log-probability"))
PROBABILITY_INCREASE = Attribution("probability-increase", scorers.static_scorer("probability-increase"))
VALUE_NORM = Attribution("value-norm", scorers.static_scorer("value-norm"))
COEFFICIENT = Attribution("coefficient", scorers.static_scorer("coefficient"))
COEFFICIENT_NORM = Attribution("coefficient-norm", scorers.static_scorer("coefficient-norm"))
DIRECT_LOGIT = Attribution("direct-logit", scorers.static_scorer("direct-logit"))
RECIPROCAL_RANK = Attribution("reciprocal-rank", scorers.static_scorer("reciprocal-rank"))
COEFFICIENT_RANK = Attribution("coefficient-rank", scorers.static_scorer("coefficient-rank"))
GRADIENT_ACTIVATION = Attribution("gradient-activation", scorers.gradient_activation)
INTEGRATED_GRADIENTS = Attribution("integrated-gradients", scorers.integrated_gradients)
ATTRIBUTION_PATCHING = Attribution("attribution-patching", scorers.attribution_patching)
