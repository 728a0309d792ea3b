"""Putting masks into a model: what an intervention is, and the context manager that applies it.

An intervention either multiplies the response of its units (`zero`, `scale`) or replaces it by a fixed
number per unit (`mean`, `constant`, `resample`). Two ways in give the same numbers: forward hooks, for
everything; and folding into the weights, for `zero` and `scale` at all positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.files import sha256_json
from interventions.fold import Fold, folded_identity, is_folded, raw_positions
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.scores import Floats
from interventions.units import Site, base_model, layout_of, module_of, refuse_compiled, refuse_shared_modules

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Mode = Literal["zero", "scale", "mean", "constant", "resample"]
Positions = Literal["all", "context", "last_context", "continuation"]
How = Literal["auto", "hook", "fold"]
MODES: tuple[Mode, ...] = ("zero", "scale", "mean", "constant", "resample")
POSITIONS: tuple[Positions, ...] = ("all", "context", "last_context", "continuation")


def check_mode(
    mode: str, *, factor: float | None = None, value: float | None = None, percentile: float | None = None
) -> None:
    """Make sure that a mode is one, and has its numbers and no other's.

    Raises:
        UserError: Unknown mode, or a number missing, not finite or of another mode.
    """
    if mode not in MODES:
        raise UserError(f"unknown mode {mode!r}; one of {', '.join(MODES)}")
    for name, number, owner in (
        ("factor", factor, "scale"),
        ("value", value, "constant"),
        ("percentile", percentile, "constant"),
    ):
        if number is not None and mode != owner:
            raise UserError(f"{name}= belongs to mode {owner}, not {mode}")
        if number is not None and not np.isfinite(number):
            raise UserError(f"{name} must be a finite number, got {number}")
    if mode == "scale" and factor is None:
        raise UserError("mode scale needs factor=, a number")
    if mode == "constant" and (value is None) == (percentile is None):
        raise UserError("mode constant needs exactly one of value= and percentile=")


@dataclass(frozen=True)
class Intervention:
    """A mask, what happens to its units' responses, and at which positions.

    Attributes:
        mask: The units.
        mode: `zero`; `scale` (times `factor`); `mean` (the mask's reference `mean`); `constant` (`value`, or
            the mask's reference `percentile-<percentile>`); `resample` (the response to one other prompt,
            drawn with `seed` from the reference `samples`: one prompt for all units, so that results depend
            neither on batches nor on order).
        positions: `all`; `context` (the prompt), `last_context` (its last token), `continuation`
            (the answer).
        factor: For `scale`.
        value, percentile: For `constant`; exactly one of them.
        seed: For `resample`.

    Raises:
        UserError: Unknown mode or positions, an option missing or of another mode, a statistic that the mask
            does not carry.
    """

    mask: Mask
    mode: Mode = "zero"
    positions: Positions = "all"
    factor: float | None = None
    value: float | None = None
    percentile: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.positions not in POSITIONS:
            raise UserError(f"unknown positions {self.positions!r}; one of {', '.join(POSITIONS)}")
        check_mode(self.mode, factor=self.factor, value=self.value, percentile=self.percentile)
        self._reference_values()

    @property
    def multiplier(self) -> float | None:
        """What responses are multiplied by; None when the mode replaces them."""
        if self.mode == "zero":
            return 0.0
        return float(self.factor) if self.factor is not None else None

    def replacements(self, site: Site) -> Floats | None:
        """What the responses at `site` become, float32 [n]; None when they are multiplied."""
        if self.multiplier is not None:
            return None
        if self.value is not None:
            return np.full(self.mask.units[site].size, self.value, np.float32)
        return self._reference_values()[site]

    def _reference_values(self) -> Mapping[Site, Floats]:
        """The reference statistic that the mode uses: site → [units]; empty when it uses none."""
        if self.multiplier is not None or self.value is not None:
            return {}
        name = {"constant": f"percentile-{self.percentile:g}" if self.percentile is not None else ""}.get(
            self.mode, "samples" if self.mode == "resample" else self.mode
        )
        references = self.mask.references
        # A statistic of these positions is closer to what is replaced than one over all of them.
        found = references.get(f"{name}@{self.positions}", references.get(name))
        if found is None or found.keys() != self.mask.units.keys():
            have = ", ".join(references) or "none"
            raise UserError(
                f"mode {self.mode} needs the reference statistic {name!r}, which the mask does not carry "
                f"(it has: {have}); make the mask from scores that hold it"
            )
        if self.mode != "resample":
            return found
        samples = min((array.shape[0] for array in found.values()), default=0)
        if found and not samples:
            raise UserError("mode resample needs at least one sample, the mask's reference has none")
        row = int(np.random.default_rng(self.seed).integers(samples)) if samples else 0
        return {site: array[row] for site, array in found.items()}

    @property
    def id(self) -> str:
        """A short name that is the same for the same units, statistics, mode and positions."""
        return f"{self.mode}-{sha256_json(self.to_dict())[:12]}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values that say what is done, the mask by its digest."""
        options = {name: getattr(self, name) for name in ("factor", "value", "percentile")}
        found: dict[str, Any] = {
            "mask": self.mask.digest,
            "units": len(self.mask),
            "mode": self.mode,
            "positions": self.positions,
            **{name: float(number) for name, number in options.items() if number is not None},
        }
        return found | ({"seed": self.seed} if self.mode == "resample" else {})


@dataclass
class Handle:
    """What is in the model while `intervene` runs.

    Attributes:
        model: The model.
        interventions: What was asked for.
        forced: A mask of another model of the same layout was let in.
        folded, hooked: Number of sites (over all interventions) that went in each way.
        forward_passes: How many forward passes the model has finished so far; not counted when all is folded.
        position_mask: Bool [batch, seq], True where the intervention acts, on any device; or one such tensor
            for each of the positions in use. Set it before each forward pass when an intervention has
            positions other than `all`; with a KV cache, seq is that of the tokens passed in.
    """

    model: Any
    interventions: tuple[Intervention, ...] = ()
    forced: bool = False
    folded: int = 0
    hooked: int = 0
    forward_passes: int = 0
    position_mask: Tensor | Mapping[str, Tensor] | None = field(default=None, repr=False)

    def _count(self, *_: object) -> None:
        self.forward_passes += 1

    def rows(self, positions: Positions, shape: torch.Size) -> Tensor:
        """The position mask of `positions`, in the shape of a response without its last axis.

        Raises:
            UserError: It is not set, or of another size than the forward pass.
        """
        mask = self.position_mask
        if isinstance(mask, Mapping):
            mask = mask.get(positions)
        if mask is None:
            raise UserError(
                f"positions={positions} needs handle.position_mask [batch, seq] before each forward pass"
            )
        if mask.numel() != shape.numel():
            raise UserError(
                f"handle.position_mask has shape {list(mask.shape)}, the forward pass {list(shape)}"
            )
        return mask.reshape(shape)

    @contextmanager
    def generating(self, prompt_width: int) -> Iterator[None]:
        """Set `position_mask` by itself in each forward pass of the block, for `model.generate`.

        The first `prompt_width` tokens of each row are the context, the rest the continuation, with or
        without a KV cache. Prompts must end together (pad on the left); padding counts as context, which
        is harmless.

        Args:
            prompt_width: `input_ids.shape[1]` of what `generate` is given.
        """
        import torch

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids = args[0] if args else kwargs.get("input_ids")
            ids = kwargs["inputs_embeds"] if ids is None else ids
            # transformers renamed the argument within version 5.
            cache = kwargs.get("cache", kwargs.get("past_key_values"))
            past = int(cache.get_seq_length()) if cache is not None else 0
            position = torch.arange(past, past + ids.shape[1], device=ids.device).expand(ids.shape[:2])
            self.position_mask = {
                "context": position < prompt_width,
                "last_context": position == prompt_width - 1,
                "continuation": position >= prompt_width,
            }

        hook = base_model(self.model).register_forward_pre_hook(before, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
            self.position_mask = None


@dataclass(frozen=True, eq=False)
class _Op:
    """What one intervention does at one site: int64 raw positions, and a factor or replacement values."""

    site: Site
    raw: NDArray[np.int64]
    factor: float | None
    values: Floats | None
    positions: Positions
    # Tensors by device, made when a forward pass first needs them.
    cache: dict[Any, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Raw indices and replacement values for a response."""
        import torch

        key = like.device, like.dtype
        if key not in self.cache:
            values = None if self.values is None else torch.as_tensor(self.values).to(like.device, like.dtype)
            self.cache[key] = torch.as_tensor(self.raw, device=like.device), values
        return self.cache[key]


@contextmanager
def intervene(
    model: Any, *interventions: Intervention, how: How = "auto", force: bool = False
) -> Iterator[Handle]:
    """Apply interventions to every forward pass of the block; the model is always put back as it was.

    Several interventions act together. Where two name the same unit at the same positions, the last one
    wins, and a warning says so.

    Args:
        model: A transformers causal LM of a known family.
        interventions: What to do.
        how: "hook", "fold", or "auto": fold where mode, positions and weights allow, else hook.
        force: Let in a mask of other weights, if the layout is the same (a fine-tune, say).

    Yields:
        A `Handle`; set its `position_mask` before each forward pass when positions are not `all`.

    Raises:
        UserError: The mask is of another model; how="fold" for something that cannot be folded; layers that
            share a module; hooks in a compiled model; or, at the end of the block, a model that ran without
            calling a hooked module, so that the mask did nothing.
    """
    if how not in ("auto", "hook", "fold"):
        raise UserError(f"unknown how={how!r}; one of auto, hook, fold")
    identity = _identity(model)
    forced = [not _check_model(one.mask.model, identity, force) for one in interventions]
    refuse_shared_modules(model, {site for one in interventions for site in one.mask.units})
    handle = Handle(model, interventions, forced=any(forced))
    planned = _resolve(interventions)
    fold = Fold(model, identity)
    hooks: list[torch.utils.hooks.RemovableHandle] = []
    enclosing = _ACTIVE.setdefault(base_model(model), [])
    _refuse_overlap(interventions, enclosing)
    enclosing.append(interventions)
    try:
        by_site: dict[Site, list[_Op]] = {}
        for plan in planned:
            for site, units in plan.units.items():
                reason = plan.obstacle(site) or fold.obstacle(site)
                if how == "fold" and reason:
                    raise UserError(f"cannot fold {plan.what.mode} at {site} into the weights: {reason}")
                if how == "hook" or reason:
                    by_site.setdefault(site, []).append(_op(model, plan, site, units))
                    handle.hooked += 1
                else:
                    assert plan.what.multiplier is not None
                    fold.multiply(site, units, plan.what.multiplier)
                    handle.folded += 1
        reached: set[Site] = set()
        if by_site:
            refuse_compiled(model)
            hooks.append(base_model(model).register_forward_hook(handle._count))
        for site, ops in by_site.items():
            hooks.append(_attach(model, site, ops, handle, reached))
        yield handle
        if handle.forward_passes and (missed := by_site.keys() - reached):
            raise UserError(
                f"the mask did not act: the model ran without calling the linear map of {min(missed)!s}"
                " (a fused kernel in its place?); load the model without such kernels"
            )
    finally:
        for hook in hooks:
            hook.remove()
        fold.restore()
        enclosing[:] = [block for block in enclosing if block is not interventions]


# What is in each model at the moment, outermost block first.
_ACTIVE: WeakKeyDictionary[nn.Module, list[tuple[Intervention, ...]]] = WeakKeyDictionary()


def _refuse_overlap(new: tuple[Intervention, ...], enclosing: list[tuple[Intervention, ...]]) -> None:
    """Raise `UserError` when an enclosing block changes a unit already: hooks and weights would disagree."""
    for one in new:
        for other in (other for block in enclosing for other in block):
            for site in one.mask.units.keys() & other.mask.units.keys():
                if np.intersect1d(one.mask.units[site], other.mask.units[site]).size:
                    raise UserError(
                        f"an enclosing block already changes units of {site}; give both interventions to one "
                        "intervene() call, where the last one wins"
                    )


def _identity(model: Any) -> ModelId:
    if not is_folded(model):
        return ModelId.of(model)
    known = folded_identity(model)
    if known is None:
        raise UserError("a mask is folded into the model's weights; leave that block first")
    return known


def _check_model(made_for: ModelId, model: ModelId, force: bool) -> bool:
    """True when the mask is of this model, False when it was let in by force."""
    if made_for.fits(model):
        return True
    names = f"made for {made_for.describe()}; this model is {model.describe()}"
    if not made_for.layout_fits(model):
        raise UserError(
            f"the mask does not fit this model: it was {names}; make it from scores of this model"
        )
    if not force:
        raise UserError(
            f"the mask is of other weights: it was {names}; make it from scores of this model, or pass "
            "--force (force=True) if this is a fine-tune of that model"
        )
    return False


@dataclass(frozen=True, eq=False)
class _Plan:
    """An intervention with the units that are left to it once later ones have won theirs."""

    what: Intervention
    units: dict[Site, NDArray[np.int32]]
    kept: dict[Site, NDArray[np.bool_]]
    contested: frozenset[Site] = frozenset()

    def obstacle(self, site: Site) -> str | None:
        """Why the intervention itself cannot be folded at `site`; None when it can."""
        if self.what.multiplier is None:
            return f"mode {self.what.mode} replaces responses"
        if self.what.positions != "all":
            return f"positions={self.what.positions} is a part of the input"
        if site in self.contested:
            return "another intervention changes the same units at some positions"
        return None


def _covers(later: str, earlier: str) -> bool:
    return later in ("all", earlier) or (later, earlier) == ("context", "last_context")


def _meets(first: str, second: str) -> bool:
    return not ("continuation" in (first, second) and {"context", "last_context"} & {first, second})


def _resolve(interventions: tuple[Intervention, ...]) -> list[_Plan]:
    """Let the last intervention win each unit that two name at the same positions; warn how many."""
    plans: list[_Plan] = []
    overlapping = 0
    for number, one in enumerate(interventions):
        units, kept, contested = {}, {}, set()
        for site, own in one.mask.units.items():
            keep = np.ones(own.size, bool)
            for later in interventions[number + 1 :]:
                other = later.mask.units.get(site)
                if other is None or not _meets(one.positions, later.positions):
                    continue
                both = np.isin(own, other) & keep
                overlapping += int(both.sum())
                if _covers(later.positions, one.positions):
                    keep &= ~both
                elif both.any():
                    # Both stay, the later one at some positions: from the weights it could not win there.
                    contested.add(site)
            if keep.any():
                units[site], kept[site] = own[keep], keep
        plans.append(_Plan(one, units, kept, frozenset(contested)))
    if overlapping:
        warnings.warn(
            f"{overlapping} units are named by two interventions at the same positions; the last one wins",
            stacklevel=4,
        )
    return plans


def _op(model: Any, plan: _Plan, site: Site, units: NDArray[np.int32]) -> _Op:
    _, slot = module_of(model, site)
    values = plan.what.replacements(site)
    return _Op(
        site=site,
        raw=raw_positions(layout_of(model), slot, site.kind, units),
        factor=plan.what.multiplier,
        values=None if values is None else values[plan.kept[site]],
        positions=plan.what.positions,
    )


def _attach(
    model: Any, site: Site, ops: list[_Op], handle: Handle, reached: set[Site]
) -> torch.utils.hooks.RemovableHandle:
    """Hook the module of one site, before other hooks: `capture` then sees what the model goes on with.

    Sites whose hook has run are added to `reached`.
    """
    module, slot = module_of(model, site)
    if slot.side == "input":

        def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            reached.add(site)
            return (_changed(args[0], ops, handle), *args[1:])

        return module.register_forward_pre_hook(before, prepend=True)

    def after(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        reached.add(site)
        return _changed(output, ops, handle)

    return module.register_forward_hook(after, prepend=True)


def _changed(response: Tensor, ops: list[_Op], handle: Handle) -> Tensor:
    """A response with the ops done to it: in place without grad, else a copy.

    In place is safe: the tensor is a fresh output of a linear map, of an activation function or of the
    attention, in every family of the table.
    """
    import torch

    out = response if not (torch.is_grad_enabled() and response.requires_grad) else response.clone()
    # The last intervention wins: factors act on the response as it came, not on what another op made of it.
    scaled = [
        response[..., op.tensors(response)[0]] * op.factor if op.factor not in (None, 0.0) else None
        for op in ops
    ]
    for op, product in zip(ops, scaled, strict=True):
        index, values = op.tensors(response)
        if op.positions == "all" and op.factor == 0.0:
            out.index_fill_(-1, index, 0)
            continue
        if product is not None:
            new = product
        else:
            fixed = (
                values if values is not None else torch.zeros(len(index), dtype=out.dtype, device=out.device)
            )
            new = fixed.expand(*out.shape[:-1], len(index))
        if op.positions != "all":
            rows = handle.rows(op.positions, out.shape[:-1]).to(out.device)
            new = torch.where(rows.unsqueeze(-1), new, out[..., index])
        out.index_copy_(-1, index, new)
    return out


def with_mask(intervention: Intervention, mask: Mask) -> Intervention:
    """The same intervention on another mask (a random control, say)."""
    return replace(intervention, mask=mask)
