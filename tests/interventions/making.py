"""Scores and masks of tiny models for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.scores import Scores
from interventions.units import UnitLayout, layout_of


def random_mask(
    model: Any, kinds: Iterable[str], *, each: int = 3, seed: int = 0, references: Iterable[str] = ()
) -> Mask:
    """A mask of `each` random units in every site of `kinds`, with random reference statistics."""
    generator = np.random.default_rng(seed)
    layout = layout_of(model)
    units = {
        site: np.sort(generator.choice(layout.size(site.kind), each, replace=False)).astype(np.int32)
        for site in layout.sites(kinds)
    }
    statistics = {
        name: {
            site: generator.standard_normal((4, each) if name.startswith("samples") else each, np.float32)
            for site in units
        }
        for name in references
    }
    return Mask(units, ModelId.of(model), {"operation": "test"}, statistics)


def model_id(layout: UnitLayout | None = None, *, name: str = "tiny", fingerprint: str = "f" * 64) -> ModelId:
    """An identity without a model; a layout of 3 layers, 48 FFN neurons, 4/2 heads of 8, by default."""
    from interventions.model_id import hash_layout

    layout = layout or small_layout()
    return ModelId(name, "", hash_layout(layout), fingerprint, layout)


def small_layout(**changes: Any) -> UnitLayout:
    """The layout of `tiny_model("llama")`."""
    sizes = {"n_layers": 3, "d_model": 32, "d_ff": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8}
    kinds = ("gate", "up", "act", "down", "q", "k", "v", "attn", "attn_out")
    return UnitLayout("llama", **{**sizes, **changes}, kinds=kinds)


def random_scores(
    kinds: Iterable[str] = ("act",),
    *,
    concepts: tuple[str, ...] = ("a@en", "b@en"),
    model: ModelId | None = None,
    seed: int = 0,
    levels: int | None = None,
) -> Scores:
    """Random scores with every reference statistic.

    Args:
        kinds: Unit kinds.
        concepts: Rows.
        model: Whose; `model_id()` by default.
        seed: Of the numbers.
        levels: Round to so many different values, so that scores tie.
    """
    generator = np.random.default_rng(seed)
    model = model or model_id()
    assert model.layout is not None
    sites = model.layout.sites(kinds)

    def draw(site: Any, *shape: int) -> Any:
        return generator.standard_normal((*shape, model.layout.size(site.kind)), np.float32)

    values = {site: draw(site, len(concepts)) for site in sites}
    if levels is not None:
        values = {site: np.round(array * levels / 4) for site, array in values.items()}
    references = {
        "mean": {site: draw(site, len(concepts)) for site in sites},
        "percentile-95": {site: draw(site) for site in sites},
        "samples": {site: draw(site, 5) for site in sites},
        "mean_abs": {site: np.abs(draw(site)) for site in sites},
        "norm": {site: np.abs(draw(site)) for site in sites},
    }
    return Scores(values, concepts, model, "random", {"levels": levels}, "d" * 64, seed, references)
