"""Log-probability increase: what a unit's write to the residual stream does for the answer token.

`Imp(v) = log p(w | x + v) - log p(w | x)` under the lens (arXiv 2312.12141), x the stream before the
sublayer. With `u = S v`, `p = softmax(S x)` and `c = u - E_p[u]`, `Imp(m v) = m c_w - log1p(sum_t p_t expm1(m
c_t))`. Its first term, the first-order score `m v' S' (e_w - p)`, bounds it from above (Jensen), for either
sign of m. So the exact top K needs the vocabulary-sized second term only for units whose bound reaches the
K-th best value found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from interventions.attribution.lens import DEFAULT_BUDGET, Base, Lens
from interventions.attribution.stream import Stream, Write

# Candidates evaluated between two looks at the K-th best value.
_STEP = 24


class Top(NamedTuple):
    """The K units of largest exact value at one readout, best first.

    Attributes:
        values: `[K]`.
        layers: `[K]`.
        units: `[K]`, index in the layer.
        positions: `[K]`, of attention units by position; otherwise zeros.
        evaluated: How many needed the full evaluation.
    """

    values: Tensor
    layers: Tensor
    units: Tensor
    positions: Tensor
    evaluated: int


def increase(
    lens: Lens, base: Base, u: Tensor, coefficients: Tensor, rows: Tensor | int, targets: Tensor
) -> Tensor:
    """Exact log-probability increase of N writes.

    Args:
        lens: The lens.
        base: The lens of B states.
        u: `[N, V]`, raw logits of the writes at coefficient one (`lens.linear`); overwritten.
        coefficients: `[N]`.
        rows: `[N]`, which state each write is added to, equal ones side by side; or one state for all.
        targets: `[B]`, token ids of the states.

    Returns:
        `[N]`.
    """
    target = targets[rows].expand(len(u))[:, None]
    if lens.softcap is not None:
        assert base.raw is not None
        logits = lens.cap(base.raw[rows] + coefficients[:, None] * u)
        return logits.log_softmax(-1).gather(-1, target)[:, 0] - base.log_prob[rows]
    centred = u.sub_(_expectation(u, base.probs, rows)[:, None])
    linear = coefficients * centred.gather(-1, target)[:, 0]
    tail = _expectation(centred.mul_(coefficients[:, None]).expm1_(), base.probs, rows)
    return linear - tail.log1p()


def _expectation(values: Tensor, probs: Tensor, rows: Tensor | int) -> Tensor:
    """`sum_t p_t values_nt` under each row's probabilities, one matrix-vector product a run of equal rows."""
    if isinstance(rows, int):
        return values @ probs[rows]
    own, counts = rows.unique_consecutive(return_counts=True)
    parts = zip(own.tolist(), values.split(counts.tolist()), strict=True)
    return torch.cat([part @ probs[row] for row, part in parts])


def of_vectors(
    lens: Lens,
    base: Base,
    vectors: Tensor,
    rows: Tensor,
    scale: Tensor,
    targets: Tensor,
    *,
    coefficients: Tensor | None = None,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """Exact log-probability increase of whole vectors: a layer, a head, one position of a head, some units.

    Args:
        lens: The lens.
        base: The lens of B states.
        vectors: `[N, d]`.
        rows: `[N]`, which state each vector is added to.
        scale: `[B]`, frozen scales.
        targets: `[B]`, token ids.
        coefficients: `[N]`, factors of the vectors; None for ones.
        budget: Bytes that vocabulary-sized blocks may take.

    Returns:
        `[N]`.
    """
    if coefficients is None:
        coefficients = torch.ones(len(vectors), dtype=lens.dtype, device=vectors.device)
    result = torch.empty(len(vectors), dtype=lens.dtype, device=vectors.device)
    block = lens.rows_within(budget)
    for start in range(0, len(vectors), block):
        part = slice(start, start + block)
        u = lens.linear(vectors[part], scale[rows[part]])
        result[part] = increase(lens, base, u, coefficients[part], rows[part], targets)
    return result


def directions(
    lens: Lens, states: Tensor, scale: Tensor, targets: Tensor, *, budget: int = DEFAULT_BUDGET
) -> Tensor:
    """`S' (e_w - p)` at every layer and readout: all layers share each product with the unembedding.

    Args:
        lens: The lens.
        states: `[L, R, d]`.
        scale: `[R]`, frozen scales.
        targets: `[R]`, token ids.
        budget: Bytes that vocabulary-sized blocks may take.

    Returns:
        `[L, R, d]`.
    """
    layers = states.shape[0]
    flat, scales, tokens = states.flatten(0, 1), scale.repeat(layers), targets.repeat(layers)
    result = torch.empty(flat.shape, dtype=lens.dtype, device=flat.device)
    block = lens.rows_within(budget)
    for start in range(0, len(flat), block):
        part = slice(start, start + block)
        base = lens.base(flat[part], scales[part], tokens[part])
        result[part] = lens.gradient(base, scales[part], tokens[part])
    return result.view(states.shape)


def first_order(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """First-order log-probability increase of every unit, `m v' S' (e_w - p)`: the bound of the exact one.

    Args:
        lens: The lens.
        stream: The stream at R readouts.
        writes: The kind's writes, a layer each.
        kind: "act" or "attn" (an attention unit's positions are summed).
        targets: `[R]`, token ids.
        budget: Bytes that vocabulary-sized blocks may take.

    Returns:
        `[L, R, units]`.
    """
    scale = lens.scale(stream.final)
    gradients = directions(lens, stream.before(kind), scale, targets, budget=budget)
    return along(gradients, stream, writes, kind)


def along(gradients: Tensor, stream: Stream, writes: Sequence[Write], kind: str) -> Tensor:
    """`m v' g`: every unit's write along `[L, R, d]` gradients of the residual stream, `[L, R, units]`."""
    return torch.stack(
        [
            stream.coefficients(kind, layer, gradients.dtype)
            * (gradients[layer] @ write.vectors.T.to(gradients.dtype))
            for layer, write in enumerate(writes)
        ]
    )


def exact(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """Exact log-probability increase of every unit of a kind; the readouts share each unit's unembedding.

    Arguments and result as in `first_order`.
    """
    scale = lens.scale(stream.final)
    states = stream.before(kind)
    result = []
    for layer, write in enumerate(writes):
        coefficients = stream.coefficients(kind, layer, lens.dtype)
        values = torch.empty_like(coefficients)
        for readouts in torch.arange(len(scale)).split(lens.rows_within(budget // 2)):
            base = lens.base(states[layer, readouts], scale[readouts], targets[readouts])
            for units in torch.arange(len(write.vectors)).split(lens.rows_within(budget // 2)):
                part = slice(int(units[0]), int(units[-1]) + 1)
                shared = lens.read(write.vectors[part]) @ lens.unembedding.T
                for row, readout in enumerate(readouts.tolist()):
                    values[readout, part] = increase(
                        lens,
                        base,
                        shared / scale[readout],
                        coefficients[readout, part],
                        row,
                        targets[readouts],
                    )
        result.append(values)
    return torch.stack(result)


def top(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    kind: str,
    targets: Tensor,
    k: int,
    *,
    probability: bool = False,
    budget: int = DEFAULT_BUDGET,
) -> list[Top]:
    """The K units of largest exact log-probability increase of the whole model, at each readout.

    Bounds are computed for all units, batched over layers and readouts; the full evaluation only while a
    bound, with room for its rounding, reaches the K-th best exact value. Softcapped logits void the bound, so
    there every unit is evaluated.

    Args:
        k: How many units; fewer come back when the model has fewer.
        probability: Rank by the increase of the probability, `p(w | x) expm1(Imp)`, and give that.
        lens, stream, writes, kind, targets, budget: As in `first_order`.
    """
    scale = lens.scale(stream.final)
    states = stream.before(kind).to(lens.dtype)
    layers, readouts = states.shape[:2]
    norms = torch.stack([write.norms for write in writes])
    found = []
    block = max(1, lens.rows_within(budget) // layers)
    for start in range(0, readouts, block):
        part = slice(start, start + block)
        size = len(scale[part])
        # Rows are (layer, readout), layer-major, as in `directions`.
        scales, tokens = scale[part].repeat(layers), targets[part].repeat(layers)
        base = lens.base(states[:, part].flatten(0, 1), scales, tokens)
        gradients = lens.gradient(base, scales, tokens).view(layers, size, -1)
        for offset in range(size):
            rows = torch.arange(layers, device=scale.device) * size + offset
            own = base.at(rows)
            coefficients = torch.stack(
                [stream.coefficients(kind, layer, lens.dtype)[start + offset] for layer in range(layers)]
            )
            dots = torch.stack(
                [w.vectors.to(lens.dtype) @ gradients[i, offset] for i, w in enumerate(writes)]
            )
            rounding = coefficients.abs() * norms * gradients[:, offset].norm(dim=-1, keepdim=True)
            upper = coefficients * dots + 8 * torch.finfo(lens.dtype).eps * rounding
            found.append(
                _top(
                    lens,
                    own,
                    writes,
                    coefficients[..., None],
                    upper[..., None],
                    scale[start + offset],
                    targets[start + offset],
                    k,
                    budget,
                    weights=own.log_prob.exp() if probability else None,
                )
            )
    return found


def top_by_position(
    lens: Lens,
    stream: Stream,
    writes: Sequence[Write],
    coefficients: Tensor,
    target: Tensor,
    k: int,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Top:
    """The K pairs of attention unit and position of largest exact log-probability increase, at one readout.

    A unit's write is the same at every position, so it is unembedded once however many positions it is scored
    at.

    Args:
        lens: The lens.
        stream: The stream at the one readout.
        writes: The attention's writes, a layer each.
        coefficients: `[L, units, T]`, from `Attention.coefficients`.
        target: Scalar, the token id.
        k: How many pairs.
        budget: Bytes that vocabulary-sized blocks may take.
    """
    layers = stream.n_layers
    scale = lens.scale(stream.final)
    scales, targets = scale.expand(layers), target.expand(layers)
    base = lens.base(stream.inputs[:, 0], scales, targets)
    gradients = lens.gradient(base, scales, targets)
    coefficients = coefficients.to(lens.dtype)
    if "attn" in stream.post_scale:
        coefficients = coefficients / stream.post_scale["attn"].to(lens.dtype)[:, :, None]
    vectors = [write.vectors.to(lens.dtype) for write in writes]
    dots = torch.stack([v @ gradients[layer] for layer, v in enumerate(vectors)])
    norms = torch.stack([write.norms for write in writes]) * gradients.norm(dim=-1, keepdim=True)
    upper = coefficients * dots[..., None]
    upper = upper + 8 * torch.finfo(lens.dtype).eps * coefficients.abs() * norms[..., None]
    return _top(lens, base, writes, coefficients, upper, scale[0], target, k, budget)


def _top(
    lens: Lens,
    base: Base,
    writes: Sequence[Write],
    coefficients: Tensor,
    upper: Tensor,
    scale: Tensor,
    target: Tensor,
    k: int,
    budget: int,
    *,
    weights: Tensor | None = None,
) -> Top:
    """The pruned search at one readout.

    `coefficients` and `upper` are `[L, units, P]`, `base` has a row a layer. With `weights` `[L]` the values
    are `weights expm1(increase)`, which grow with the increase, so that the bound carries over.
    """
    layers, width, positions = upper.shape
    if weights is not None:
        upper = weights[:, None, None] * upper.expm1()
    k = min(k, upper.numel())
    bounds, order = upper.flatten().sort(descending=True)
    values = torch.empty(0, dtype=lens.dtype, device=upper.device)
    scales, targets = scale.expand(layers), target.expand(layers)
    # Softcapping voids the bound: everything is evaluated.
    reach = len(order) if lens.softcap is not None else k
    flat = coefficients.flatten()
    while len(values) < reach:
        chosen = order[len(values) : reach]
        new = torch.empty(len(chosen), dtype=lens.dtype, device=upper.device)
        block = lens.rows_within(budget)
        for start in range(0, len(chosen), block):
            part, back = chosen[start : start + block].sort()
            units, place = (part // positions).unique(return_inverse=True)
            rows = units // width
            vectors = torch.empty(
                len(units), writes[0].vectors.shape[1], dtype=lens.dtype, device=upper.device
            )
            for layer in rows.unique().tolist():
                here = rows == layer
                vectors[here] = writes[layer].vectors[units[here] % width].to(lens.dtype)
            u = lens.linear(vectors, scales[rows])
            u = u if len(units) == len(part) else u[place]
            values_here = increase(lens, base, u, flat[part], rows[place], targets)
            if weights is not None:
                values_here = weights[rows[place]] * values_here.expm1()
            new[start + back] = values_here
        values = torch.cat([values, new])
        worst = values.topk(k).values[-1]
        # Bounds fall, so the units whose bound reaches the K-th best value are the next ones in order.
        reach = min(int((bounds >= worst).sum()), len(values) + _STEP, len(order))
    best = values.topk(k)
    winners = order[best.indices]
    units = winners // positions
    return Top(best.values, units // width, units % width, winners % positions, len(values))
