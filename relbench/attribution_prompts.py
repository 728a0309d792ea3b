"""Prompts of the attribution table: facts of six knowledge types that the model knows.

As in arXiv 2312.12141 the answer's first token must be among the ten most probable, and above the first token
of every other answer of its relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from interventions.attribution.lens import Lens
from interventions.attribution.options import Options
from interventions.attribution.readouts import Encoded, encode
from interventions.attribution.scorers import Setting, reads
from interventions.errors import UserError
from interventions.prompts import Prompt
from relbench.prompts import prompts
from relbench.relations import load_relation, relation_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_RANK = 10
SPLITS = ("detect", "tune", "eval")


@dataclass(frozen=True)
class TypedPrompt:
    """A prompt of a knowledge type, with its tokens; its one target is the answer's first token."""

    knowledge_type: str
    prompt: Prompt
    encoded: Encoded

    @property
    def target(self) -> int:
        """The answer's first token."""
        return self.encoded.targets[0]


@dataclass(frozen=True)
class Selection:
    """The chosen prompts, and of each type how many were looked at and how many the model knows."""

    prompts: tuple[TypedPrompt, ...]
    looked_at: dict[str, int]
    known: dict[str, int]


def typed_relations(names: Sequence[str] | None = None) -> dict[str, str]:
    """Relation → knowledge type, of all relations that have one or of those named.

    Raises:
        UserError: A named relation has no knowledge type.
    """
    found = {}
    for name in names or relation_names():
        kind = load_relation(name).knowledge_type
        if kind is not None:
            found[name] = kind
        elif names:
            raise UserError(f"{name} belongs to none of the six knowledge types; choose relations that do")
    return found


def select_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lens: Lens,
    relations: dict[str, str],
    *,
    language: str = "en",
    shots: int = 0,
    per_type: int = 40,
    seed: int = 0,
    progress: bool = False,
) -> Selection:
    """Up to `per_type` prompts of each knowledge type that the model knows, drawn over its relations.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        lens: Its lens.
        relations: Relation → knowledge type.
        language: Of the prompts.
        shots: Few-shot examples before each prompt.
        per_type: Most prompts of a type.
        seed: Of the draw.
        progress: Show a progress bar.

    Raises:
        UserError: No prompt is left.
    """
    everything = [
        prompt
        for relation in relations
        for split in SPLITS
        for prompt in prompts((relation,), (language,), split, shots=shots)
    ]
    encoded = [encode(tokenizer, prompt.text, prompt.answer, first_only=True) for prompt in everything]
    known = _known(model, lens, everything, encoded, progress)
    rng = np.random.default_rng(seed)
    chosen, looked_at, counts = [], {}, {}
    for kind in dict.fromkeys(relations.values()):
        own = [
            i for i, prompt in enumerate(everything) if relations[prompt.concept.partition("@")[0]] == kind
        ]
        right = [index for index in own if known[index]]
        looked_at[kind], counts[kind] = len(own), len(right)
        drawn = sorted(rng.permutation(len(right))[:per_type].tolist())
        chosen += [TypedPrompt(kind, everything[right[i]], encoded[right[i]]) for i in drawn]
    if not chosen:
        raise UserError(
            f"the model ranks no answer of these relations among its first {MAX_RANK} tokens; "
            "give few-shot examples or another model"
        )
    return Selection(tuple(chosen), looked_at, counts)


def _known(
    model: PreTrainedModel,
    lens: Lens,
    everything: Sequence[Prompt],
    encoded: Sequence[Encoded],
    progress: bool,
) -> list[bool]:
    rivals: dict[str, set[int]] = {}
    for prompt, item in zip(everything, encoded, strict=True):
        rivals.setdefault(prompt.concept, set()).add(item.targets[0])
    setting = Setting(model, lens, {}, Options())
    known = [False] * len(everything)
    for read in reads(setting, encoded, [prompt.concept for prompt in everything], progress=progress):
        logits = lens.logits(read.stream.final)
        own = logits.gather(-1, read.targets[:, None])
        rank = 1 + (logits > own).sum(-1)
        tokens = torch.tensor(sorted(rivals[everything[read.batch.members[0]].concept]), device=logits.device)
        best = (logits[:, tokens] <= own).all(-1)
        for member, right in zip(read.batch.members, (best & (rank <= MAX_RANK)).tolist(), strict=True):
            known[member] = right
    return known
