"""How much a mask takes away: the share of the value vectors' norm that its units hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.mask import FFN_NEURON, Mask
from interventions.scores import Floats
from interventions.units import Site

WRITERS = ("act", "attn")


def value_norms(model: Any) -> dict[Site, Floats]:
    """‖v_k‖ of every unit that writes to the residual stream (`act` and `attn`), post-norm gains included.

    Args:
        model: A transformers causal LM of a known family.

    Returns:
        Site → float32 [units].

    Raises:
        UserError: Unknown family.
    """
    import torch

    from interventions.attribution.stream import writes_of

    norms = {}
    for kind in WRITERS:
        for layer, write in enumerate(writes_of(model, kind)):
            # In fp32 whatever the weights are in: bf16 sums of squares lose most digits.
            norm = torch.linalg.vector_norm(write.vectors, dim=-1, dtype=torch.float32)
            norms[Site(layer, kind)] = norm.cpu().numpy()
    return norms


def removed_share(mask: Mask, norms: Mapping[Site, Floats]) -> dict[str, float]:
    """Share of the summed norm that the mask's units hold, for each writing kind that it has units of.

    `gate` and `up` units count as the FFN neuron they belong to, once. Units of the other kinds have no value
    vector and are left out.

    Args:
        mask: The mask.
        norms: Site → [units], for `act` and `attn` sites: ‖v_k‖, or mean |m|·‖v‖.

    Returns:
        "act" and "attn" → share in 0 … 1, for kinds that the mask has units of and `norms` covers.
    """
    shares = {}
    for kind, members in (("act", FFN_NEURON), ("attn", ("attn",))):
        by_layer: dict[int, list[NDArray[np.int32]]] = {}
        for site, units in mask.units.items():
            if site.kind in members:
                by_layer.setdefault(site.layer, []).append(units)
        total = sum(float(array.sum(dtype=np.float64)) for site, array in norms.items() if site.kind == kind)
        if not by_layer or not total or any(Site(layer, kind) not in norms for layer in by_layer):
            continue
        removed = sum(
            float(norms[Site(layer, kind)][np.unique(np.concatenate(arrays))].sum(dtype=np.float64))
            for layer, arrays in by_layer.items()
        )
        shares[kind] = removed / total
    return shares
