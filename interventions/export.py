"""Masks for other tools: a PEFT (IA)³ adapter, a folded checkpoint, a CSV of units.

Multiplying a linear map's input by a 0/1 vector is what an (IA)³ adapter with that map as a feed-forward
module does; multiplying its output is what it does with any other module. So `zero` and `scale` at all
positions can be written as an adapter that an unmodified `lm_eval --model hf --model_args
pretrained=M,peft=DIR` runs; the other modes cannot, since (IA)³ only multiplies.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.apply import Intervention, intervene
from interventions.artifact import FORMAT_VERSION, package_versions
from interventions.errors import UserError
from interventions.families import Family, Slot, family_named
from interventions.files import atomic_write, canonical_json
from interventions.fold import raw_positions
from interventions.mask import Mask
from interventions.units import Site, UnitLayout, base_model

SIDECAR = "relbench_mask.json"
BASELINE = "baseline"
CARD = "README.md"
_PREFIX = "base_model.model."
_VECTOR = ".ia3_l"


def export_csv(mask: Mask, path: str | Path) -> None:
    """Write the units as CSV: `layer,kind,unit`, one a line, sorted."""
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("layer", "kind", "unit"))
        for site, units in mask.units.items():
            writer.writerows((site.layer, site.kind, int(unit)) for unit in units)


def export_peft(
    intervention: Intervention, folder: str | Path, *, base: str | None = None, card: str | None = None
) -> None:
    """Write an intervention as a PEFT (IA)³ adapter folder, with an all-ones adapter in `baseline/`.

    lm-eval resizes embeddings for any adapter when vocabulary and tokenizer differ in size, so a baseline to
    compare with needs an adapter too: that is what the all-ones one is for.

    Args:
        intervention: Mode `zero` or `scale`, positions `all`.
        folder: A new or empty folder.
        base: What the adapter says it is for; by default the mask's model's name.
        card: Text of its README.md (see `hub.model_card`).

    Raises:
        UserError: The intervention cannot be written as an adapter (mode, positions, or units that scale both
            sides of one linear map), the mask carries no layout, or the folder is in use.
    """
    vectors = adapter_vectors(intervention)
    layout = _layout(intervention.mask)
    name = base or intervention.mask.model.name
    with new_folder(folder) as where:
        _write_adapter(where, vectors, layout, name)
        ones = {key: (side, np.ones_like(vector)) for key, (side, vector) in vectors.items()}
        _write_adapter(where / BASELINE, ones, layout, name)
        write_sidecar(where, intervention)
        if card is not None:
            with atomic_write(where / CARD) as file:
                file.write(card)


def adapter_vectors(intervention: Intervention) -> dict[str, tuple[str, NDArray[np.float32]]]:
    """Module name → ("input" or "output", vector to multiply by), for every module that the mask touches.

    An empty mask gives one all-ones vector, since an adapter must have a module.

    Raises:
        UserError: As `export_peft`.
    """
    factor = intervention.multiplier
    if factor is None:
        raise UserError(
            f"mode {intervention.mode} cannot be a PEFT (IA)3 adapter, which only multiplies; "
            "zero and scale can"
        )
    if intervention.positions != "all":
        raise UserError(f"positions={intervention.positions} cannot be exported: an adapter acts everywhere")
    layout = _layout(intervention.mask)
    family = family_named(layout.model_type)
    vectors: dict[str, tuple[str, NDArray[np.float32]]] = {}
    for site, units in intervention.mask.units.items():
        slot = family.slots[site.kind]
        name = module_name(family, site.layer, slot)
        side, vector = vectors.setdefault(
            name, (slot.side, np.ones(width(layout, slot, site.kind), np.float32))
        )
        if side != slot.side:
            raise UserError(
                "an adapter scales either the input or the output of a linear map, and this mask has units "
                f"on both sides of {name}: export {_kinds_at(family, slot.module)} apart"
            )
        vector[raw_positions(layout, slot, site.kind, units)] = factor
    if not vectors:
        slot = family.slots["act"]
        vectors[module_name(family, 0, slot)] = (slot.side, np.ones(layout.d_ff, np.float32))
    return vectors


def module_name(family: Family, layer: int, slot: Slot) -> str:
    """Full name of a linear map in the model."""
    return f"{family.layers}.{layer}.{slot.module}"


def width(layout: UnitLayout, slot: Slot, kind: str) -> int:
    """Entries on the side of the linear map where `kind` lives, other kinds of a fused map included."""
    return sum(layout.size(part) for part in slot.parts or (kind,))


def _kinds_at(family: Family, module: str) -> str:
    return " and ".join(kind for kind, slot in family.slots.items() if slot.module == module)


def _layout(mask: Mask) -> UnitLayout:
    if mask.model.layout is None:
        raise UserError("this mask does not carry the model's layout, so it cannot be exported")
    return mask.model.layout


def _write_adapter(
    folder: Path,
    vectors: Mapping[str, tuple[str, NDArray[np.float32]]],
    layout: UnitLayout,
    base_model_name: str,
) -> None:
    import json

    from peft import IA3Config
    from safetensors.numpy import save as to_bytes

    # Full names: a short one such as c_proj would match the attention's as well as the FFN's.
    config = IA3Config(
        target_modules=sorted(vectors),
        feedforward_modules=sorted(name for name, (side, _) in vectors.items() if side == "input"),
        # GPT-2's Conv1D stores its weight [inputs, outputs].
        fan_in_fan_out=layout.model_type == "gpt2",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_model_name,
        inference_mode=True,
    ).to_dict()
    # PEFT keeps sets, whose order changes from run to run.
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    with atomic_write(folder / "adapter_config.json") as file:
        file.write(json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n")
    tensors = {
        f"{_PREFIX}{name}{_VECTOR}": vector.reshape((1, -1) if side == "input" else (-1, 1))
        for name, (side, vector) in vectors.items()
    }
    with atomic_write(folder / "adapter_model.safetensors", "wb") as file:
        file.write(to_bytes(tensors, {"format": "pt"}))


def export_checkpoint(
    model: Any,
    tokenizer: Any,
    intervention: Intervention,
    folder: str | Path,
    *,
    force: bool = False,
    card: str | None = None,
) -> None:
    """Write the model with the mask folded into its weights, for any engine that reads a checkpoint.

    Args:
        model: The model the mask is for; left as it was.
        tokenizer: Saved beside it; None to leave it out.
        intervention: Mode `zero` or `scale`, positions `all`.
        folder: A new or empty folder.
        force: Let in a mask of other weights of the same layout.
        card: Text of its README.md.

    Raises:
        UserError: The intervention cannot be folded, the mask is of another model, or the folder is in use.
    """
    inner: Any = base_model(model)
    with new_folder(folder) as where, intervene(model, intervention, how="fold", force=force):
        inner.save_pretrained(where)
        if tokenizer is not None:
            tokenizer.save_pretrained(where)
        write_sidecar(where, intervention)
        if card is not None:
            with atomic_write(where / CARD) as file:
                file.write(card)


def write_sidecar(folder: Path, intervention: Intervention) -> None:
    """Write what the mask is beside an export, so that it can be imported back with its provenance."""
    mask = intervention.mask
    units = {str(site): units.tolist() for site, units in mask.units.items()}
    content = {
        "format": FORMAT_VERSION,
        "model": mask.model.to_dict(),
        "provenance": mask.provenance,
        "intervention": intervention.to_dict(),
        "units": units,
        "versions": package_versions(),
    }
    with atomic_write(folder / SIDECAR) as file:
        file.write(canonical_json(content) + "\n")


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """A folder that appears whole when the block ends, or not at all.

    Yields:
        A temporary folder beside it to write into.

    Raises:
        UserError: `folder` exists and is not an empty folder, or cannot be written.
    """
    refuse_used_folder(folder)
    folder = Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    try:
        yield scratch
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(scratch, 0o777 & ~umask)
        if folder.exists():
            folder.rmdir()
        os.replace(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def refuse_used_folder(folder: str | Path) -> None:
    """Raise `UserError` when `folder` exists and is not an empty folder."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; give a new folder")


def sites_by_module(layout: UnitLayout) -> dict[str, list[tuple[Site, Slot]]]:
    """Full module name → the sites that live on it, for reading an adapter back."""
    family = family_named(layout.model_type)
    found: dict[str, list[tuple[Site, Slot]]] = {}
    for site in layout.sites():
        slot = family.slots[site.kind]
        found.setdefault(module_name(family, site.layer, slot), []).append((site, slot))
    return found


def split_adapter_key(key: str) -> str | None:
    """The module that a tensor of an adapter file scales; None for a tensor that is no (IA)³ vector."""
    if not key.startswith(_PREFIX) or not key.endswith(_VECTOR):
        return None
    return key.removeprefix(_PREFIX).removesuffix(_VECTOR)
