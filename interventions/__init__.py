"""The intervention layer: units, scores, masks and putting masks into any common causal language model.

Five lines from a model to masked generation:

    from interventions import Intervention, Scores, intervene, top_k

    mask = top_k(Scores.load("capitals.scores"), "country_capital@en", k=300)
    with intervene(model, Intervention(mask)):
        model.generate(**tokenizer("The capital of France is", return_tensors="pt"))

Names are imported when first used, so that `import interventions` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interventions.apply import Handle, Intervention, intervene
    from interventions.errors import UserError
    from interventions.export import export_checkpoint, export_csv, export_peft
    from interventions.families import FAMILIES, Family, family_of
    from interventions.imports import import_csv, import_peft
    from interventions.masks import (
        Mask,
        band,
        complement,
        difference,
        intersection,
        jaccard,
        per_layer_top_k,
        random_from_histogram,
        random_like,
        threshold,
        top_k,
        union,
    )
    from interventions.model_id import ModelId
    from interventions.prompts import Prompt
    from interventions.scores import Scores
    from interventions.units import KINDS, Site, UnitLayout, capture, layout_of

_HOME = {
    "apply": ("Handle", "Intervention", "intervene"),
    "errors": ("UserError",),
    "export": ("export_checkpoint", "export_csv", "export_peft"),
    "families": ("FAMILIES", "Family", "family_of"),
    "imports": ("import_csv", "import_peft"),
    "masks": (
        "Mask",
        "band",
        "complement",
        "difference",
        "intersection",
        "jaccard",
        "per_layer_top_k",
        "random_from_histogram",
        "random_like",
        "threshold",
        "top_k",
        "union",
    ),
    "model_id": ("ModelId",),
    "prompts": ("Prompt",),
    "scores": ("Scores",),
    "units": ("KINDS", "Site", "UnitLayout", "capture", "layout_of"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "FAMILIES",
    "KINDS",
    "Family",
    "Handle",
    "Intervention",
    "Mask",
    "ModelId",
    "Prompt",
    "Scores",
    "Site",
    "UnitLayout",
    "UserError",
    "band",
    "capture",
    "complement",
    "difference",
    "export_checkpoint",
    "export_csv",
    "export_peft",
    "family_of",
    "import_csv",
    "import_peft",
    "intersection",
    "intervene",
    "jaccard",
    "layout_of",
    "per_layer_top_k",
    "random_from_histogram",
    "random_like",
    "threshold",
    "top_k",
    "union",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
