"""Many sets of units switched off one at a time, each in its own row of a batch of one prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interventions.attribution.lens import Lens
from interventions.families import family_of
from interventions.prefix import forward
from interventions.units import base_model, config_of, decoder_layers, follow

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Cut:
    """Units to switch off together.

    Attributes:
        units: "act" or "attn" → (layers `[n]`, units `[n]`).
    """

    units: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcomes:
    """What the model predicts under each of N cuts.

    Attributes:
        log_prob: `[N]`, log probability of the answer token.
        rank: `[N]`, its rank, 1 the most probable.
    """

    log_prob: Tensor
    rank: Tensor


def outcomes(
    model: PreTrainedModel,
    lens: Lens,
    ids: Sequence[int],
    target: int,
    cuts: Sequence[Cut],
    *,
    rows: int = 16,
) -> Outcomes:
    """Answer-token outcomes of one prompt under several cuts.

    Args:
        model: The model.
        lens: Its lens.
        ids: The prompt's tokens; the last one predicts.
        target: The answer token.
        cuts: What to switch off, at all positions; an empty cut leaves the model as it is.
        rows: Cuts that are run together.
    """
    log_probs, ranks = [], []
    for start in range(0, len(cuts), rows):
        logits = lens.logits(_final_states(model, ids, cuts[start : start + rows]))
        own = logits[:, target]
        log_probs.append(own - logits.logsumexp(-1))
        ranks.append(1 + (logits > own[:, None]).sum(-1))
    return Outcomes(torch.cat(log_probs), torch.cat(ranks))


def _final_states(model: PreTrainedModel, ids: Sequence[int], cuts: Sequence[Cut]) -> Tensor:
    """The stream after the last layer at the last position, a row a cut."""
    inner = base_model(model)
    family = family_of(config_of(inner))
    input_ids = torch.tensor([list(ids)] * len(cuts), device=model.device)
    shape = tuple(input_ids.shape)
    final: list[Tensor] = []
    handles = []

    def on_units(rows: Tensor, units: Tensor) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            value = args[0].reshape(*shape, -1).clone()
            value[rows, :, units] = 0
            return (value.reshape(args[0].shape), *args[1:])

        return hook

    try:
        for index, layer in enumerate(decoder_layers(inner)):
            for kind in ("act", "attn"):
                rows, units = [], []
                for row, cut in enumerate(cuts):
                    if kind in cut.units:
                        layers, own = cut.units[kind]
                        own = own[layers == index]
                        rows.append(torch.full_like(own, row))
                        units.append(own)
                if rows and sum(map(len, rows)):
                    hook = on_units(torch.cat(rows).to(model.device), torch.cat(units).to(model.device))
                    module = follow(layer, family.slots[kind].module)
                    handles.append(module.register_forward_pre_hook(hook))
        norm = follow(inner, family.final_norm)
        handles.append(norm.register_forward_pre_hook(lambda _, args: final.append(args[0][:, -1])))
        with torch.no_grad():
            forward(inner, input_ids)  # type: ignore[arg-type]
    finally:
        for handle in handles:
            handle.remove()
    return final[0]
