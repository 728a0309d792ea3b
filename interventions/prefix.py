"""A beginning that many rows share, run through the model once and kept as a key-value cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interventions.units import base_model, config_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def forward(model: PreTrainedModel, input_ids: Tensor, cache: Any = None, **options: Any) -> Any:
    """Run the model's body, without the unembedding, over `input_ids` `[B, T]` after an optional cache."""
    body: Any = base_model(model).base_model
    if cache is None:
        return body(input_ids=input_ids, use_cache=False, **options)
    # transformers renamed the argument within version 5.
    known = inspect.signature(body.forward).parameters
    name = "cache" if "cache" in known else "past_key_values"
    return body(input_ids=input_ids, use_cache=True, **{name: cache}, **options)


class Prefix:
    """The key-value cache of one shared beginning, handed out in copies as wide as a batch.

    It must be made under the same interventions as the rows that continue it.
    """

    def __init__(self, model: PreTrainedModel, ids: Sequence[int], *, start: Prefix | None = None) -> None:
        """Run `ids`, or only what follows in them after the prefix `start`."""
        from transformers import DynamicCache

        self.ids = tuple(ids)
        self._cache = DynamicCache(config=config_of(model)) if start is None else start.expand(1)
        rest = self.ids[0 if start is None else len(start) :]
        if rest:
            with torch.no_grad():
                forward(model, torch.tensor([rest], device=model.device), self._cache)

    def __len__(self) -> int:
        return len(self.ids)

    def expand(self, rows: int) -> Any:
        """A cache of `rows` equal rows, to be continued and thrown away."""
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(rows)
        return cache
