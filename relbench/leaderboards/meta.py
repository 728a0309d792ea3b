"""`model_meta.json`: what is known of a model, once for all of its submissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interventions.model_id import ModelId
from relbench.leaderboards.submission import Model, load_schema

_FIELDS = load_schema()["properties"]["model"]["properties"]
_IDENTITY = _FIELDS["id"]["properties"]

META_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        **_IDENTITY,
        "source": _FIELDS["source"],
        "parameters": {"type": ["integer", "null"], "minimum": 1, "maximum": 10**15},
        "licence": {"type": ["string", "null"], "maxLength": 100},
    },
    "required": [*_IDENTITY, "source", "parameters", "licence"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class ModelMeta:
    """A model.

    Attributes:
        id: Name, revision, layout and fingerprint of the weights.
        source: What `--model` takes.
        parameters: Number of weights; None where it is not known.
        licence: Of the weights; None where it is not known.
    """

    id: ModelId
    source: str
    parameters: int | None
    licence: str | None

    @classmethod
    def of(cls, model: Model) -> ModelMeta:
        """What is known of a model; size and licence of the embedded ones."""
        from relbench.models import EMBEDDED

        known = EMBEDDED.get(model.source)
        return cls(
            model.id, model.source, known.parameters if known else None, known.licence if known else None
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **self.id.to_dict(),
            "source": self.source,
            "parameters": self.parameters,
            "licence": self.licence,
        }
