"""Attention masks for packs: every slot sees the stem and its own ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from relbench.engine.packs import Pack

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig


def windows_of(config: PreTrainedConfig) -> dict[str, int | None] | int | None:
    """How far back layers see, None for all the way: by layer type where the model has several masks."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return window
    return {kind: window if kind == "sliding_attention" else None for kind in set(kinds)}


def attention_of(
    packs: Sequence[Pack], stem: int, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> Tensor | dict[str, Tensor]:
    """What the model takes as `attention_mask` for a batch of packs after a stem of `stem` tokens.

    Returns:
        [packs, stem + width] of ones when all are chains, where the model's own causal mask will do; padding
        stands on the right, where no real token sees it. Else additive masks [packs, 1, width, stem + width],
        one for each layer type where the model has several.
    """
    width = max(len(one.tokens) for one in packs)
    if all(one.is_chain for one in packs):
        return torch.ones(len(packs), stem + width, dtype=torch.long, device=device)
    # A padded slot sees itself and the stem, and nothing sees it.
    padded = torch.arange(1, width + 1).repeat(len(packs), 1)
    places = torch.arange(stem, stem + width).repeat(len(packs), 1)
    for number, one in enumerate(packs):
        padded[number, : len(one.ends)] = torch.tensor(one.ends)
        places[number, : len(one.places)] = torch.tensor(one.places)
    slots = torch.arange(width)
    seen = (slots <= slots[:, None]) & (slots[:, None] < padded[:, None, :])
    seen = torch.cat([torch.ones(len(packs), width, stem, dtype=torch.bool), seen], dim=-1)
    keys = torch.cat([torch.arange(stem).expand(len(packs), -1), places], dim=-1)
    back = places[:, :, None] - keys[:, None, :]

    def additive(window: int | None) -> Tensor:
        allowed = seen if window is None else seen & (back < window)
        mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
        return mask[:, None].to(device)

    windows = windows_of(config)
    if isinstance(windows, dict):
        return {kind: additive(window) for kind, window in windows.items()}
    return additive(windows)
