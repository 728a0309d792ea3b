"""What a model goes on to say, greedily, to prompts of probe tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from relbench.journal import Records
from relbench.samples import Sample

if TYPE_CHECKING:
    from relbench.harness import BuiltTask
    from relbench.lm import RelbenchLM

# Tokens: enough for the longest answers, and to see what stands there instead.
LENGTH = 12


def flipped(before: Sequence[Sample], after: Sequence[Sample]) -> list[int]:
    """Documents whose recall is another after than before, by document id."""
    was = {sample.doc_id: sample.recall for sample in before}
    return sorted(sample.doc_id for sample in after if sample.recall != was[sample.doc_id])


def continuations(lm: RelbenchLM, task: BuiltTask, wanted: Sequence[int], *, limit: int) -> Records:
    """What the model as it is, its interventions in, says to some documents of a task.

    Args:
        lm: The model.
        task: The task.
        wanted: Document ids.
        limit: Tokens, at most.

    Returns:
        `{"doc_id": …, "text": …}` for each, in that order; the text up to the end of its first line.
    """
    prompts = {int(one.doc_id or 0): str(one.args[0]) for one in reversed(task.instances)}
    texts: dict[int, str] = {}
    # Equal lengths need no padding, which some families' positions do not survive.
    by_length: dict[int, list[tuple[int, list[int]]]] = {}
    for doc_id in wanted:
        tokens = lm.tok_encode(prompts[doc_id])[-(lm.max_length - limit) :]
        by_length.setdefault(len(tokens), []).append((doc_id, tokens))
    with lm.intervened(), torch.inference_mode():
        for _, members in sorted(by_length.items()):
            for start in range(0, len(members), int(lm.batch_size)):
                batch = members[start : start + int(lm.batch_size)]
                ids = torch.tensor([tokens for _, tokens in batch], device=lm.device)
                out = lm.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=limit,
                    do_sample=False,
                    num_beams=1,
                    pad_token_id=lm.tokenizer.pad_token_id or lm.eot_token_id or 0,
                )
                for (doc_id, tokens), row in zip(batch, out, strict=True):
                    said = lm.tokenizer.decode(row[len(tokens) :], skip_special_tokens=True)
                    texts[doc_id] = said.lstrip("\n").partition("\n")[0].rstrip()
    return [{"doc_id": doc_id, "text": texts[doc_id]} for doc_id in wanted]
