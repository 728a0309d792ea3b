"""What a sweep would cost, before it is run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from interventions.scores import Scores
from interventions.units import UnitLayout
from relbench.blocks import PERPLEXITY, RECALL, Block, Evaluator
from relbench.samples import BASELINE
from relbench.scoring import scoring_prompts
from relbench.treatments import Treatment, make_treatments

if TYPE_CHECKING:
    from interventions.model_id import ModelId
    from relbench.sweep_config import MethodConfig, ScoresConfig, SweepConfig

# Blocks of the baseline that are timed.
TIMED = 3


@dataclass(frozen=True)
class Estimate:
    """What a sweep would do.

    Attributes:
        treatments: The baseline, masks and controls.
        blocks: Treatment × task × way of asking, and treatment × language of perplexity.
        tokens: That the model reads to evaluate them, padding aside; of texts for perplexity about so many.
        passes: Forward calls on probe tasks.
        scored_prompts: Prompts that the methods read.
        tokens_per_second: Measured on blocks of the baseline.
        samples: Records that come out.
    """

    treatments: int
    blocks: int
    tokens: int
    passes: int
    scored_prompts: int
    tokens_per_second: float
    samples: int

    @property
    def seconds(self) -> float:
        """Of evaluation; scoring units comes on top."""
        return self.tokens / self.tokens_per_second


def estimate(config: SweepConfig) -> Estimate:
    """Load the model, plan the sweep and time a little of it.

    Nothing is scored: the masks that are counted are of random units, as many as the sweep's.

    Raises:
        UserError: The config asks for something that is not there.
    """
    from relbench.sweep import given_scores, load

    config.check()
    lm = load(config)
    given = given_scores(config, lm.model_id)
    # Nothing but the baseline is run, so that no mask has to lie anywhere.
    evaluator = Evaluator(config, Path(), lm)
    scored = [(method, _random_scores(config, method, lm.model_id)) for method in config.methods]
    treatments, _ = make_treatments(config, [*scored, *given], lm.model_id)
    blocks = evaluator.blocks(treatments)
    recall = [block for block in blocks if block.kind == RECALL]
    plans = {block: evaluator.built[block.task, block.setting] for block in recall}
    return Estimate(
        treatments=len(treatments),
        blocks=len(blocks),
        tokens=sum(evaluator.cost(block) for block in blocks),
        passes=sum(plan.n_calls(lm.call_tokens) for _, plan in plans.values()),
        scored_prompts=sum(len(scoring_prompts(plan)) for plan in config.scoring_plans()),
        tokens_per_second=_speed(evaluator, recall, treatments[0]),
        samples=sum(len(task.docs) for task, _ in plans.values()),
    )


def _random_scores(config: SweepConfig, method: MethodConfig | ScoresConfig, model: ModelId) -> Scores:
    assert isinstance(model.layout, UnitLayout)
    kinds = getattr(method, "kinds", None) or config.kinds
    names = config.tested_concepts
    generator = np.random.default_rng(0)
    sites = list(model.layout.sites(kinds))
    values = {
        site: generator.random((len(names), model.layout.size(site.kind)), np.float32) for site in sites
    }
    ones = {site: np.ones(model.layout.size(site.kind), np.float32) for site in sites}
    # What any mode or control may ask of a mask.
    percentiles = [mode.percentile for mode in config.modes if mode.percentile is not None]
    carried = ["mean_abs", "norm", "mean", *(f"percentile-{number:g}" for number in percentiles)]
    references = dict.fromkeys(carried, ones)
    references["samples"] = {site: array[None] for site, array in ones.items()}
    return Scores(
        values=values,
        concepts=names,
        model=model,
        method="random",
        parameters={},
        data_hash="",
        seed=0,
        references=references,
    )


def _speed(evaluator: Evaluator, recall: Sequence[Block], baseline: Treatment) -> float:
    """Tokens a second over the largest blocks of the baseline."""
    own = [block for block in recall if block.treatment == BASELINE]
    own.sort(key=evaluator.cost, reverse=True)
    # The first call also pays for what is set up once.
    evaluator.run(own[0], baseline, {})
    began = time.perf_counter()
    for block in own[:TIMED]:
        evaluator.run(block, baseline, {})
    return sum(evaluator.cost(block) for block in own[:TIMED]) / (time.perf_counter() - began)


def describe(estimated: Estimate, config: SweepConfig) -> str:
    """The estimate in words, a line each."""
    minutes = estimated.seconds / 60
    lines = [
        f"{estimated.treatments:,} treatments, {estimated.blocks:,} blocks, {estimated.samples:,} samples",
        f"{estimated.tokens:,} tokens in {estimated.passes:,} forward passes on probe tasks"
        + (f", and {PERPLEXITY} texts" if config.perplexity else ""),
        f"about {minutes:.1f} minutes of evaluation at {estimated.tokens_per_second:,.0f} tokens a second here",
    ]
    if estimated.scored_prompts:
        lines.append(f"before it {estimated.scored_prompts:,} prompts are scored, which is not in that time")
    if config.continuations:
        lines.append("after it lost facts are asked again for continuations, which is not in that time")
    return "\n".join(lines)
