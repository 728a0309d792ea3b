"""Masks from other tools: a PEFT (IA)³ adapter folder, or a CSV of layers and units."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.export import SIDECAR, sites_by_module, split_adapter_key, width
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.units import Site, UnitLayout, raw_indices


@dataclass(frozen=True)
class Imported:
    """A mask, and the factor that its adapter multiplies by (0 for a mask that switches off)."""

    mask: Mask
    factor: float


def import_csv(path: str | Path, model: ModelId, *, kind: str = "act") -> Mask:
    """Read `layer,unit` or `layer,kind,unit` rows, in any order; a header line is needed.

    Args:
        path: The CSV.
        model: The model the units belong to, with its layout.
        kind: Kind of the units when there is no `kind` column.

    Raises:
        UserError: Unreadable, columns missing, a value that is no unit of the model, or a unit named twice.
    """
    path = Path(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    found: dict[Site, list[int]] = {}
    for number, row in enumerate(rows, start=2):
        try:
            site = Site.parse(f"{int(row['layer'])}.{(row.get('kind') or kind).strip()}")
            found.setdefault(site, []).append(int(row["unit"]))
        except (KeyError, ValueError, TypeError):
            raise UserError(f"{path} line {number}: need the columns layer and unit, whole numbers") from None
        except UserError as error:
            raise UserError(f"{path} line {number}: {error}") from None
    if not rows:
        raise UserError(f"{path} lists no units; need a header line layer,unit and one unit a line")
    try:
        units = {site: np.sort(_int32(values)) for site, values in found.items()}
        return Mask(units, model, {"operation": "import", "from": "csv", "file": path.name})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _int32(values: list[int]) -> NDArray[np.int32]:
    try:
        return np.array(values, dtype=np.int32)
    except OverflowError:
        raise UserError(f"no model has a unit {max(values, key=abs)}") from None


def import_peft(folder: str | Path, model: ModelId | None = None) -> Imported:
    """Read a PEFT (IA)³ adapter folder back to a mask.

    Args:
        folder: Ours, or of another tool: each vector holds ones and one other number, the same everywhere.
        model: The model the adapter is for; not needed for an adapter that `export_peft` wrote.

    Raises:
        UserError: No (IA)³ adapter, damaged or edited, for another layout, trained (many factors), or
            of another tool and without `model`.
    """
    folder = Path(folder)
    config = _json(folder / "adapter_config.json")
    if config.get("peft_type") != "IA3":
        raise UserError(f"{folder} is a PEFT adapter of type {config.get('peft_type')}, not IA3")
    sidecar = _json(folder / SIDECAR) if (folder / SIDECAR).exists() else {}
    ours = ModelId.from_dict(sidecar.get("model")) if sidecar else None
    if model is None and ours is None:
        raise UserError(f"{folder} does not say which weights it is for; add --model")
    identity = model or ours
    assert identity is not None
    if identity.layout is None:
        raise UserError("the model's layout is not known")
    units, factor = _units(folder, config, identity.layout)
    if sidecar and {str(site): found.tolist() for site, found in units.items()} != sidecar.get("units"):
        raise UserError(
            f"{folder}: the adapter's vectors and {SIDECAR} name different units, so one of them was "
            f"changed; delete {SIDECAR} and add --model to read the vectors as they are"
        )
    provenance: dict[str, Any] = {"operation": "import", "from": "peft"}
    if ours is not None and (model is None or ours.fits(model)):
        inner = sidecar.get("provenance")
        provenance |= {"masks": [inner]} if isinstance(inner, dict) else {}
    return Imported(Mask(units, identity, provenance), factor)


def _units(
    folder: Path, config: Mapping[str, Any], layout: UnitLayout
) -> tuple[dict[Site, NDArray[np.int32]], float]:
    sites = sites_by_module(layout)
    inputs = config.get("feedforward_modules") or []
    inputs = [inputs] if isinstance(inputs, str) else inputs
    units: dict[Site, NDArray[np.int32]] = {}
    factors: set[float] = set()
    for key, tensor in _tensors(folder).items():
        name = split_adapter_key(key)
        if name is None or name not in sites:
            raise UserError(f"{folder}: {key!r} is not an (IA)3 vector of a {layout.model_type} model")
        # The rule by which PEFT itself tells the two apart.
        side = "input" if any(name.endswith(module) for module in inputs) else "output"
        here = [(site, slot) for site, slot in sites[name] if slot.side == side]
        if not here or tensor.size != width(layout, here[0][1], here[0][0].kind):
            raise UserError(f"{folder}: {key!r} has {tensor.size} values, which is another model's size")
        vector = tensor.reshape(-1).astype(np.float64)
        factors |= set(np.unique(vector[vector != 1]).tolist())
        for site, slot in here:
            changed = np.flatnonzero(vector[raw_indices(layout, slot, site.kind)] != 1)
            if changed.size:
                units[site] = changed.astype(np.int32)
    if len(factors) > 1:
        raise UserError(
            f"{folder} multiplies by {len(factors)} different factors: a trained adapter, not a mask"
        )
    return units, factors.pop() if factors else 0.0


def _tensors(folder: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / "adapter_model.safetensors"
    try:
        tensors: dict[str, NDArray[Any]] = load(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, TypeError, KeyError):
        raise UserError(f"{path} is damaged or no safetensors file") from None
    if any(not np.issubdtype(t.dtype, np.floating) or not np.isfinite(t).all() for t in tensors.values()):
        raise UserError(f"{path} holds values that are no finite numbers")
    return tensors


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not readable JSON") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object")
    return value
