"""The lens: the final norm and the unembedding, read as a linear map from the residual stream to logits.

The norm's scale is frozen at its true value for the final hidden state, so that the logits of a sum are the
sum of the logits (arXiv 2312.12141). The lens of the final hidden state equals the model's logits exactly:
gains, norm and head biases, and the softcapping of the logits are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from interventions.attribution.norms import norm_eps, norm_gain
from interventions.errors import UserError
from interventions.families import family_of
from interventions.units import base_model, config_of, follow

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Bytes that one block of vocabulary-sized rows may take; all of this package's loops over logits obey it.
DEFAULT_BUDGET = 256 * 2**20


class Base(NamedTuple):
    """What the lens says of N residual-stream states before anything is added to them.

    Attributes:
        logits: `[N, V]`, after softcapping.
        probs: `[N, V]`, their softmax.
        log_prob: `[N]`, log probability of each state's target token.
        slope: `[N, V]`, derivative of the softcapped logits by the raw ones; None without softcapping.
        raw: `[N, V]`, logits before softcapping; None without softcapping.
    """

    logits: Tensor
    probs: Tensor
    log_prob: Tensor
    slope: Tensor | None
    raw: Tensor | None

    def at(self, rows: Tensor) -> Base:
        """The part of some states."""
        slope, raw = self.slope, self.raw
        return Base(
            self.logits[rows],
            self.probs[rows],
            self.log_prob[rows],
            None if slope is None else slope[rows],
            None if raw is None else raw[rows],
        )


@dataclass(frozen=True)
class Lens:
    """Final norm and unembedding of one model.

    Attributes:
        unembedding: `[V, d]`, the output embedding.
        gain: `[d]`, the final norm's gain (for Gemma: 1 + its weight).
        centre: Whether the norm subtracts the mean (LayerNorm).
        eps: The norm's epsilon.
        offset: `[V]`, logits of the zero vector: unembedded norm bias plus head bias; None when there is
            neither.
        softcap: Logits are `softcap * tanh(logits / softcap)`; None for no softcapping.
    """

    unembedding: Tensor
    gain: Tensor
    centre: bool
    eps: float
    offset: Tensor | None = None
    softcap: float | None = None

    @property
    def vocab_size(self) -> int:
        return self.unembedding.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.unembedding.dtype

    def rows_within(self, budget: int, copies: int = 4) -> int:
        """How many rows of `copies` vocabulary-sized tensors fit into `budget` bytes, at least one."""
        return max(1, budget // (self.vocab_size * self.unembedding.element_size() * copies))

    def scale(self, final: Tensor) -> Tensor:
        """The final norm's divisor: root mean square or standard deviation.

        Args:
            final: `[..., d]`, the residual stream after the last layer.

        Returns:
            `[...]`.
        """
        final = final.to(self.dtype)
        if self.centre:
            final = final - final.mean(-1, keepdim=True)
        return (final.square().mean(-1) + self.eps).sqrt()

    def read(self, vectors: Tensor) -> Tensor:
        """`diag(gain) (I - 11'/d) v` `[..., d]`: what the unembedding sees of stream vectors, unscaled."""
        vectors = vectors.to(self.dtype)
        if self.centre:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors * self.gain

    def read_back(self, directions: Tensor) -> Tensor:
        """The transpose of `read`: from gradients after the norm to gradients in the stream, `[..., d]`."""
        directions = directions * self.gain
        if self.centre:
            directions = directions - directions.mean(-1, keepdim=True)
        return directions

    def linear(self, vectors: Tensor, scale: Tensor) -> Tensor:
        """`S v`: the change of the raw logits by residual-stream vectors.

        Args:
            vectors: `[N, d]`.
            scale: `[N]`, frozen scales.

        Returns:
            `[N, V]`.
        """
        return (self.read(vectors) / scale[..., None].to(self.dtype)) @ self.unembedding.T

    def cap(self, raw: Tensor) -> Tensor:
        """Raw logits after softcapping."""
        return raw if self.softcap is None else self.softcap * torch.tanh(raw / self.softcap)

    def raw_logits(self, states: Tensor, scale: Tensor) -> Tensor:
        """Logits `[N, V]` of states `[N, d]` under frozen scales `[N]`, before softcapping."""
        logits = self.linear(states, scale)
        return logits if self.offset is None else logits + self.offset

    def logits(self, states: Tensor, scale: Tensor | None = None) -> Tensor:
        """Logits of states `[N, d]`; `scale` None means each state's own, as for the final hidden state."""
        return self.cap(self.raw_logits(states, self.scale(states) if scale is None else scale))

    def base(self, states: Tensor, scale: Tensor, targets: Tensor) -> Base:
        """Probabilities and target log probabilities of states, kept for scoring what is added to them.

        Args:
            states: `[N, d]`.
            scale: `[N]`, frozen scales.
            targets: `[N]`, token ids.
        """
        raw = self.raw_logits(states, scale)
        logits = self.cap(raw)
        log_probs = logits.log_softmax(-1)
        log_prob = log_probs.gather(-1, targets[:, None])[:, 0]
        if self.softcap is None:
            return Base(logits, log_probs.exp(), log_prob, None, None)
        return Base(logits, log_probs.exp(), log_prob, 1 - (logits / self.softcap).square(), raw)

    def gradient(self, base: Base, scale: Tensor, targets: Tensor) -> Tensor:
        """`S' (e_w - p)`: gradient of the target's log probability by the state.

        Returns:
            `[N, d]`.
        """
        if base.slope is None:
            back = self.unembedding[targets] - base.probs @ self.unembedding
        else:
            slope_at_target = base.slope.gather(-1, targets[:, None])
            back = self.unembedding[targets] * slope_at_target - (base.probs * base.slope) @ self.unembedding
        return self.read_back(back / scale[:, None].to(self.dtype))


def lens_of(model: PreTrainedModel) -> Lens:
    """The lens of a causal language model.

    Half-precision weights are read into float32 once: a lens in half precision has no use.

    Raises:
        UserError: The family has no lens; the message names what is missing.
    """
    model = base_model(model)  # type: ignore[assignment]
    config = config_of(model)
    family = family_of(config)
    refusal = _refusal(config)
    if refusal:
        raise UserError(f"no lens for this {family.model_type} model: {refusal}")
    head, norm = follow(model, family.unembedding), follow(model, family.final_norm)
    half = head.weight.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if half else head.weight.dtype
    unembedding = head.weight.detach().to(dtype)
    offset = None
    for bias in (getattr(norm, "bias", None), getattr(head, "bias", None)):
        if bias is not None:
            logits = bias.detach().to(dtype)
            logits = unembedding @ logits if bias is getattr(norm, "bias", None) else logits
            offset = logits if offset is None else offset + logits
    cap = getattr(config, family.logit_softcap, None) if family.logit_softcap else None
    return Lens(
        unembedding=unembedding,
        gain=norm_gain(norm, family.norm_offset).to(dtype),
        centre=family.norm == "layer",
        eps=norm_eps(norm),
        offset=offset,
        softcap=None if cap is None else float(cap),
    )


def _refusal(config: Any) -> str | None:
    """Why a model of a known family has no lens, or None."""
    # OPT-350m: the norm follows the residual addition and a projection stands before the unembedding.
    if not getattr(config, "do_layer_norm_before", True):
        return "its norms follow the residual additions (do_layer_norm_before=False), so the stream is no sum"
    if getattr(config, "_remove_final_layer_norm", False):
        return "it has no final norm (_remove_final_layer_norm)"
    width = getattr(config, "word_embed_proj_dim", None)
    if width is not None and width != config.hidden_size:
        return "a projection stands between the final state and the unembedding (word_embed_proj_dim)"
    if getattr(config, "apply_residual_connection_post_layernorm", False):
        return "its residual is taken after the norm (apply_residual_connection_post_layernorm)"
    return None
