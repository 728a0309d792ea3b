"""Treatments: everything that a sweep does to its model, one after the other.

The baseline, a mask for each method, concept and budget, and the random controls of each budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interventions.apply import Intervention
from interventions.masks import Mask, budget, random_from_histogram, top_k
from interventions.scores import Scores
from interventions.units import Site
from relbench.samples import BASELINE

if TYPE_CHECKING:
    from interventions.model_id import ModelId
    from relbench.sweep_config import SweepConfig

RANDOM = "random"


@dataclass(frozen=True)
class Treatment:
    """One thing done to the model in a sweep.

    Attributes:
        id: Stable name, also the mask's file name.
        method: Scoring method, "random" for a control, "baseline" for nothing.
        concept: Whose units are masked; None for baseline and controls.
        fraction: Share of the distinct `act` neurons.
        k: Number of units.
        seed: Of a random control.
        mask: Path of the mask within the sweep directory.
        digest: SHA-256 of the mask's content.
    """

    id: str
    method: str
    concept: str | None = None
    fraction: float | None = None
    k: int | None = None
    seed: int | None = None
    mask: str | None = None
    digest: str | None = None


def make_treatments(
    config: SweepConfig, all_scores: Sequence[Scores], model: ModelId, directory: Path
) -> list[Treatment]:
    """Baseline, every mask and its random controls; writes the masks."""
    assert model.layout is not None
    treatments = [Treatment(BASELINE, BASELINE)]
    for fraction in config.fractions if all_scores else ():
        k = budget(model.layout, fraction)
        masks = []
        for scores in all_scores:
            for concept in scores.concepts:
                mask = top_k(scores, concept, k)
                masks.append(mask)
                name = f"{scores.method}.{concept}.k{k}"
                treatments.append(_write(directory, name, mask, scores.method, concept, fraction))
        histogram = _pooled_histogram(masks)
        for seed in range(config.random_masks):
            control = random_from_histogram(histogram, k, model.layout, model, seed=seed)
            treatments.append(
                _write(directory, f"{RANDOM}.seed{seed}.k{k}", control, RANDOM, None, fraction, seed)
            )
    return treatments


def _pooled_histogram(masks: Sequence[Mask]) -> dict[Site, float]:
    """Units per site over all masks: what random controls are matched to."""
    histogram: dict[Site, float] = {}
    for mask in masks:
        for site, units in mask.units.items():
            histogram[site] = histogram.get(site, 0) + len(units)
    return histogram


def _write(
    directory: Path,
    name: str,
    mask: Mask,
    method: str,
    concept: str | None,
    fraction: float,
    seed: int | None = None,
) -> Treatment:
    path = directory / "masks" / f"{name}.safetensors"
    mask.save(path)
    return Treatment(
        id=name,
        method=method,
        concept=concept,
        fraction=fraction,
        k=len(mask),
        seed=seed,
        mask=str(path.relative_to(directory)),
        digest=mask.digest,
    )


def interventions_of(config: SweepConfig, treatment: Treatment, directory: Path) -> tuple[Intervention, ...]:
    if treatment.mask is None:
        return ()
    mask = Mask.load(directory / treatment.mask)
    return (
        Intervention(
            mask,
            mode=config.mode,
            positions=config.positions,
            factor=config.factor,
            value=config.value,
            percentile=config.percentile,
            seed=config.seed,
        ),
    )
