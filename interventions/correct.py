"""Which prompts the model answers correctly: its greedy continuation is an accepted answer, or begins like one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from interventions import parallel
from interventions.attribution.readouts import Encoded, encode, whole_rows
from interventions.responses import plan_batches, tokens_within
from interventions.units import Site, base_model, config_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from interventions.prompts import Prompt


def answered_correctly(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    first_tokens: int | None = None,
    memory: int = 4 << 30,
    progress: bool = False,
) -> list[bool]:
    """Whether each prompt's most probable next tokens are those of one of its accepted answers.

    One forward pass for each accepted answer: a continuation is greedy when every token of it is the most
    probable one after those before it. Several processes share the batches, and each returns the whole result.

    Args:
        model: A causal LM in eval mode.
        tokenizer: Its tokenizer.
        prompts: What is asked.
        first_tokens: Compare only so many tokens of each answer (2 in the relation-specific neurons paper); all
            by default.
        memory: Bytes that a batch may take besides the model.
        progress: Show progress on stderr.

    Raises:
        UserError: An answer without a token of its own.
    """
    owners: list[int] = []
    encoded: list[Encoded] = []
    for number, prompt in enumerate(prompts):
        for answer in prompt.accepted or (prompt.answer,):
            owners.append(number)
            encoded.append(_shortened(encode(tokenizer, prompt.text, answer), first_tokens))
    body, head = _body_and_head(model)
    batches = plan_batches(
        [len(one.ids) for one in encoded], tokens_within(model, [Site(0, "down")], memory // 2)
    )
    step = max(1, memory // 2 // (8 * int(config_of(model).vocab_size)))
    rank, size = parallel.world()
    # One flag for each prompt; a sum over processes is 0 where no answer is greedy.
    found = torch.zeros(len(prompts))
    bar = tqdm(
        total=len(encoded), desc="answers", unit="prompt", disable=None if progress and rank == 0 else True
    )
    with torch.inference_mode(), bar:
        for number, members in enumerate(batches):
            bar.update(len(members))
            if number % size != rank:
                continue
            batch = whole_rows([encoded[index] for index in members], model.device)
            ids = batch.input_ids
            hidden = body(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
            ).last_hidden_state
            at = batch.readouts
            read = hidden[at.rows, at.positions].split(step)
            predicted = torch.cat([head(part).argmax(dim=-1) for part in read])
            missed = set(at.rows[predicted != at.targets].tolist())
            for row, index in enumerate(members):
                if row not in missed:
                    found[owners[index]] = 1
    whole = torch.zeros_like(found)
    for source in range(size):
        whole += parallel.broadcast(found.clone(), source)
    return (whole > 0).tolist()


def _shortened(encoded: Encoded, first_tokens: int | None) -> Encoded:
    if first_tokens is None or len(encoded.targets) <= first_tokens:
        return encoded
    surplus = len(encoded.targets) - first_tokens
    return replace(encoded, ids=encoded.ids[:-surplus], targets=encoded.targets[:first_tokens])


def _body_and_head(model: PreTrainedModel) -> tuple[Any, Any]:
    """What gives the last hidden states, and the unembedding.

    What a family does to logits after it (scales and soft caps) changes no order.
    """
    root: Any = base_model(model)
    return root.base_model, root.get_output_embeddings()
