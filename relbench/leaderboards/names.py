"""Where a submission lies: `results/<org__model>/<revision>/<submission>.json`."""

from __future__ import annotations

import re

from interventions.model_id import ModelId

RESULTS = "results"
SAMPLES = "samples"
META = "model_meta.json"

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")


def model_folder(model: ModelId) -> str:
    """`org__model`; characters that a folder's name should not have become hyphens."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", model.name.replace("/", "__")).lstrip("._-")
    return safe[:127] or "model"


def revision_folder(model: ModelId) -> str:
    """The revision; of weights without one, such as dequantised ones, the beginning of their fingerprint."""
    if FOLDER.fullmatch(model.revision):
        return model.revision
    return f"weights-{model.fingerprint[:16]}"


def samples_name(submission: str) -> str:
    """Path of a submission's samples, beside its own file."""
    return f"{SAMPLES}/{submission}.jsonl.gz"
