"""Selectivity on the planted model, where the right answer is known."""

from __future__ import annotations

import numpy as np

from interventions.apply import Intervention, intervene
from interventions.correct import answered_correctly
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.planted.facts import RELATIONS, Settings
from interventions.planted.model import Planted
from interventions.units import Site, layout_of
from relbench.analysis.selectivity import selectivities
from relbench.treatments import RANDOM
from tests.relbench.analysis.synthetic import mask, runs_of, scheme

SEEDS = 10


def test_the_true_mask_is_selective_and_random_masks_are_not() -> None:
    planted = Planted(Settings(noise=0.0, subjects=80))
    model, tokenizer, prompts = planted.model(), planted.tokenizer(), planted.prompts("eval")
    identity, layout = ModelId.of(model), layout_of(model)

    def right(units: dict[Site, np.ndarray]) -> dict[str, list[bool]]:
        with intervene(model, Intervention(Mask(units, identity))):
            correct = answered_correctly(model, tokenizer, prompts)
        return {
            f"{name}@en": [ok for ok, prompt in zip(correct, prompts, strict=True) if prompt.concept == name]
            for name in RELATIONS
        }

    whole = answered_correctly(model, tokenizer, prompts)
    baseline = {
        f"{name}@en": [ok for ok, prompt in zip(whole, prompts, strict=True) if prompt.concept == name]
        for name in RELATIONS
    }
    treatments, outcomes, sizes = [], {}, []
    for name in RELATIONS:
        units = {site: np.asarray(u, np.int32) for site, u in planted.truth.relations[name].items()}
        sizes.append(sum(map(len, units.values())))
        one = mask("truth", f"{name}@en", 10)
        treatments.append(one)
        outcomes[one.id] = right(units)
    sites = layout.sites(("act",))
    widths = np.cumsum([0, *(layout.size(site.kind) for site in sites)])
    for seed in range(SEEDS):
        drawn = np.random.default_rng(seed).choice(widths[-1], max(sizes), replace=False)
        parts = {
            site: np.sort(drawn[(drawn >= low) & (drawn < high)] - low).astype(np.int32)
            for site, low, high in zip(sites, widths, widths[1:], strict=False)
        }
        control = mask(RANDOM, None, 10, seed=seed)
        treatments.append(control)
        outcomes[control.id] = right({site: units for site, units in parts.items() if len(units)})
    runs = runs_of(baseline, treatments, lambda treatment, concept: outcomes[treatment.id][concept])
    found = selectivities(runs, scheme(baseline))
    assert len(found) == len(RELATIONS)
    for one in found:
        # What is left of the target is chance, one answer in ten; nothing else is lost.
        assert one.target >= 0.85 and one.selectivity == one.target
        control = one.control
        assert control is not None and control.seeds == SEEDS
        assert control.selectivity is not None and abs(control.selectivity) < 0.15
        assert control.selectivity_interval is not None and one.interval is not None
        assert control.selectivity_interval.high < one.interval.low
    # Random masks take as much from one relation as from another.
    assert abs(np.mean([one.control.selectivity for one in found if one.control])) < 0.02
