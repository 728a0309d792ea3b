"""Counterfactual prompts: for each prompt one of another concept, as alike in length as there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from interventions.attribution.readouts import Encoded

if TYPE_CHECKING:
    from interventions.prompts import Prompt


def counterfactuals(
    prompts: Sequence[Prompt],
    encoded: Sequence[Encoded],
    negatives: Mapping[str, Sequence[str]],
    *,
    seed: int,
) -> list[Encoded | None]:
    """For each prompt the tokens of another concept's prompt, followed by the prompt's own answer tokens.

    Of the candidates closest in length to the prompt one is drawn, of the same subject when there is one.

    Args:
        prompts: The prompts.
        encoded: Their tokens.
        negatives: Concept → the concepts whose prompts may stand in for its own.
        seed: Of the draw.

    Returns:
        None for a prompt whose concept has no negatives.
    """
    rng = np.random.default_rng(seed)
    contexts = [item.ids[: len(item.ids) - len(item.targets) + 1] for item in encoded]
    lengths = np.array([len(context) for context in contexts])
    concepts = np.array([prompt.concept for prompt in prompts])
    subjects = np.array([prompt.subject_id for prompt in prompts])
    found: list[Encoded | None] = []
    for index, prompt in enumerate(prompts):
        allowed = np.flatnonzero(np.isin(concepts, list(negatives.get(prompt.concept, ()))))
        if not len(allowed):
            found.append(None)
            continue
        distance = np.abs(lengths[allowed] - lengths[index]) - 0.5 * (subjects[allowed] == prompt.subject_id)
        chosen = int(rng.choice(allowed[distance == distance.min()]))
        targets = encoded[index].targets
        found.append(Encoded(contexts[chosen] + targets[:-1], targets))
    return found
