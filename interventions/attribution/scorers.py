"""Scorers: from a batch of prompts that the model has read to a score for each unit at each readout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from interventions.attribution import compared, gradients, importance
from interventions.attribution.lens import Lens
from interventions.attribution.options import Options
from interventions.attribution.readouts import Batch, Encoded, batches, whole_rows
from interventions.attribution.stream import Stream, Write, read_stream
from interventions.prefix import Prefix

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Setting:
    """What a scorer has at hand: made once for a run.

    Attributes:
        model: The model.
        lens: Its lens.
        writes: For each kind that is scored, the writes of every layer.
        options: The options.
        ranks: Token ranks, for the kinds that a method asked them of.
        encoded: The tokens of every prompt.
        counterfactuals: The tokens of each prompt's counterfactual, for attribution patching.
    """

    model: PreTrainedModel
    lens: Lens
    writes: dict[str, list[Write]]
    options: Options
    ranks: dict[str, compared.Ranks] = field(default_factory=dict)
    encoded: Sequence[Encoded] = ()
    counterfactuals: Sequence[Encoded] = ()

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
    """

    batch: Batch
    stream: Stream
    targets: Tensor
    prefix: Prefix | None

    def cache(self) -> Any:
        """A fresh key-value cache of what the rows begin with, or None."""
        return None if self.prefix is None else self.prefix.expand(len(self.batch.members))


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


def gradient_activation(setting: Setting, read: Read) -> dict[str, Tensor]:
    """Gradient times activation; see `gradients`."""
    readouts = read.batch.readouts._replace(targets=read.targets)
    return gradients.gradient_activation(
        setting.model, setting.lens, read.batch.input_ids, readouts, tuple(setting.writes), cache=read.cache()
    )


def integrated_gradients(setting: Setting, read: Read) -> dict[str, Tensor]:
    """Integrated gradients on activations, readout by readout; see `gradients`."""
    found: dict[str, list[Tensor]] = {kind: [] for kind in setting.writes}
    readouts = read.batch.readouts
    for row, position, target in zip(
        readouts.rows.tolist(), readouts.positions.tolist(), read.targets.tolist(), strict=True
    ):
        ids = setting.encoded[read.batch.members[row]].ids[: len(read.batch.shared) + position + 1]
        for kind, scores in gradients.integrated_gradients(
            setting.model,
            setting.lens,
            ids,
            target,
            tuple(setting.writes),
            steps=setting.options.steps,
            prefix=read.prefix,
        ).items():
            found[kind].append(scores)
    return {kind: torch.stack(scores, dim=1) for kind, scores in found.items()}


def attribution_patching(setting: Setting, read: Read) -> dict[str, Tensor]:
    """Attribution patching against each prompt's counterfactual; see `gradients`."""
    model, lens, kinds = setting.model, setting.lens, tuple(setting.writes)
    corrupt = whole_rows([setting.counterfactuals[index] for index in read.batch.members], model.device)
    readouts = read.batch.readouts._replace(targets=read.targets)
    if setting.options.counterfactual_positions == "last":
        stream = read_stream(model, corrupt.input_ids, corrupt.readouts)
        values = {kind: torch.stack(stream.units[kind]) for kind in kinds}
        return gradients.attribution_patching(
            model, lens, read.batch.input_ids, readouts, values, kinds, cache=read.cache()
        )
    clean = whole_rows([setting.encoded[index] for index in read.batch.members], model.device)
    places = clean.readouts._replace(targets=read.targets)
    by_row = gradients.attribution_patching_everywhere(
        model, lens, clean.input_ids, places, corrupt.input_ids, kinds
    )
    # A prompt's score is the sum over its readouts: all of it goes to the first.
    first = torch.searchsorted(readouts.rows, torch.arange(len(read.batch.members), device=model.device))
    found = {}
    for kind, scores in by_row.items():
        found[kind] = scores.new_zeros(len(scores), len(readouts.rows), scores.shape[-1])
        found[kind][:, first] = scores
    return found


def reads(
    setting: Setting, encoded: Sequence[Encoded], groups: Sequence[str], *, progress: bool = False
) -> Iterator[Read]:
    """Run the model over sequences batch by batch, each group's shared beginning once."""
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
