"""How much a model lets its requests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interventions.units import config_of
from relbench.engine.plan import make_plan
from relbench.engine.requests import Sharing, TokenRequest, TokenScore
from relbench.engine.run import run_plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Implementations of attention that take a mask [batch, 1, queries, keys] of any shape.
MASKED_ATTENTION = ("eager", "sdpa")
# Of log probabilities: what rounding does to few tokens, and far below what a wrong mask or position does.
TOLERANCE = {"float32": 1e-2, "float64": 1e-2}
COARSE_TOLERANCE = 0.5


def sharing_of(model: PreTrainedModel) -> Sharing:
    """What `make_plan` may assume: a model's own word on its cache, and a trial of the attention masks.

    Recurrent and hybrid models keep another state than keys and values: "none". Models that do not take the
    masks or positions of a tree, or give other numbers with them, get "prefix". To be asked while no
    intervention is open.
    """
    config = config_of(model)
    kinds = getattr(config, "layer_types", None) or ()
    if getattr(model, "_is_stateful", False) or any(
        kind not in ("full_attention", "sliding_attention") for kind in kinds
    ):
        return "none"
    if getattr(config, "_attn_implementation", None) not in MASKED_ATTENTION:
        return "prefix"
    return "tree" if _takes_trees(model) else "prefix"


def _takes_trees(model: PreTrainedModel) -> bool:
    """Whether a small tree gives the same scores as its branches one by one."""
    vocabulary = min(200, int(config_of(model).vocab_size))
    tokens = tuple(7 * number % vocabulary for number in range(40))
    start = tokens[:12]
    requests = [
        TokenRequest(start + tokens[a : a + 2], tokens[b : b + 3])
        for a, b in ((12, 20), (12, 23), (12, 26), (15, 20), (15, 29), (18, 32), (18, 35))
    ]
    expected = _run(model, requests, "none")
    try:
        found = _run(model, requests, "tree")
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    tolerance = TOLERANCE.get(str(model.dtype).removeprefix("torch."), COARSE_TOLERANCE)
    return all(abs(a.logprob - b.logprob) < tolerance for a, b in zip(expected, found, strict=True))


def _run(model: PreTrainedModel, requests: list[TokenRequest], sharing: Sharing) -> list[TokenScore]:
    # So narrow that the common start becomes a stem.
    plan = make_plan(requests, 64, sharing=sharing, width=8)
    return run_plan(model, plan, call_tokens=128)
