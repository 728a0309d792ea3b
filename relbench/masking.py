"""From model arguments to an intervention: `mask=`, `concept=`, `k=`, `mode=` and their kind."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from interventions.apply import Intervention, Mode, Positions
from interventions.artifact import kind_of
from interventions.errors import UserError
from interventions.masks import Mask, budget, top_k
from interventions.scores import Scores


def load_mask(
    path: str | Path, *, concept: str | None = None, k: int | None = None, fraction: float | None = None
) -> Mask:
    """A mask from a mask file, or from a scores file and a choice of its units.

    Args:
        path: A mask, or a scores file.
        concept: With a scores file, the concept whose units are masked.
        k: How many units.
        fraction: Share of the model's distinct `act` neurons, instead of `k`.

    Raises:
        UserError: Not a readable file of ours, or the choice is missing, doubled or out of range.
    """
    if kind_of(path) == "mask":
        if concept is not None or k is not None or fraction is not None:
            raise UserError(f"{path} is a mask; concept, k and fraction choose units of a scores file")
        return Mask.load(path)
    scores = Scores.load(path)
    if concept is None:
        raise UserError(f"{path} holds scores; add concept=, one of {', '.join(scores.concepts)}")
    if (k is None) == (fraction is None):
        raise UserError(f"{path} holds scores; add either k= or fraction=")
    if fraction is not None:
        if scores.model.layout is None:
            raise UserError(
                f"{path} does not say how many neurons its model has; use k= instead of fraction="
            )
        k = budget(scores.model.layout, fraction)
    return top_k(scores, concept, int(k or 0))


def intervention_from_arguments(
    *,
    mask: str | None,
    concept: str | None = None,
    k: int | None = None,
    fraction: float | None = None,
    mode: str | None = None,
    factor: float | None = None,
    value: float | None = None,
    percentile: float | None = None,
    positions: str | None = None,
    mask_seed: int | None = None,
) -> Intervention | None:
    """The intervention that a set of model arguments describes; None without a mask.

    Raises:
        UserError: Options without a mask, or a mask or mode that is not right.
    """
    if mask is None:
        given = {
            "concept": concept,
            "k": k,
            "fraction": fraction,
            "mode": mode,
            "factor": factor,
            "value": value,
            "percentile": percentile,
            "positions": positions,
            "mask_seed": mask_seed,
        }
        idle = [name for name, setting in given.items() if setting is not None]
        if idle:
            raise UserError(f"{', '.join(idle)} given without mask=; nothing would be intervened on")
        return None
    return Intervention(
        load_mask(str(mask), concept=concept, k=k, fraction=fraction),
        mode=cast(Mode, mode or "zero"),
        positions=cast(Positions, positions or "all"),
        factor=factor,
        value=value,
        percentile=percentile,
        seed=mask_seed or 0,
    )
