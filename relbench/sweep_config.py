"""The config of a sweep: what `relbench sweep CONFIG.yaml` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from interventions.errors import UserError
from interventions.prompts import Prompt
from relbench.languages import LANGUAGES
from relbench.prompts import prompts
from relbench.relations import load_relation, relation_names
from relbench.scoring import ScoringPlan

ALL = "all"


class MethodConfig(BaseModel):
    """A scoring method and the prompts it reads.

    Attributes:
        name: Name of the method.
        template: Prompt template; the method's own when not given.
        shots: Few-shot examples before each scored prompt; the method's own number when not given.
        options: The method's own options.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    template: str | None = None
    shots: int | None = Field(default=None, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)


class SweepConfig(BaseModel):
    """Everything a sweep depends on.

    Attributes:
        model: An embedded model's name, a hub id or a local path.
        dtype: Of the weights.
        device: "cpu", "cuda:0", …; the first accelerator, else the processor, when not given.
        batch_size: Prompts a forward call.
        relations: Names, or "all" for every relation there is.
        languages: Language codes.
        shots: Few-shot examples before every evaluated prompt.
        shots_seed: Seed of their choice.
        template: Template of the evaluated prompts.
        split: Facts that are evaluated.
        limit: At most so many evaluated facts a relation and language.
        detect_limit: At most so many scored prompts a relation and language.
        kinds: Unit kinds that are scored and masked.
        methods: Scoring methods; none to measure the baseline alone.
        fractions: Mask sizes, as shares of the distinct `act` neurons.
        random_masks: Random controls a fraction, matched to the pooled layer histogram of all its masks.
        mode, factor, value, percentile, positions: What a mask does to its units.
        seed: Of everything drawn that has no seed of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str | None = None
    batch_size: int = Field(default=32, ge=1)
    relations: tuple[str, ...]
    languages: tuple[str, ...] = ("en",)
    shots: int = Field(default=5, ge=0)
    shots_seed: int = 0
    template: str = "completion"
    split: Literal["eval", "tune"] = "eval"
    limit: int | None = Field(default=None, ge=1)
    detect_limit: int | None = Field(default=None, ge=1)
    kinds: tuple[str, ...] = ("act",)
    methods: tuple[MethodConfig, ...] = ()
    fractions: tuple[float, ...] = (0.01,)
    random_masks: int = Field(default=3, ge=0)
    mode: Literal["zero", "scale", "mean", "constant", "resample"] = "zero"
    factor: float | None = None
    value: float | None = None
    percentile: float | None = None
    positions: Literal["all", "context", "last_context", "continuation"] = "all"
    seed: int = 0

    @field_validator("relations", mode="before")
    @classmethod
    def _every(cls, value: Any) -> Any:
        return relation_names() if value in (ALL, [ALL]) else value

    @field_validator("languages")
    @classmethod
    def _known_languages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for code in value:
            if code not in LANGUAGES:
                raise ValueError(f"unknown language {code!r}; languages are {', '.join(LANGUAGES)}")
        return value

    @field_validator("relations", "languages", "fractions", "kinds")
    @classmethod
    def _distinct(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value or len(set(value)) < len(value):
            raise ValueError("needs at least one entry, and none twice")
        return value

    @field_validator("fractions")
    @classmethod
    def _shares(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < fraction <= 1 for fraction in value):
            raise ValueError("fractions are above 0 and at most 1")
        return value

    @field_validator("methods")
    @classmethod
    def _distinct_methods(cls, value: tuple[MethodConfig, ...]) -> tuple[MethodConfig, ...]:
        if len({method.name for method in value}) < len(value):
            raise ValueError("a method is named twice")
        return value

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], source: str) -> SweepConfig:
        """The config in a mapping; `source` names it in errors.

        Raises:
            UserError: A key is unknown, missing or has a value it cannot have; the first one is named.
        """
        try:
            return cls.model_validate(dict(raw))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or "the file"
            message = {
                "missing": "is missing",
                "extra_forbidden": f"is unknown; keys are {', '.join(cls.model_fields)}",
            }.get(first["type"], first["msg"])
            raise UserError(f"{source}: {key}: {message}") from error

    @classmethod
    def from_yaml(cls, path: str | Path) -> SweepConfig:
        """Read a config file.

        Raises:
            UserError: The file is missing, no YAML, or not a config; the key is named.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path} is missing; give the path of a sweep config")
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not YAML: {error}") from error
        if not isinstance(raw, dict):
            raise UserError(f"{path} is not a sweep config: it should be a mapping of keys to values")
        return cls.from_dict(raw, str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.model_dump(mode="json")

    def check(self) -> None:
        """Make sure that all it names is there, before a model is loaded.

        Raises:
            UserError: An unknown relation, language, template, method or model, or too few facts.
        """
        from relbench.models import resolve
        from relbench.scoring import scoring_prompts

        resolve(self.model)
        for name in self.relations:
            load_relation(name)
        for plan in self.scoring_plans():
            scoring_prompts(plan)
        self.tested_prompts()

    def tested_prompts(self) -> list[Prompt]:
        """The prompts that every treatment is evaluated on.

        Raises:
            UserError: An unknown template, no facts, or fewer few-shot examples than asked for.
        """
        return prompts(
            self.relations,
            self.languages,
            self.split,
            self.template,
            shots=self.shots,
            shots_seed=self.shots_seed,
            limit=self.limit,
        )

    def scoring_plans(self) -> list[ScoringPlan]:
        """What each method scores."""
        return [
            ScoringPlan(
                method=method.name,
                relations=self.relations,
                languages=self.languages,
                template=method.template,
                shots=method.shots,
                shots_seed=self.shots_seed,
                limit=self.detect_limit,
                kinds=self.kinds,
                seed=self.seed,
                options=method.options,
            )
            for method in self.methods
        ]
