"""What the attribution table measures on a prompt: the answer with sets of units switched off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from interventions.attribution import compared, gradients, importance
from interventions.attribution.ablation import Cut, outcomes
from interventions.attribution.attention import head_outputs, read_attention
from interventions.attribution.lens import Lens
from interventions.attribution.queries import keys_of, query_scores
from interventions.attribution.readouts import Readouts
from interventions.attribution.stream import Stream, Write, read_stream, writes_of
from interventions.units import layout_of
from relbench.attribution_prompts import Selection, TypedPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INCREASE = "log-probability increase"
# Sets of units that are no score's top: they have a table of their own.
GROUPS = ("value neurons", "random for value neurons", "query neurons", "random for query neurons")


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment; the defaults are the paper's.

    Attributes:
        relations: Names, or None for all relations of the six knowledge types.
        language, shots, per_type, seed: Of the prompts; see `select_prompts`.
        top: Units that each score switches off.
        value_attention, value_ffn: Value neurons that are switched off together.
        query_neurons: Query neurons that are switched off together.
        value_neurons: Attention value neurons (by position) that query neurons are scored over.
        head_share: Share of all heads that is switched off, chosen for a type.
        shared_top: Value neurons of a prompt when units shared by prompts are counted.
        random_draws: Draws of every random set.
        rows: Sets of units that are run together.
    """

    relations: tuple[str, ...] | None = None
    language: str = "en"
    shots: int = 0
    per_type: int = 40
    seed: int = 0
    top: int = 10
    value_attention: int = 200
    value_ffn: int = 100
    query_neurons: int = 1000
    value_neurons: int = 30
    head_share: float = 0.01
    shared_top: int = 300
    random_draws: int = 3
    rows: int = 16


class Outcome(NamedTuple):
    """The answer token under one set of units, or the mean over random sets."""

    reciprocal_rank: float
    probability: float
    log_prob: float


@dataclass
class PromptResult:
    """What is measured on one prompt.

    Attributes:
        item: The prompt.
        outcomes: Set of units → outcome; "original" is the whole model.
        attention, ffn: Sums over layers of the sublayers' log-probability increases.
        heads: `[L, heads]`, log-probability increase of each head.
        shared: Indices (layer-major) of its best FFN value neurons.
        evaluated: How many FFN units the exact top needed.
    """

    item: TypedPrompt
    outcomes: dict[str, Outcome]
    attention: float
    ffn: float
    heads: Tensor
    shared: NDArray[np.int64]
    evaluated: int


class Bench:
    """The model with everything that is made once."""

    def __init__(self, model: PreTrainedModel, lens: Lens, config: Config, selection: Selection) -> None:
        self.model, self.lens, self.config = model, lens, config
        self.layout = layout_of(model)
        self.writes: dict[str, list[Write]] = {kind: writes_of(model, kind) for kind in ("attn", "act")}
        self.ranks = compared.Ranks(lens, self.writes["act"])
        self.ranks.add(item.target for item in selection.prompts)
        self.rng = np.random.default_rng(config.seed)

    def measure(self, item: TypedPrompt) -> PromptResult:
        """Everything about one prompt but the outcomes of heads chosen over prompts."""
        model, lens, config = self.model, self.lens, self.config
        ids, target = item.encoded.ids, torch.tensor([item.target], device=model.device)
        input_ids = torch.tensor([ids], device=model.device)
        everywhere = read_stream(model, input_ids)
        last = everywhere.last()
        best = importance.top(
            lens,
            last,
            self.writes["act"],
            "act",
            target,
            max(config.shared_top, config.value_ffn, config.top),
        )[0]
        sets = {"original": [Cut()]}
        sets |= {name: [cut] for name, cut in self._by_score(input_ids, last, target, best).items()}
        sets["random"] = [self._random({"act": config.top}) for _ in range(config.random_draws)]
        attention = importance.top(lens, last, self.writes["attn"], "attn", target, config.value_attention)[0]
        sets["value neurons"] = [
            Cut(
                {
                    "attn": (attention.layers, attention.units),
                    "act": (best.layers[: config.value_ffn], best.units[: config.value_ffn]),
                }
            )
        ]
        counts = {"attn": config.value_attention, "act": config.value_ffn}
        sets["random for value neurons"] = [self._random(counts) for _ in range(config.random_draws)]
        sets["query neurons"] = [self._queries(input_ids, everywhere, last, target)]
        sets["random for query neurons"] = [
            self._random({"act": config.query_neurons}) for _ in range(config.random_draws)
        ]
        attention_sum, ffn_sum, heads = self._sublayers(last, target)
        width = self.layout.d_ff
        shared = (best.layers * width + best.units)[: config.shared_top].cpu().numpy()
        return PromptResult(
            item, self._outcomes(item, sets), attention_sum, ffn_sum, heads, shared, best.evaluated
        )

    def _outcomes(self, item: TypedPrompt, sets: Mapping[str, Sequence[Cut]]) -> dict[str, Outcome]:
        cuts = [cut for members in sets.values() for cut in members]
        found = outcomes(self.model, self.lens, item.encoded.ids, item.target, cuts, rows=self.config.rows)
        columns = [1.0 / found.rank, found.log_prob.exp(), found.log_prob]
        result, start = {}, 0
        for name, members in sets.items():
            part = slice(start, start + len(members))
            result[name] = Outcome(*(float(column[part].double().mean()) for column in columns))
            start += len(members)
        return result

    def _by_score(
        self, input_ids: Tensor, last: Stream, target: Tensor, best: importance.Top
    ) -> dict[str, Cut]:
        """The top units of every score, in the order of the table."""
        lens, writes, k = self.lens, self.writes["act"], self.config.top
        nothing = torch.zeros_like(last.inputs)
        alone = replace(last, inputs=nothing, attention=nothing)
        value = importance.top(lens, alone, writes, "act", target, k)[0]
        probability = importance.top(lens, last, writes, "act", target, k, probability=True)[0]

        def of(scores: Tensor) -> Cut:
            # Stable, so that ties go to lower layers and units.
            order = scores[:, 0].flatten().argsort(descending=True, stable=True)[:k]
            return Cut({"act": (order // self.layout.d_ff, order % self.layout.d_ff)})

        position = torch.tensor([input_ids.shape[1] - 1], device=input_ids.device)
        readouts = Readouts(torch.zeros_like(position), position, target)
        gradient = gradients.gradient_activation(self.model, lens, input_ids, readouts, ("act",))["act"]

        def static(name: str) -> Cut:
            return of(compared.STATIC[name](lens, last, writes, "act", target))

        return {
            INCREASE: Cut({"act": (best.layers[:k], best.units[:k])}),
            "its first-order term": static("log-probability-increase"),
            "(b) log p(w | m v)": Cut({"act": (value.layers, value.units)}),
            "(c) probability increase": Cut({"act": (probability.layers, probability.units)}),
            "(d) |v|": static("value-norm"),
            "(e) |m|": static("coefficient"),
            "(f) 1 / rank": of(compared.reciprocal_rank(last, "act", target, self.ranks)),
            "(g) |m| |v|": static("coefficient-norm"),
            "(h) |m| / rank": of(compared.coefficient_rank(last, "act", target, self.ranks)),
            "direct logit": static("direct-logit"),
            "gradient x activation": of(gradient),
        }

    def _queries(self, input_ids: Tensor, everywhere: Stream, last: Stream, target: Tensor) -> Cut:
        coefficients = read_attention(self.model, input_ids).coefficients()
        best = importance.top_by_position(
            self.lens, last, self.writes["attn"], coefficients, target[0], self.config.value_neurons
        )
        keys = keys_of(self.model, "attn", best.layers, best.units, best.positions, best.values)
        scores = query_scores(everywhere, self.writes["act"], keys).units
        order = scores.flatten().topk(min(self.config.query_neurons, scores.numel())).indices
        return Cut({"act": (order // self.layout.d_ff, order % self.layout.d_ff)})

    def _sublayers(self, last: Stream, target: Tensor) -> tuple[float, float, Tensor]:
        """Summed increases of the attention and FFN sublayers, and every head's `[L, heads]`."""
        lens, layout, count = self.lens, self.layout, last.n_layers
        scale = lens.scale(last.final).expand(count)
        targets, rows = target.expand(count), torch.arange(count, device=target.device)
        sums = []
        for kind in ("attn", "act"):
            base = lens.base(last.before(kind)[:, 0], scale, targets)
            sums.append(
                float(importance.of_vectors(lens, base, last.added(kind)[:, 0], rows, scale, targets).sum())
            )
        base = lens.base(last.before("attn")[:, 0], scale, targets)
        outputs = head_outputs(last, self.writes["attn"], layout)[:, 0].flatten(0, 1)
        head_rows = rows.repeat_interleave(layout.n_heads)
        heads = importance.of_vectors(lens, base, outputs, head_rows, scale, targets)
        return sums[0], sums[1], heads.view(count, layout.n_heads).cpu()

    def _random(self, counts: Mapping[str, int]) -> Cut:
        units = {}
        for kind, count in counts.items():
            width = self.layout.size(kind)
            total = width * self.layout.n_layers
            drawn = torch.from_numpy(self.rng.choice(total, min(count, total), replace=False))
            units[kind] = (drawn // width, drawn % width)
        return Cut(units)

    def head_cut(self, heads: Tensor) -> Cut:
        """All attention units of heads, given as indices into `[L * heads]`."""
        size = self.layout.head_dim
        layers, numbers = heads // self.layout.n_heads, heads % self.layout.n_heads
        units = (numbers[:, None] * size + torch.arange(size)).flatten()
        return Cut({"attn": (layers.repeat_interleave(size), units)})

    def heads(
        self, results: Sequence[PromptResult], *, progress: bool
    ) -> list[tuple[PromptResult, dict[str, Outcome]]]:
        """Outcomes of every other prompt under each type's best heads, which the rest of the prompts
        chose."""
        chosen, kept = _halves(results)
        total = self.layout.n_layers * self.layout.n_heads
        k = max(1, round(self.config.head_share * total))
        sets = {"original": [Cut()]}
        for kind in dict.fromkeys(result.item.knowledge_type for result in chosen):
            mean = torch.stack([r.heads for r in chosen if r.item.knowledge_type == kind]).mean(0).flatten()
            sets[kind] = [self.head_cut(mean.topk(k).indices)]
        drawn = [
            torch.from_numpy(self.rng.choice(total, k, replace=False))
            for _ in range(self.config.random_draws)
        ]
        sets["random"] = [self.head_cut(heads) for heads in drawn]
        bar = tqdm(kept, desc="heads", disable=None if progress else True)
        return [(result, self._outcomes(result.item, sets)) for result in bar]


def _halves(results: Sequence[PromptResult]) -> tuple[list[PromptResult], list[PromptResult]]:
    """Every other prompt of each type."""
    halves: tuple[list[PromptResult], list[PromptResult]] = ([], [])
    seen: dict[str, int] = {}
    for result in results:
        kind = result.item.knowledge_type
        halves[seen.get(kind, 0) % 2].append(result)
        seen[kind] = seen.get(kind, 0) + 1
    return halves
