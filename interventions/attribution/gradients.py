"""Attribution by gradients of the whole model, not of the lens.

Gradient times activation, integrated gradients on activations, and attribution patching.

Unlike the lens, these count what later layers do with a unit's write. A unit's gradient is read where its
activation enters the output projection; every function gives scores of the shape that
`importance.first_order` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from interventions.attribution.lens import Lens
from interventions.attribution.readouts import Readouts
from interventions.errors import UserError
from interventions.families import family_of
from interventions.prefix import Prefix, forward
from interventions.units import base_model, config_of, decoder_layers, follow

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# (kind, layer, activations [B, T, units]) -> activations to go on with.
Change = Callable[[str, int, Tensor], Tensor]


class Gradients(NamedTuple):
    """Activations and gradients of the units of a batch.

    Attributes:
        values: kind → `[L, B, T, units]`, the activations.
        slopes: kind → the same shape: derivative of the summed objective by them.
    """

    values: dict[str, Tensor]
    slopes: dict[str, Tensor]


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No gradients of weights: only activations are asked for."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def unit_gradients(
    model: PreTrainedModel,
    lens: Lens,
    input_ids: Tensor,
    readouts: Readouts,
    kinds: Sequence[str],
    *,
    cache: Any = None,
    change: Change | None = None,
    objective: str = "log-probability",
) -> Gradients:
    """Gradient of the sum over readouts of the targets' (log) probability by every unit's activation.

    Args:
        model: The model.
        lens: Its lens, which turns the final state into logits.
        input_ids: `[B, T]`.
        readouts: R places and tokens.
        kinds: "act", "attn" or both.
        cache: Key-value cache of what comes before.
        change: Replaces activations; gradients are then by the replaced ones.
        objective: "log-probability" or "probability".
    """
    inner = base_model(model)
    family = family_of(config_of(inner))
    layers = decoder_layers(inner)
    shape = tuple(input_ids.shape)
    values: dict[tuple[str, int], Tensor] = {}
    shifts: dict[tuple[str, int], Tensor] = {}
    final: list[Tensor] = []
    handles = []

    def on_units(kind: str, index: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            # OPT's FFN sees batch and sequence as one dimension.
            value = args[0].reshape(*shape, -1)
            value = value if change is None else change(kind, index, value)
            values[kind, index] = value.detach()
            # The gradient by a shift of zero is the gradient by the value, and cuts no path through it.
            shifts[kind, index] = torch.zeros_like(value, requires_grad=True)
            return ((value + shifts[kind, index]).reshape(args[0].shape), *args[1:])

        return hook

    try:
        for index, layer in enumerate(layers):
            for kind in kinds:
                module = follow(layer, family.slots[kind].module)
                handles.append(module.register_forward_pre_hook(on_units(kind, index)))
        norm = follow(inner, family.final_norm)
        handles.append(norm.register_forward_pre_hook(lambda _, args: final.append(args[0])))
        with torch.enable_grad(), _frozen(inner):
            forward(inner, input_ids, cache)  # type: ignore[arg-type]
            states = final[0][readouts.rows, readouts.positions]
            log_probs = lens.logits(states).log_softmax(-1).gather(-1, readouts.targets[:, None])
            total = log_probs.sum() if objective == "log-probability" else log_probs.exp().sum()
            slopes = torch.autograd.grad(total, list(shifts.values()))
    finally:
        for handle in handles:
            handle.remove()
    by_site = dict(zip(shifts, slopes, strict=True))
    numbers = range(len(layers))
    return Gradients(
        values={kind: torch.stack([values[kind, layer] for layer in numbers]) for kind in kinds},
        slopes={kind: torch.stack([by_site[kind, layer] for layer in numbers]) for kind in kinds},
    )


def gradient_activation(
    model: PreTrainedModel,
    lens: Lens,
    input_ids: Tensor,
    readouts: Readouts,
    kinds: Sequence[str],
    *,
    cache: Any = None,
) -> dict[str, Tensor]:
    """Gradient times activation: `m d log p(answer) / d m`, `[L, R, units]` by kind.

    At each readout of a prompt, the log probability is that of the prompt's answer tokens from there on, so
    that the scores sum over readouts to the activations' first-order effect on the whole answer.
    """
    found = unit_gradients(model, lens, input_ids, readouts, kinds, cache=cache)
    at = (slice(None), readouts.rows, readouts.positions)
    return {kind: found.values[kind][at] * found.slopes[kind][at] for kind in kinds}


def attribution_patching(
    model: PreTrainedModel,
    lens: Lens,
    input_ids: Tensor,
    readouts: Readouts,
    corrupt: dict[str, Tensor],
    kinds: Sequence[str],
    *,
    cache: Any = None,
) -> dict[str, Tensor]:
    """`(m_clean - m_corrupt) d log p(answer) / d m` at the clean run's readouts, `[L, R, units]` by kind.

    The linear estimate of what patching the corrupt run's activation into the clean run takes from the
    answer's log probability (N. Nanda, "Attribution patching", 2023), with the sign of a loss.

    Args:
        corrupt: kind → `[L, R, units]`, activations of the counterfactual run at the matching positions.
        model, lens, input_ids, readouts, kinds, cache: As in `unit_gradients`.
    """
    found = unit_gradients(model, lens, input_ids, readouts, kinds, cache=cache)
    at = (slice(None), readouts.rows, readouts.positions)
    return {kind: (found.values[kind][at] - corrupt[kind]) * found.slopes[kind][at] for kind in kinds}


def attribution_patching_everywhere(
    model: PreTrainedModel,
    lens: Lens,
    input_ids: Tensor,
    readouts: Readouts,
    corrupt_ids: Tensor,
    kinds: Sequence[str],
) -> dict[str, Tensor]:
    """Attribution patching summed over all positions of a row and its counterfactual of equal length.

    Args:
        corrupt_ids: `[B, T]`, token by token the counterfactual of `input_ids`; padding at the same places.
        model, lens, input_ids, readouts, kinds: As in `unit_gradients`.

    Returns:
        kind → `[L, B, units]`.

    Raises:
        UserError: The two are of different length.
    """
    if input_ids.shape != corrupt_ids.shape:
        raise UserError("attribution patching at all positions needs prompts of equal length in tokens")
    found = unit_gradients(model, lens, input_ids, readouts, kinds)
    other = unit_values(model, corrupt_ids, kinds)
    # Padding gets no gradient: no readout depends on what comes after it.
    return {kind: ((found.values[kind] - other[kind]) * found.slopes[kind]).sum(2) for kind in kinds}


def unit_values(model: PreTrainedModel, input_ids: Tensor, kinds: Sequence[str]) -> dict[str, Tensor]:
    """Activations `[L, B, T, units]` by kind."""
    from interventions.units import Site, capture

    numbers = range(len(decoder_layers(model)))
    sites = [Site(layer, kind) for layer in numbers for kind in kinds]
    with torch.no_grad(), capture(model, sites) as captured:
        forward(base_model(model), input_ids)  # type: ignore[arg-type]
    return {kind: torch.stack([captured[Site(layer, kind)] for layer in numbers]) for kind in kinds}


def integrated_gradients(
    model: PreTrainedModel,
    lens: Lens,
    ids: Sequence[int],
    target: int,
    kinds: Sequence[str],
    *,
    steps: int = 20,
    prefix: Prefix | None = None,
    rows: int = 64,
) -> dict[str, Tensor]:
    """Integrated gradients on activations: `(m / S) sum_s d p(w) / d m` at `m s / S`, `[L, units]` by kind.

    The knowledge-neuron score (arXiv 2104.08696). All units of one layer and kind are scaled together at the
    last position, one layer at a time, so that a layer's scores sum to what switching it off there takes from
    p(w), up to the error of the Riemann sum. The positions before are run once: a change at the last leaves
    them alone.

    Where a norm follows the sublayer (Gemma 2 and 3, OLMo 2) scaling all of its input changes nothing until
    next to 0, so most of the integral is missed there and the scores keep only their order.

    Args:
        model: The model.
        lens: Its lens.
        ids: Tokens of the prompt; the last one is where the target is predicted.
        target: The answer token.
        kinds: "act", "attn" or both.
        steps: S.
        prefix: A cache of a beginning of `ids`, or None.
        rows: Scaled copies that are run together: this bounds the memory.
    """
    context = Prefix(model, ids[:-1], start=prefix) if len(ids) > 1 else None
    device = model.device
    numbers = len(decoder_layers(model))
    last = torch.tensor([[ids[-1]]], device=device)
    cases = torch.cartesian_prod(torch.arange(numbers), torch.arange(1, steps + 1)).to(device)
    found = {}
    for kind in kinds:
        total: Tensor | None = None
        for part in cases.split(rows):
            layers, factors = part[:, 0], (part[:, 1] / steps)[:, None, None]
            readouts = Readouts(
                torch.arange(len(part), device=device),
                torch.zeros(len(part), dtype=torch.long, device=device),
                torch.full((len(part),), target, device=device),
            )

            def scale(
                _: str, layer: int, value: Tensor, layers: Tensor = layers, factors: Tensor = factors
            ) -> Tensor:
                return torch.where((layers == layer)[:, None, None], value * factors.to(value.dtype), value)

            gradients = unit_gradients(
                model,
                lens,
                last.expand(len(part), -1),
                readouts,
                (kind,),
                cache=None if context is None else context.expand(len(part)),
                change=scale,
                objective="probability",
            )
            own = (layers, torch.arange(len(part), device=device))
            slopes = gradients.slopes[kind][..., 0, :][own]
            # The unscaled activation is the scaled one over its factor.
            values = gradients.values[kind][..., 0, :][own] / factors[:, 0]
            if total is None:
                total = torch.zeros(numbers, slopes.shape[-1], dtype=slopes.dtype, device=device)
            total.index_add_(0, layers, slopes * values / steps)
        assert total is not None
        found[kind] = total
    return found
