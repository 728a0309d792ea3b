"""Gain and epsilon of a norm of the residual stream, whatever its class calls them."""

from __future__ import annotations

from torch import Tensor, nn

from interventions.errors import UserError


def norm_gain(norm: nn.Module, offset: float) -> Tensor:
    """Gain `[d]` of a norm of the residual stream."""
    weight: Tensor = norm.weight  # type: ignore[assignment]
    return weight.detach() + offset if offset else weight.detach()


def norm_eps(norm: nn.Module) -> float:
    """Epsilon of a norm, whatever its class calls it."""
    for name in ("eps", "variance_epsilon"):
        if hasattr(norm, name):
            return float(getattr(norm, name))
    raise UserError(f"the norm {type(norm).__name__} has no epsilon that this project knows of")
