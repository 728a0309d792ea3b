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
from typing import Any

_HOME = {
    "errors": ("UserError",),
    "prompts": ("Prompt",),
    "families": ("FAMILIES", "Family", "family_of"),
    "units": ("KINDS", "Site", "UnitLayout", "capture", "layout_of"),
    "model_id": ("ModelId",),
    "scores": ("Scores",),
    "masks": (
        "Mask",
        "complement",
        "difference",
        "intersection",
        "jaccard",
        "random_from_histogram",
        "random_like",
        "top_k",
        "union",
    ),
    "apply": ("Handle", "Intervention", "intervene"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
