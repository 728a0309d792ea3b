"""Treatments: everything that a sweep does to its model, one after the other.

The baseline; a mask for each method, concept and size, and what the config derives from it (rank bands, its
complement); and random controls. Each mask is tried in every mode and at every position of the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from interventions.apply import Intervention, Positions
from interventions.controls import contribution, pooled_histogram
from interventions.errors import UserError
from interventions.masks import (
    Mask,
    band,
    budget,
    complement,
    random_from_histogram,
    random_like,
    top_k,
)
from interventions.scores import Scores
from interventions.units import UnitLayout
from relbench.prompts import parse_concept
from relbench.samples import BASELINE
from relbench.taskfiles import task_name

if TYPE_CHECKING:
    from interventions.model_id import ModelId
    from relbench.sweep_config import MethodConfig, ModeConfig, ScoresConfig, SweepConfig

RANDOM = "random"
TOP_K, BAND, COMPLEMENT = "top-k", "band", "complement"


@dataclass(frozen=True)
class Treatment:
    """One thing done to the model in a sweep.

    Attributes:
        id: Stable name.
        method: Id of the scoring method, "random" for a control, "baseline" for nothing.
        concept: Whose units are masked; None for baseline and controls.
        fraction: Share of the distinct `act` neurons; None where sizes are given as numbers of units.
        k: Number of units that were chosen; all but these are masked where `selection` is "complement".
        seed: Of a random control.
        mask: Path of the mask within the sweep directory.
        digest: SHA-256 of the mask's content.
        selection: "top-k"; "band": the ranks in `band` alone; "complement": everything but the top k. A control
            has the selection of what it is a control of.
        band: (k1, k2]: ranks above k1, up to k2.
        mode: What is done to the units, with its number: "zero", "scale0.5", …
        positions: Where it is done.
        matched_to: Id of the treatment that a control is matched to; None when it is matched to all masks of
            its size together.
        tasks: The tasks that it meets; None for all of the sweep's.
    """

    id: str
    method: str
    concept: str | None = None
    fraction: float | None = None
    k: int | None = None
    seed: int | None = None
    mask: str | None = None
    digest: str | None = None
    selection: str = TOP_K
    band: tuple[int, int] | None = None
    mode: str = "zero"
    positions: str = "all"
    matched_to: str | None = None
    tasks: tuple[str, ...] | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Treatment:
        """The treatment that `dataclasses.asdict` gave."""
        values = dict(raw)
        for name in ("band", "tasks"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])  # type: ignore[arg-type]
        return cls(**values)  # type: ignore[arg-type]


class Treatments(NamedTuple):
    """Everything that a sweep does, and the masks that it does it with.

    Attributes:
        treatments: The baseline first.
        masks: Path within the sweep directory → mask.
    """

    treatments: list[Treatment]
    masks: dict[str, Mask]


class _Made(NamedTuple):
    """A mask, and what its treatments have in common."""

    mask: Mask
    base: Treatment


def make_treatments(
    config: SweepConfig, scored: Sequence[tuple[MethodConfig | ScoresConfig, Scores]], model: ModelId
) -> Treatments:
    """Everything that the sweep does.

    Args:
        config: Of the sweep.
        scored: Each entry of `methods` and `scores` with its scores.
        model: What is masked.

    Raises:
        UserError: A size that the model or a method's scores do not have, or scores that lack what a mode or a
            control needs.
    """
    sizes = sizes_of(config, model)
    assert model.layout is not None
    found = Treatments([Treatment(BASELINE, BASELINE)], {})
    for number, (fraction, k) in enumerate(sizes if scored else ()):
        below = sizes[number - 1][1] if number else 0
        chosen = list(_chosen(config, scored, fraction, k))
        made = [*chosen]
        if config.bands and below:
            made += _bands(config, scored, fraction, below, k)
        if config.complement:
            made += [_complement(one, model.layout) for one in chosen]
        made += _controls(config, scored, chosen, model, fraction, k)
        for one in made:
            path = f"masks/{one.base.id}.safetensors"
            found.masks[path] = one.mask
            found.treatments.extend(_treated(config, one, path))
    _check_distinct(found.treatments)
    return found


def write_masks(masks: Mapping[str, Mask], directory: Path) -> None:
    """Write a sweep's masks; one that is there already must be the same.

    Raises:
        UserError: A mask file has another mask.
    """
    for name, mask in masks.items():
        path = directory / name
        if not path.exists():
            mask.save(path)
        elif Mask.load(path).digest != mask.digest:
            raise UserError(
                f"{path} is not the mask that this sweep made; delete it, so that it is made again, or use a "
                "new directory"
            )


def sizes_of(config: SweepConfig, model: ModelId) -> list[tuple[float | None, int]]:
    """Mask sizes, smallest first: share of the distinct `act` neurons, if given as such, and number of units.

    Raises:
        UserError: Two sizes come to the same number of units, or a method's kinds have fewer than a size.
    """
    if model.layout is None:
        raise UserError("the model's layout is not known, so that nothing can be masked")
    sizes: list[tuple[float | None, int]] = [
        (size, budget(model.layout, size)) if isinstance(size, float) else (None, size)
        for size in config.sizes
    ]
    for (_, first), (_, second) in pairwise(sizes):
        if first == second and config.has_masks:
            raise UserError(f"two sizes come to the same number of units, {first}; leave one of them out")
    for method in config.methods:
        units = model.layout.count(method.kinds or config.kinds)
        if sizes[-1][1] > units:
            raise UserError(
                f"a size of {sizes[-1][1]} units is more than the {units} that {method.id} scores; use smaller ones"
            )
    return sizes


def _chosen(
    config: SweepConfig,
    scored: Sequence[tuple[MethodConfig | ScoresConfig, Scores]],
    fraction: float | None,
    k: int,
) -> Iterator[_Made]:
    for entry, scores in scored:
        for name in config.masked_concepts(entry, scores):
            mask = top_k(scores, name, k)
            base = Treatment(f"{entry.id}.{name}.k{k}", entry.id, name, fraction, k)
            yield _Made(mask, placed(config, base))


def placed(config: SweepConfig, treatment: Treatment) -> Treatment:
    """With the tasks that the treatment meets."""
    met = config.tested_concepts
    everywhere = config.evaluate == "all" or treatment.fraction in config.transfer_fractions
    if treatment.concept is not None and not everywhere:
        code = treatment.concept.rpartition("@")[2]
        met = tuple(name for name in met if name.rpartition("@")[2] == code)
    if met == config.every_concept:
        return treatment
    return replace(treatment, tasks=tuple(task_name(*parse_concept(name)) for name in met))


def _bands(
    config: SweepConfig,
    scored: Sequence[tuple[MethodConfig | ScoresConfig, Scores]],
    fraction: float | None,
    below: int,
    k: int,
) -> Iterator[_Made]:
    """The units between one size and the next smaller one, alone."""
    for entry, scores in scored:
        for name in config.masked_concepts(entry, scores):
            base = Treatment(
                f"{entry.id}.{name}.band{below}-{k}",
                entry.id,
                name,
                fraction,
                k - below,
                selection=BAND,
                band=(below, k),
            )
            yield _Made(band(scores, name, below, k), placed(config, base))


def _complement(made: _Made, layout: UnitLayout) -> _Made:
    base = replace(made.base, id=f"{made.base.id}.complement", selection=COMPLEMENT)
    if base.matched_to is not None:
        base = replace(base, matched_to=f"{base.matched_to}.complement")
    return _Made(complement(made.mask, layout), base)


def _controls(
    config: SweepConfig,
    scored: Sequence[tuple[MethodConfig | ScoresConfig, Scores]],
    chosen: Sequence[_Made],
    model: ModelId,
    fraction: float | None,
    k: int,
) -> list[_Made]:
    assert model.layout is not None
    made: list[_Made] = []
    for seed in range(config.controls.seeds):
        if config.controls.match == "pooled":
            histogram = pooled_histogram([one.mask for one in chosen])
            mask = random_from_histogram(histogram, k, model.layout, model, seed=seed)
            base = Treatment(f"{RANDOM}.seed{seed}.k{k}", RANDOM, None, fraction, k, seed)
            made.append(_Made(mask, placed(config, base)))
        else:
            made += [_matched(config, dict(_by_id(scored)), one, seed) for one in chosen]
    if config.complement:
        made += [_complement(one, model.layout) for one in made]
    return made


def _by_id(scored: Sequence[tuple[MethodConfig | ScoresConfig, Scores]]) -> Iterator[tuple[str, Scores]]:
    for entry, scores in scored:
        yield entry.id, scores


def _matched(config: SweepConfig, scores: Mapping[str, Scores], one: _Made, seed: int) -> _Made:
    """A random mask matched to one mask."""
    own, base = scores[one.base.method], one.base
    assert base.concept is not None
    mask = random_like(
        one.mask,
        seed=seed,
        contribution=contribution(own, base.concept) if config.controls.match == "norm" else None,
        scores=own,
        concept=base.concept,
    )
    name = f"{RANDOM}.seed{seed}.{base.id}"
    return _Made(mask, replace(base, id=name, method=RANDOM, concept=None, seed=seed, matched_to=base.id))


def _treated(config: SweepConfig, made: _Made, path: str) -> Iterator[Treatment]:
    """A mask's treatments, one a mode and position.

    Raises:
        UserError: The mask lacks what a mode needs.
    """
    base = replace(made.base, mask=path, digest=made.mask.digest)
    several = len(config.modes) * len(config.positions) > 1
    for mode in config.modes:
        for positions in config.positions:
            suffix = f".{mode.label}.{positions}" if several else ""
            matched = None if base.matched_to is None else base.matched_to + suffix
            # Made once now: what it refuses should not wait until the baseline is done.
            _intervention(config, made.mask, mode, positions)
            yield replace(base, id=base.id + suffix, mode=mode.label, positions=positions, matched_to=matched)


def _check_distinct(treatments: Sequence[Treatment]) -> None:
    names = sorted(treatment.id for treatment in treatments)
    for first, second in pairwise(names):
        if first == second:
            raise UserError(
                f"two treatments are called {first!r}: two sizes come to the same number of units"
            )


def interventions_of(config: SweepConfig, treatment: Treatment, directory: Path) -> tuple[Intervention, ...]:
    """What `treatment` does to the model; its mask is read from the directory.

    Raises:
        UserError: The mask file is missing, damaged, or not the one that the sweep made.
    """
    if treatment.mask is None:
        return ()
    path = directory / treatment.mask
    mask = Mask.load(path)
    if mask.digest != treatment.digest:
        raise UserError(f"{path} is not the mask that this sweep made; restore it, or use a new directory")
    positions = next(place for place in config.positions if place == treatment.positions)
    return (_intervention(config, mask, mode_of(config, treatment), positions),)


def _intervention(config: SweepConfig, mask: Mask, mode: ModeConfig, positions: Positions) -> Intervention:
    return Intervention(
        mask,
        mode=mode.mode,
        positions=positions,
        factor=mode.factor,
        value=mode.value,
        percentile=mode.percentile,
        seed=config.seed,
    )


def mode_of(config: SweepConfig, treatment: Treatment) -> ModeConfig:
    """The mode of the config that a treatment names."""
    return next(mode for mode in config.modes if mode.label == treatment.mode)
