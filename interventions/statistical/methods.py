"""Scoring methods that compare responses: which units tell a concept's prompts from the others.

One pass of the model pools the responses of all units; a statistic then scores every unit for every concept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from interventions.correct import answered_correctly
from interventions.errors import UserError
from interventions.memory import parse_memory
from interventions.methods import MethodResult
from interventions.removed import value_norms
from interventions.responses import collect, tokenize
from interventions.statistical import reports
from interventions.statistical.contrasts import Contrast, make_contrasts, negatives_of, seeded
from interventions.statistical.options import Options
from interventions.statistical.run import Run
from interventions.statistics import STATISTICS, Statistic, random
from interventions.units import Site, layout_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from interventions.prompts import Prompt


@dataclass(frozen=True)
class StatisticalMethod:
    """A scoring method over a statistic of responses.

    Attributes:
        name: The method's name, also the statistic's in `STATISTICS`.
        template: Default prompt template.
        shots: Default number of few-shot examples: none, since they restate the relation in every prompt.
    """

    name: str
    template: str = "question"
    shots: int = 0

    @property
    def statistic(self) -> Statistic:
        """The statistic."""
        return STATISTICS[self.name]

    def check_options(self, options: Mapping[str, object]) -> None:
        """Read the options without a model.

        Raises:
            UserError: Unknown option, or a value that is not allowed.
        """
        Options.parse(options, self.statistic.options)

    def check_prompts(
        self, prompts: Sequence[Prompt], concepts: Sequence[str], options: Mapping[str, object]
    ) -> None:
        """Look for positives and negatives of every concept without a model.

        Raises:
            UserError: A concept has too few, or the options do not go together.
        """
        chosen = Options.parse(options, self.statistic.options)
        told_apart = self.statistic.finish is not None
        make_contrasts(
            _wanted(prompts, concepts, chosen),
            concepts,
            negatives=chosen.negatives,
            ratio=chosen.negatives_per_positive,
            # What balancing leaves depends on the tokenizer.
            balance=chosen.balance if told_apart else "none",
            least=self.statistic.least,
            told_apart=told_apart,
        )

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
        """Scores of every unit of `kinds` for `concepts`; see `Options`.

        Several processes (torchrun) share the work, and each returns the whole result.

        Returns:
            Values; as references `mean` (mean response to the negatives, each of their concepts counting
            the same), `percentile-<p>` (of the positives), `samples`, `mean_abs` (mean |pooled response| to all
            prompts), `norm` (‖v‖ of the units' value vectors), and `selection_frequency` when bootstrapping; as
            parameters the options and what was found out on the way (see `reports`).

        Raises:
            UserError: Unknown option or kind; too few positives or negatives; what `collect` refuses.
        """
        chosen = Options.parse(options or {}, self.statistic.options)
        chosen = replace(chosen, pooling=chosen.pooling or self.statistic.pooling)
        if "seed" in chosen.statistic:
            chosen = replace(chosen, statistic={**chosen.statistic, "seed": seed})
        before = Counter(prompt.concept for prompt in prompts)
        prompts = _wanted(prompts, concepts, chosen)
        if chosen.correct_only:
            prompts = _correct(model, tokenizer, prompts, concepts, before, chosen, progress)
        plain, contrasts = self._contrasts(tokenizer, prompts, concepts, chosen, seed)
        sites = layout_of(model).sites(kinds)
        k = chosen.k or max(1, layout_of(model).count(kinds) // 100)
        parameters = _parameters(chosen, prompts, before, concepts, contrasts)
        with collect(
            model,
            tokenizer,
            prompts,
            sites,
            pooling=str(chosen.pooling),
            dtype=chosen.dtype,
            memory=parse_memory(chosen.memory),
            store=chosen.store,
            progress=progress,
        ) as responses:
            run = Run(self.statistic, responses, len(concepts), chosen, model.device)
            values = run.scores(contrasts)
            _refuse_constant(run)
            references = run.references(prompts, concepts, contrasts, seed) if chosen.references else {}
            if chosen.bootstrap:
                frequency, overlaps = run.stability(contrasts, prompts, k, seed)
                references["selection_frequency"] = frequency
                parameters["stability"] = {
                    "replicates": chosen.bootstrap,
                    "overlap": dict(zip(concepts, overlaps, strict=True)),
                }
            if contrasts is not plain:
                parameters["balance"] = {
                    "by": chosen.balance,
                    **reports.balance_change(run, values, plain, contrasts, concepts, k, seed),
                }
            if len({prompt.template for prompt in prompts}) > 1:
                parameters["template_overlap"] = reports.template_overlap(
                    run, contrasts, prompts, concepts, k
                )
        if chosen.references and (norms := _norms(model, kinds)):
            references["norm"] = norms
        parameters |= {"k": k, "ties": reports.ties(self.name, values, concepts, k)}
        return MethodResult(values=values, references=references, parameters=parameters)

    def _contrasts(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        concepts: Sequence[str],
        options: Options,
        seed: int,
    ) -> tuple[list[Contrast], list[Contrast]]:
        """Contrasts without balancing and with it; the same list when nothing is balanced."""
        lengths = [len(tokens.ids) for tokens in tokenize(tokenizer, prompts, "mean")]
        ratio = options.negatives_per_positive
        plain, balanced = (
            make_contrasts(
                prompts,
                concepts,
                negatives=options.negatives,
                ratio=ratio,
                balance=balance,
                lengths=lengths,
                seed=seed,
                least=self.statistic.least,
                told_apart=self.statistic.finish is not None,
            )
            for balance in ("none", options.balance)
        )
        return (plain, plain) if options.balance == "none" else (plain, balanced)


def _wanted(prompts: Sequence[Prompt], concepts: Sequence[str], options: Options) -> list[Prompt]:
    """The prompts of the concepts and of their negatives."""
    present = {prompt.concept for prompt in prompts}
    negatives = negatives_of(concepts, present, options.negatives)
    needed = set(concepts).union(*negatives)
    return [prompt for prompt in prompts if prompt.concept in needed]


def _correct(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    concepts: Sequence[str],
    before: Mapping[str, int],
    options: Options,
    progress: bool,
) -> list[Prompt]:
    correct = answered_correctly(
        model,
        tokenizer,
        prompts,
        first_tokens=options.correct_tokens,
        memory=parse_memory(options.memory),
        progress=progress,
    )
    kept = [prompt for prompt, right in zip(prompts, correct, strict=True) if right]
    left = {prompt.concept for prompt in kept}
    for concept in concepts:
        if before.get(concept) and concept not in left:
            raise UserError(
                f"the model answers none of the {before[concept]} prompts of {concept} correctly; "
                "score it with correct_only=false, more few-shot examples, or a stronger model"
            )
    return kept


def _norms(model: PreTrainedModel, kinds: Sequence[str]) -> dict[Site, np.ndarray]:
    """‖v‖ of the value vectors of the scored units, of `act` units also for gate and up units of their neuron."""
    writers = {"act" if kind in ("gate", "up") else kind for kind in kinds} & {"act", "attn"}
    if not writers:
        return {}
    try:
        return {site: norm for site, norm in value_norms(model).items() if site.kind in writers}
    except UserError:
        # A model whose writes cannot be read has scores, but no controls matched by them.
        return {}


def _parameters(
    options: Options,
    prompts: Sequence[Prompt],
    before: Mapping[str, int],
    concepts: Sequence[str],
    contrasts: Sequence[Contrast],
) -> dict[str, Any]:
    """What was used, as plain JSON values. Where responses are kept, and how much memory, changes nothing."""
    used: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("pooling", "dtype", "negatives_per_positive", "correct_only", "correct_tokens")
    }
    used |= {"balance": {"by": options.balance}, **options.statistic}
    kept = Counter(prompt.concept for prompt in prompts)
    used["prompts"] = dict(kept)
    if options.correct_only:
        used["prompts_before_correct_only"] = dict(before)
    if options.negatives is not None:
        used["negatives"] = {
            concept: sorted(set(options.negatives[concept]) & kept.keys()) for concept in concepts
        }
    counts = {}
    for contrast in contrasts:
        for label, number in enumerate(contrast.concepts):
            positives = int((contrast.labels == label).sum())
            counts[concepts[number]] = [positives, len(contrast.labels) - positives]
    used["positives_negatives"] = {concept: counts[concept] for concept in concepts}
    return used


def _refuse_constant(run: Run) -> None:
    if run.constant:
        raise UserError(
            "every unit responds the same to every prompt, so nothing tells concepts apart; "
            "check the prompts and the pooling"
        )


@dataclass(frozen=True)
class RandomMethod:
    """Scores that look at nothing: uniform numbers. A control; the same options as the other methods."""

    name: str = "random"
    template: str = "question"
    shots: int = 0

    def check_options(self, options: Mapping[str, object]) -> None:
        """Read the options without a model.

        Raises:
            UserError: Unknown option, or a value that is not allowed.
        """
        Options.parse(options, {})

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
        """Uniform scores in [0, 1); a unit's depends on the seed and the concept's name.

        Raises:
            UserError: Unknown option or kind.
        """
        Options.parse(options or {}, {})
        layout = layout_of(model)
        sites = layout.sites(kinds)
        rows = []
        for concept in concepts:
            drawn = int(seeded(seed, f"random:{concept}").integers(2**62))
            rows.append(random(1, layout.count(kinds), torch.Generator().manual_seed(drawn))[0].numpy())
        bounds = np.cumsum([layout.size(site.kind) for site in sites])[:-1]
        values = dict(zip(sites, np.split(np.stack(rows), bounds, axis=1), strict=True))
        return MethodResult(values=values)


AVERAGE_PRECISION = StatisticalMethod("average-precision")
AUROC = StatisticalMethod("auroc")
MEAN_DIFFERENCE = StatisticalMethod("mean-difference")
COHENS_D = StatisticalMethod("cohens-d")
WELCH_T = StatisticalMethod("welch-t")
POINT_BISERIAL = StatisticalMethod("point-biserial")
MUTUAL_INFORMATION = StatisticalMethod("mutual-information")
LAPE = StatisticalMethod("lape")
PROBE = StatisticalMethod("probe")
RANDOM = RandomMethod()
