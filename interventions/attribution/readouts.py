"""Prompts as token rows with readouts: the positions at which an answer token is predicted.

An answer of n tokens has n readouts: its i-th token is read at the position of the token before it, after the
true answer tokens up to there (teacher forcing). Rows that begin alike, as few-shot prompts of one relation
do, share one forward pass over that beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from interventions.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A shared beginning shorter than this costs more to keep than to compute again.
MIN_SHARED = 8


class Readouts(NamedTuple):
    """Where answer tokens are predicted in a batch; R of them.

    Attributes:
        rows: `[R]`, row of the batch.
        positions: `[R]`, position in the row.
        targets: `[R]`, the token predicted there.
    """

    rows: Tensor
    positions: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Encoded:
    """A prompt and an answer as token ids.

    Attributes:
        ids: Prompt tokens and all answer tokens but the last.
        targets: Answer tokens; the i-th is predicted at position `len(ids) - len(targets) + i`.
    """

    ids: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Rows that are run together.

    Attributes:
        members: Index of each row among the sequences that were batched.
        shared: Tokens that all rows begin with and that `input_ids` leaves out; may be empty.
        input_ids: `[B, T]`, padded on the right; causal attention keeps padding from mattering.
        readouts: Positions count from the first column of `input_ids`.
    """

    members: tuple[int, ...]
    shared: tuple[int, ...]
    input_ids: Tensor
    readouts: Readouts


def encode(
    tokenizer: PreTrainedTokenizerBase, text: str, answer: str, *, first_only: bool = False
) -> Encoded:
    """Tokens of a prompt and its answer, split where the prompt alone would end, as lm-eval splits them.

    Args:
        tokenizer: Its default special tokens are added.
        text: The prompt; ends before the answer.
        answer: The answer with its leading delimiter.
        first_only: Keep the answer's first token only.

    Raises:
        UserError: The prompt or the answer has no tokens of its own.
    """
    prompt = tokenizer.encode(text)
    whole = tokenizer.encode(text + answer)
    targets = whole[len(prompt) :]
    if not prompt:
        raise UserError(f"the prompt {text!r} has no tokens: nothing predicts the answer")
    if not targets:
        raise UserError(f"the answer {answer!r} has no tokens of its own after the prompt {text!r}")
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown in targets:
        raise UserError(f"the answer {answer!r} is not in the tokenizer's vocabulary")
    if first_only:
        targets = targets[:1]
    return Encoded(tuple(whole[: len(prompt) + len(targets) - 1]), tuple(targets))


def shared_beginning(sequences: Sequence[tuple[int, ...]]) -> int:
    """Length of the longest beginning that all sequences have in common, short of the last token of each."""
    low, high = min(sequences), max(sequences)
    limit = min(len(sequence) for sequence in sequences) - 1
    length = 0
    while length < limit and low[length] == high[length]:
        length += 1
    return length


def batches(
    encoded: Sequence[Encoded], groups: Sequence[str], *, batch_size: int, device: torch.device
) -> Iterator[Batch]:
    """Batches of sequences, within each group by length; each group's shared beginning is left out.

    Args:
        encoded: The sequences.
        groups: For each sequence the group that it may share a beginning with; groups come out one by one, in
            order of first appearance.
        batch_size: Rows of a batch.
        device: Where the tensors go.
    """
    for group in dict.fromkeys(groups):
        members = [index for index, name in enumerate(groups) if name == group]
        # A readout must keep its own position, so the shared part ends before every row's first readout.
        contexts = [encoded[i].ids[: len(encoded[i].ids) - len(encoded[i].targets) + 1] for i in members]
        length = shared_beginning(contexts) if len(members) > 1 else 0
        length = length if length >= MIN_SHARED else 0
        shared = encoded[members[0]].ids[:length]
        members.sort(key=lambda index: len(encoded[index].ids))
        for start in range(0, len(members), batch_size):
            yield _batch(encoded, members[start : start + batch_size], shared, device)


def whole_rows(encoded: Sequence[Encoded], device: torch.device) -> Batch:
    """All sequences as one batch, in their order and with nothing left out."""
    return _batch(encoded, list(range(len(encoded))), (), device)


def _batch(
    encoded: Sequence[Encoded], members: list[int], shared: tuple[int, ...], device: torch.device
) -> Batch:
    rows = [encoded[index].ids[len(shared) :] for index in members]
    width = max(len(row) for row in rows)
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    where: list[tuple[int, int, int]] = []
    for number, (index, row) in enumerate(zip(members, rows, strict=True)):
        input_ids[number, : len(row)] = torch.tensor(row)
        targets = encoded[index].targets
        first = len(row) - len(targets)
        where.extend((number, first + offset, token) for offset, token in enumerate(targets))
    readouts = Readouts(*torch.tensor(where, device=device).unbind(1))
    return Batch(tuple(members), shared, input_ids.to(device), readouts)
