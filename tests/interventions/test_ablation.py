"""Cuts in the rows of a batch equal a model whose output projections were zeroed by hand."""

from __future__ import annotations

import pytest
import torch

from interventions.attribution.ablation import Cut, outcomes
from interventions.attribution.lens import lens_of
from interventions.families import family_of
from interventions.units import decoder_layers, follow
from tests.tiny import MODEL_TYPES, tiny_model

IDS = [1, 17, 203, 44, 90, 8, 131]
CUTS = [
    {},
    {"act": ([0, 2, 2], [3, 7, 40])},
    {"attn": ([1, 1], [5, 20])},
    {"act": ([1], [11]), "attn": ([0, 2], [31, 2])},
]


def zeroed_by_hand(model_type: str, cut: dict) -> torch.Tensor:
    model = tiny_model(model_type)
    for kind, (layers, units) in cut.items():
        for layer, unit in zip(layers, units, strict=True):
            module = follow(decoder_layers(model)[layer], family_of(model.config).slots[kind].module)
            with torch.no_grad():
                (
                    module.weight[:, unit] if isinstance(module, torch.nn.Linear) else module.weight[unit]
                ).zero_()
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0, -1]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_each_row_is_a_model_zeroed_by_hand(model_type):
    model = tiny_model(model_type)
    cuts = [Cut({k: (torch.tensor(a), torch.tensor(b)) for k, (a, b) in cut.items()}) for cut in CUTS]
    for rows in (16, 3):
        found = outcomes(model, lens_of(model), IDS, 77, cuts, rows=rows)
        for index, cut in enumerate(CUTS):
            logits = zeroed_by_hand(model_type, cut)
            assert found.log_prob[index].item() == pytest.approx(logits.log_softmax(-1)[77].item(), abs=1e-4)
            assert found.rank[index] == 1 + (logits > logits[77]).sum()
    assert not any(module._forward_pre_hooks for module in model.modules())
