"""Float64 brute force: the formulas of static attribution written out, one unit at a time."""

from __future__ import annotations

import torch
from torch import Tensor


class Brute:
    """Scores at one readout of a stream in double precision.

    Everything is recomputed by the plain definitions: a unit's write is what the sublayer's output changes by
        when
    that unit alone is removed from the (recorded) input of the output projection, the post-norm's scale held
    fixed.
    """

    def __init__(self, model, lens, stream, writes, kind: str, readout: int, target: int) -> None:
        self.lens, self.stream, self.writes, self.kind = lens, stream, writes, kind
        self.readout, self.target = readout, target
        self.final = stream.final[readout]

    def _logits(self, state: Tensor) -> Tensor:
        lens = self.lens
        final = self.final - self.final.mean() if lens.centre else self.final
        scale = torch.sqrt((final * final).mean() + lens.eps)
        state = state - state.mean() if lens.centre else state
        logits = lens.unembedding @ (lens.gain * state / scale)
        if lens.offset is not None:
            logits = logits + lens.offset
        if lens.softcap is not None:
            logits = lens.softcap * torch.tanh(logits / lens.softcap)
        return logits

    def log_prob(self, state: Tensor) -> Tensor:
        return torch.log_softmax(self._logits(state), -1)[self.target]

    def state(self, layer: int) -> Tensor:
        stream = self.stream
        state = stream.inputs[layer, self.readout]
        if self.kind == "act" and not stream.parallel:
            state = state + stream.attention[layer, self.readout]
        return state

    def write(self, layer: int, unit: int) -> Tensor:
        value = self.stream.units[self.kind][layer][self.readout, unit]
        if self.kind in self.stream.post_scale:
            value = value / self.stream.post_scale[self.kind][layer, self.readout]
        return value * self.writes[layer].vectors[unit]

    def each(self, score) -> Tensor:
        """`score(layer, unit)` for every unit, `[L, units]`."""
        return torch.stack(
            [
                torch.stack([torch.as_tensor(score(layer, unit)) for unit in range(len(write.vectors))])
                for layer, write in enumerate(self.writes)
            ]
        )

    def increase(self, layer: int, unit: int) -> Tensor:
        before = self.state(layer)
        return self.log_prob(before + self.write(layer, unit)) - self.log_prob(before)

    def first_order(self, layer: int, unit: int) -> Tensor:
        before = self.state(layer).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.log_prob(before), before)
        return gradient @ self.write(layer, unit)
