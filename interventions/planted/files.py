"""The planted model as files, for methods that run elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from interventions.files import atomic_write
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.planted.model import TEMPLATES, Planted


def write(planted: Planted, folder: Path) -> None:
    """Write checkpoint, prompts, truth and masks of a planted model into `folder`.

    `prompts.jsonl` has a line for each prompt: the fields of `interventions.prompts.Prompt`, its split and
    its template. `truth.json` holds settings and planted units.
    """
    model = planted.model()
    model.save_pretrained(folder / "model")
    planted.tokenizer().save_pretrained(folder / "model")
    with atomic_write(folder / "truth.json") as file:
        json.dump(planted.to_dict(), file, indent=1)
        file.write("\n")
    with atomic_write(folder / "prompts.jsonl") as file:
        for split in planted.facts.splits:
            for template in TEMPLATES:
                for prompt in planted.prompts(split, template):
                    line = {**asdict(prompt), "split": split, "template": template}
                    file.write(json.dumps(line) + "\n")
    model_id = ModelId.of(model, name="planted")
    for relation, units in planted.truth.relations.items():
        mask = Mask(
            units={site: indices.astype(np.int32) for site, indices in units.items()},
            model=model_id,
            provenance={"operation": "planted", "relation": relation, **asdict(planted.settings)},
        )
        mask.save(folder / "masks" / f"{relation}.mask")
