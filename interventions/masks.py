"""Masks in one place: the type, choosing units by score, set algebra, and random controls."""

from __future__ import annotations

from interventions.algebra import complement, difference, intersection, jaccard, overlap, union
from interventions.controls import contribution, random_from_histogram, random_like
from interventions.mask import FFN_NEURON, Indices, Mask
from interventions.selection import (
    SIDES,
    Side,
    band,
    budget,
    gather_references,
    per_layer_top_k,
    threshold,
    top_k,
)

__all__ = [
    "FFN_NEURON",
    "SIDES",
    "Indices",
    "Mask",
    "Side",
    "band",
    "budget",
    "complement",
    "contribution",
    "difference",
    "gather_references",
    "intersection",
    "jaccard",
    "overlap",
    "per_layer_top_k",
    "random_from_histogram",
    "random_like",
    "threshold",
    "top_k",
    "union",
]
