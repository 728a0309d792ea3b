"""Scoring methods that read single predictions: from prompts to a score per unit and concept.

For each prompt the residual stream is read where the answer's tokens are predicted, every unit is scored
there, and the scores are summed over those tokens; prompts are aggregated to concepts, and a concept's score
is contrasted with the other concepts', which takes away what answers and general machinery share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from interventions import compared, importance
from interventions.aggregate import AGGREGATIONS, CONTRASTS, Summary, contrasted, per_prompt
from interventions.errors import UserError
from interventions.lens import Lens, lens_of
from interventions.methods import MethodResult
from interventions.prefix import Prefix
from interventions.readouts import Batch, Encoded, batches, encode
from interventions.stream import WRITING_KINDS, Stream, Write, read_stream, writes_of
from interventions.units import Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from interventions.prompts import Prompt

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
        peers: Concept → the concepts it is contrasted with; None for all other concepts that have prompts.
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
    peers: Mapping[str, Sequence[str]] | None = None
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


@dataclass
class Setting:
    """What a scorer has at hand: made once for a run.

    Attributes:
        model: The model.
        lens: Its lens.
        writes: For each kind that is scored, the writes of every layer.
        options: The options.
        ranks: Token ranks, for the kinds that a method asked them of.
    """

    model: PreTrainedModel
    lens: Lens
    writes: dict[str, list[Write]]
    options: Options
    ranks: dict[str, compared.Ranks] = field(default_factory=dict)

    def rank(self, kind: str) -> compared.Ranks:
        """The token ranks of a kind."""
        if kind not in self.ranks:
            self.ranks[kind] = compared.Ranks(self.lens, self.writes[kind], budget=self.options.budget)
        return self.ranks[kind]


@dataclass(frozen=True)
class Read:
    """One batch after its forward pass: what a scorer scores.

    Attributes:
        batch: The batch.
        stream: The stream at its R readouts.
        targets: `[R]`, the tokens that are explained.
        prefix: The shared beginning of its rows, or None.
        prompts: Index, among all prompts, of each row.
    """

    batch: Batch
    stream: Stream
    targets: Tensor
    prefix: Prefix | None


# (setting, what was read) → for each kind [L, R, units].
Scorer = Callable[[Setting, Read], dict[str, Tensor]]


def static_scorer(name: str) -> Scorer:
    """The scorer of a score in `compared`."""

    def score(setting: Setting, read: Read) -> dict[str, Tensor]:
        found = {}
        for kind, writes in setting.writes.items():
            if name in compared.RANKED:
                found[kind] = compared.RANKED[name](read.stream, kind, read.targets, setting.rank(kind))
            else:
                found[kind] = compared.STATIC[name](
                    setting.lens, read.stream, writes, kind, read.targets, budget=setting.options.budget
                )
        return found

    return score


def log_probability_increase(setting: Setting, read: Read) -> dict[str, Tensor]:
    """Log-probability increase in the form that the options ask for; see `importance`."""
    lens, stream, targets, options = setting.lens, read.stream, read.targets, setting.options
    found = {}
    for kind, writes in setting.writes.items():
        if options.form == "first-order":
            found[kind] = importance.first_order(lens, stream, writes, kind, targets, budget=options.budget)
        elif options.form == "exact":
            found[kind] = importance.exact(lens, stream, writes, kind, targets, budget=options.budget)
        else:
            best = importance.top(lens, stream, writes, kind, targets, options.top, budget=options.budget)
            scores = torch.zeros(len(writes), len(targets), len(writes[0].vectors), dtype=lens.dtype)
            scores = scores.to(targets.device)
            for readout, top in enumerate(best):
                scores[top.layers, readout, top.units] = top.values
            found[kind] = scores
    return found


def reads(
    setting: Setting, encoded: Sequence[Encoded], groups: Sequence[str], *, progress: bool = False
) -> Iterator[Read]:
    """Run the model over sequences and hand out what was read, batch by batch, each group's beginning run
    once."""
    model, options = setting.model, setting.options
    prefix: Prefix | None = None
    bar = tqdm(total=len(encoded), desc="prompts", disable=None if progress else True)
    with bar:
        for batch in batches(encoded, groups, batch_size=options.batch_size, device=model.device):
            if not batch.shared:
                prefix = None
            elif prefix is None or prefix.ids != batch.shared:
                prefix = Prefix(model, batch.shared)
            cache = None if prefix is None else prefix.expand(len(batch.members))
            stream = read_stream(model, batch.input_ids, batch.readouts, cache=cache)
            targets = batch.readouts.targets
            if options.answer == "predicted":
                targets = setting.lens.logits(stream.final).argmax(-1)
            yield Read(batch, stream, targets, prefix)
            bar.update(len(batch.members))


def answered_correctly(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    batch_size: int = 16,
) -> list[bool]:
    """Whether the greedy continuation of each prompt is one of its accepted answers."""
    lens = lens_of(model)
    pairs = [
        (index, answer)
        for index, prompt in enumerate(prompts)
        for answer in prompt.accepted or (prompt.answer,)
    ]
    encoded = [encode(tokenizer, prompts[index].text, answer) for index, answer in pairs]
    groups = [prompts[index].concept for index, _ in pairs]
    correct = [False] * len(prompts)
    setting = Setting(model, lens, {}, Options(batch_size=batch_size))
    for read in reads(setting, encoded, groups):
        wrong = lens.logits(read.stream.final).argmax(-1) != read.targets
        missed = set(read.batch.readouts.rows[wrong].tolist())
        for row, member in enumerate(read.batch.members):
            if row not in missed:
                correct[pairs[member][0]] = True
    return correct


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
        peers = self._peers(prompts, concepts, chosen)
        wanted = set(concepts).union(*peers.values())
        prompts = [prompt for prompt in prompts if prompt.concept in wanted]
        first_only = chosen.tokens == "first" or chosen.answer == "predicted"
        encoded = [encode(tokenizer, prompt.text, prompt.answer, first_only=first_only) for prompt in prompts]
        lens = lens_of(model)
        setting = Setting(model, lens, {kind: writes_of(model, kind) for kind in kinds}, chosen)
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
            scores = torch.stack(contrasted(summaries[kind], concepts, chosen.contrast, peers))
            spread = torch.stack([summaries[kind][concept].answer_spread() for concept in concepts])
            for layer, write in enumerate(writes):
                site, width = Site(layer, kind), len(write.vectors)
                here = slice(layer * width, (layer + 1) * width)
                values[site] = _array(scores[:, here])
                references["answer_spread"][site] = _array(spread[:, here])
                references["mean_abs"][site] = _array(mean_abs[kind][layer])
                references["norm"][site] = _array(write.vectors.to(lens.dtype).norm(dim=-1))
        parameters = self._parameters(chosen, prompts, encoded, peers) | notes
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
        correct = answered_correctly(model, tokenizer, prompts, batch_size=options.batch_size)
        kept = [prompt for prompt, right in zip(prompts, correct, strict=True) if right]
        return kept, {"prompts_before_correct_only": _counts(prompts)}

    def _peers(
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
        if options.peers is None:
            return {concept: tuple(other for other in present if other != concept) for concept in concepts}
        chosen = {}
        for concept in concepts:
            chosen[concept] = tuple(peer for peer in options.peers.get(concept, ()) if peer != concept)
            missing = [peer for peer in chosen[concept] if peer not in present]
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
        peers: Mapping[str, Sequence[str]],
    ) -> dict[str, Any]:
        used = asdict(replace(options, peers=None))
        for name in ("peers", "budget_mib"):
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
            "contrast_concepts": {concept: list(others) for concept, others in peers.items()},
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


LOG_PROBABILITY_INCREASE = Attribution("log-probability-increase", log_probability_increase)
VALUE_LOG_PROBABILITY = Attribution("value-log-probability", static_scorer("value-log-probability"))
PROBABILITY_INCREASE = Attribution("probability-increase", static_scorer("probability-increase"))
VALUE_NORM = Attribution("value-norm", static_scorer("value-norm"))
COEFFICIENT = Attribution("coefficient", static_scorer("coefficient"))
COEFFICIENT_NORM = Attribution("coefficient-norm", static_scorer("coefficient-norm"))
DIRECT_LOGIT = Attribution("direct-logit", static_scorer("direct-logit"))
RECIPROCAL_RANK = Attribution("reciprocal-rank", static_scorer("reciprocal-rank"))
COEFFICIENT_RANK = Attribution("coefficient-rank", static_scorer("coefficient-rank"))
