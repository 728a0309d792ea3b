"""The config of a sweep: what `relbench sweep CONFIG.yaml` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from interventions.apply import check_mode
from interventions.errors import UserError
from interventions.prompts import Prompt
from interventions.scores import Scores
from interventions.units import KINDS
from relbench.languages import LANGUAGES
from relbench.presets import get_preset
from relbench.prompts import concept, prompts
from relbench.relations import load_relation, relation_names
from relbench.samples import BASELINE
from relbench.scoring import ScoringPlan
from relbench.treatments import RANDOM

ALL = "all"
PAPER12 = "paper12"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MethodConfig(_Part):
    """A scoring method and the prompts it reads.

    Attributes:
        id: Name of this entry in results; the method's or the preset's name when not given.
        name: Name of the method.
        preset: A preset, whose settings the other keys override; instead of a name.
        template: Prompt template; the method's own when not given. Several, comma-separated, are read one after the
            other.
        shots: Few-shot examples before each scored prompt; the method's own number when not given.
        kinds: Unit kinds; the sweep's when not given.
        limit: At most so many scored prompts a relation and language; the sweep's `detect_limit` when not given.
        options: The method's own options.
    """

    id: str = Field(default="", pattern=NAME)
    name: str
    preset: str | None = None
    template: str | None = None
    shots: int | None = Field(default=None, ge=0)
    kinds: tuple[str, ...] | None = None
    limit: int | None = Field(default=None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, raw: Any) -> Any:
        if isinstance(raw, str):
            raw = {"name": raw}
        if not isinstance(raw, dict):
            return raw
        if raw.get("preset") is not None:
            raw = _with_preset(raw)
        if "id" not in raw and "name" in raw:
            # "random" alone names the controls.
            raw = {"id": "random-scores" if raw["name"] == RANDOM else raw["name"], **raw}
        return raw


def _with_preset(raw: dict[str, Any]) -> dict[str, Any]:
    """A method entry with what it leaves to its preset filled in."""
    try:
        preset = get_preset(str(raw["preset"]))
    except UserError as error:
        raise ValueError(str(error)) from error
    if raw.get("name") not in (None, preset.method):
        raise ValueError(
            f"preset {raw['preset']} is of {preset.method}, not of {raw['name']}; give one of the two"
        )
    settings = {"template": preset.template, "shots": preset.shots, "kinds": preset.kinds}
    given = {key: value for key, value in raw.items() if value is not None}
    options = {**preset.options, **(raw.get("options") or {})}
    return {"id": raw["preset"], **settings, **given, "name": preset.method, "options": options}


class ScoresConfig(_Part):
    """Scores that were made before.

    Attributes:
        id: Name in results.
        path: The scores file.
        concepts: Which of its concepts to mask; all that the sweep evaluates when not given.
    """

    id: str = Field(pattern=NAME)
    path: str
    concepts: tuple[str, ...] | None = None


class ModeConfig(_Part):
    """What masks do to their units; see `interventions.Intervention`."""

    mode: Literal["zero", "scale", "mean", "constant", "resample"] = "zero"
    factor: float | None = None
    value: float | None = None
    percentile: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, raw: Any) -> Any:
        return {"mode": raw} if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _complete(self) -> ModeConfig:
        try:
            check_mode(self.mode, factor=self.factor, value=self.value, percentile=self.percentile)
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def label(self) -> str:
        """Mode and number in a name, such as `scale0.5`."""
        number = next((n for n in (self.factor, self.value, self.percentile) if n is not None), None)
        kind = "percentile" if self.percentile is not None else self.mode
        return kind if number is None else f"{kind}{number:g}"

    @property
    def needs_references(self) -> bool:
        """Whether masks must carry reference statistics."""
        return self.mode in ("mean", "resample") or self.percentile is not None


class ControlsConfig(_Part):
    """Random masks to compare with.

    Attributes:
        seeds: How many.
        match: "pooled": as many units as the masks of a size, spread over layers and kinds as all masks of that
            size together, so that they cost no more with more relations; "mask": for every mask, as many units
            in each layer and kind; "norm": as "mask", and from the same deciles of mean |m|·‖v‖.
    """

    seeds: int = Field(default=3, ge=0)
    match: Literal["pooled", "mask", "norm"] = "pooled"


class SweepConfig(_Part):
    """Everything a sweep depends on.

    Attributes:
        model: An embedded model's name, a hub id or a local path.
        dtype: Of the weights.
        device: "cpu", "cuda:0", …; the first accelerator, else the processor, when not given.
        batch_size: Prompts a forward call.
        relations: Names, "all" for every relation there is, or "paper12".
        languages: Language codes.
        shots: Few-shot examples before every evaluated prompt; a number, or several.
        shots_seed: Seed of their choice.
        templates: Templates of the evaluated prompts. With a method's `template` this is template transfer.
        split: Facts that are evaluated.
        limit: At most so many evaluated facts a relation and language.
        detect_limit: At most so many scored prompts a relation and language.
        contrast_relations: Relations that methods draw negatives from or contrast with; the masked ones when
            not given. Off-target numbers are reported apart for relations named here.
        concepts: Which relations in which languages (`country_capital@en`) are masked, and evaluated under masks: those
            that the model recalls, say. The baseline is measured on all relations in all languages. All when
            not given.
        kinds: Unit kinds that are scored and masked.
        methods: Scoring methods; without them and `scores` the baseline alone is measured.
        scores: Scores files, as further methods.
        fractions: Mask sizes, as shares of the distinct `act` neurons; 0.01 when `ks` is not given either.
        ks: Mask sizes as numbers of units.
        bands: Also mask alone the units between each size and the next smaller one.
        complement: Also mask everything but the chosen units, and but as many random ones.
        modes: What masks do to their units: each mask is tried in each.
        positions: Where they do it, each in turn.
        controls: Random masks.
        evaluate: "all": every mask is evaluated on all languages; "own-language": on the one it was found in.
        transfer_fractions: Sizes at which masks are evaluated on all languages whatever `evaluate` says.
        continuations: Also record what the model says, before and after, to facts that a mask made it lose.
        perplexity: Also measure perplexity under every mask: "neutral" for the text that comes with the package,
            or the path of a text file, documents parted by empty lines; and on the relations' own sentences.
        log_samples: Also write lm-eval's `samples_<task>` files for every treatment.
        seed: Of everything drawn that has no seed of its own.
    """

    model: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str | None = None
    batch_size: int = Field(default=32, ge=1)
    relations: tuple[str, ...]
    languages: tuple[str, ...] = ("en",)
    shots: tuple[Annotated[int, Field(ge=0)], ...] = (5,)
    shots_seed: int = 0
    templates: tuple[str, ...] = ("completion",)
    split: Literal["eval", "tune"] = "eval"
    limit: int | None = Field(default=None, ge=1)
    detect_limit: int | None = Field(default=None, ge=1)
    contrast_relations: tuple[str, ...] | None = None
    concepts: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    kinds: tuple[str, ...] = ("act",)
    methods: tuple[MethodConfig, ...] = ()
    scores: tuple[ScoresConfig, ...] = ()
    fractions: tuple[float, ...] = ()
    ks: tuple[Annotated[int, Field(ge=1)], ...] = ()
    bands: bool = False
    complement: bool = False
    modes: tuple[ModeConfig, ...] = (ModeConfig(),)
    positions: tuple[Literal["all", "context", "last_context", "continuation"], ...] = ("all",)
    controls: ControlsConfig = ControlsConfig()
    evaluate: Literal["all", "own-language"] = "all"
    transfer_fractions: tuple[float, ...] = ()
    continuations: bool = False
    perplexity: str | None = None
    log_samples: bool = False
    seed: int = 0

    @field_validator("relations", "contrast_relations", mode="before")
    @classmethod
    def _every(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)):
            return value
        found: list[Any] = []
        for name in names:
            if name == ALL:
                found += relation_names()
            elif name == PAPER12:
                found += [relation for relation in relation_names() if load_relation(relation).paper12]
            else:
                found.append(name)
        return found

    @field_validator("shots", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, int) else value

    @field_validator("languages")
    @classmethod
    def _known_languages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for code in value:
            if code not in LANGUAGES:
                raise ValueError(f"unknown language {code!r}; languages are {', '.join(LANGUAGES)}")
        return value

    @field_validator("relations", "languages", "shots", "templates", "kinds", "modes", "positions")
    @classmethod
    def _some(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise ValueError("needs at least one entry")
        return value

    @field_validator(
        "relations", "contrast_relations", "languages", "concepts", "shots", "templates", "kinds", "fractions", "ks",
        "modes", "positions",
    )  # fmt: skip
    @classmethod
    def _distinct(cls, value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("names an entry twice")
        return value

    @field_validator("fractions", "transfer_fractions")
    @classmethod
    def _shares(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < fraction <= 1 for fraction in value):
            raise ValueError("fractions are above 0 and at most 1")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        names = [*(method.id for method in self.methods), *(entry.id for entry in self.scores)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"methods: {twice!r} stands twice; give the entries different ids")
        for name in names:
            if name in (BASELINE, RANDOM):
                raise ValueError(f"methods: the id {name!r} is taken")
        for name in self.concepts or ():
            if name not in self.every_concept:
                raise ValueError(f"concepts: {name!r} is none of the relations in one of the languages")
        if self.fractions and self.ks:
            raise ValueError("fractions: give fractions or ks, not both")
        if not set(self.transfer_fractions) <= set(self.fractions):
            raise ValueError("transfer_fractions: name fractions that are also under fractions")
        if self.continuations and self.positions != ("all",):
            raise ValueError(
                "continuations: a continuation that is made has no positions; use positions: [all]"
            )
        if self.perplexity is not None and self.positions != ("all",):
            raise ValueError(
                "perplexity: a text has no context and continuation to tell apart; use positions: [all]"
            )
        if self.controls.seeds and self.controls.match == "pooled":
            for mode in self.modes:
                if mode.needs_references:
                    raise ValueError(
                        f"modes: pooled random masks have no reference statistics for {mode.label}; "
                        "use controls: {match: mask}, or seeds: 0"
                    )
        return self

    @property
    def sizes(self) -> tuple[float | int, ...]:
        """Mask sizes, smallest first: shares (floats) or numbers of units (integers)."""
        return tuple(sorted(self.ks)) or tuple(sorted(self.fractions or (0.01,)))

    @property
    def has_masks(self) -> bool:
        """Whether anything but the baseline is measured."""
        return bool(self.methods or self.scores)

    @property
    def every_concept(self) -> tuple[str, ...]:
        """Each relation in each language, as the baseline is measured on them."""
        return tuple(concept(relation, code) for relation in self.relations for code in self.languages)

    @property
    def tested_concepts(self) -> tuple[str, ...]:
        """What is masked and evaluated under masks, in the order of `every_concept`."""
        every = self.every_concept
        return every if self.concepts is None else tuple(name for name in every if name in self.concepts)

    @property
    def tested_relations(self) -> tuple[str, ...]:
        """The relations of `tested_concepts`."""
        return tuple(dict.fromkeys(name.rpartition("@")[0] for name in self.tested_concepts))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], source: str) -> SweepConfig:
        """The config in a mapping; `source` names it in errors.

        Raises:
            UserError: A key is unknown, missing or has a value it cannot have; the first one is named.
        """
        try:
            return cls.model_validate(dict(raw))
        except ValidationError as error:
            _, message = _first_error(error)
            raise UserError(f"{source}: {message}") from error

    @classmethod
    def from_yaml(cls, path: str | Path) -> SweepConfig:
        """Read a config file.

        Raises:
            UserError: The file is missing, no YAML, or not a config; line and key are named.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path} is missing; give the path of a sweep config")
        try:
            text = path.read_text(encoding="utf-8")
            raw, tree = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not YAML: {error}") from error
        if not isinstance(raw, dict):
            raise UserError(f"{path} is not a sweep config: it should be a mapping of keys to values")
        if (key := next(repeated_keys(tree), None)) is not None:
            raise UserError(f"{path}:{key.start_mark.line + 1}: {key.value} stands twice; keep one of them")
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            where, message = _first_error(error)
            raise UserError(f"{path}:{line_of(tree, where)}: {message}") from error

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.model_dump(mode="json")

    def check(self) -> None:
        """Make sure that all it names is there, before a model is loaded.

        Raises:
            UserError: An unknown relation, language, template, method or model, an option that a method does not
                have, a scores file that is missing or lacks what is evaluated, or too few facts.
        """
        from relbench.models import resolve
        from relbench.perplexity import documents
        from relbench.scoring import check_plan

        resolve(self.model)
        for name in (*self.relations, *(self.contrast_relations or ())):
            load_relation(name)
        for kind in self.kinds:
            if kind not in KINDS:
                raise UserError(f"unknown unit kind {kind!r}; kinds are {', '.join(KINDS)}")
        for plan in self.scoring_plans():
            check_plan(plan)
        for entry in self.scores:
            self.masked_concepts(entry, Scores.load(entry.path))
        for shots in self.shots:
            for template in self.templates:
                self.tested_prompts(template, shots)
        documents(self)

    def tested_prompts(self, template: str, shots: int) -> list[Prompt]:
        """The prompts that every treatment is evaluated on, in one of `templates` and with one of `shots`.

        Raises:
            UserError: An unknown template, no facts, or fewer few-shot examples than asked for.
        """
        return prompts(
            self.relations,
            self.languages,
            self.split,
            template,
            shots=shots,
            shots_seed=self.shots_seed,
            limit=self.limit,
        )

    def scoring_plans(self) -> list[ScoringPlan]:
        """What each method scores."""
        codes = {name.rpartition("@")[2] for name in self.tested_concepts}
        relations = self.tested_relations
        return [
            ScoringPlan(
                method=method.name,
                relations=relations,
                languages=tuple(code for code in self.languages if code in codes),
                contrast_relations=self.contrast_relations,
                template=method.template,
                shots=method.shots,
                shots_seed=self.shots_seed,
                limit=method.limit or self.detect_limit,
                kinds=method.kinds or self.kinds,
                seed=self.seed,
                options=method.options,
            )
            for method in self.methods
        ]

    def masked_concepts(self, entry: MethodConfig | ScoresConfig, scores: Scores) -> tuple[str, ...]:
        """The concepts of `scores` that are masked.

        Raises:
            UserError: A scores file lacks a concept that is named, or has none that the sweep evaluates.
        """
        tested = self.tested_concepts
        if isinstance(entry, MethodConfig):
            return tuple(name for name in scores.concepts if name in tested)
        if entry.concepts is not None:
            for name in entry.concepts:
                scores.index(name)
            return entry.concepts
        found = tuple(name for name in scores.concepts if name in tested)
        if not found:
            raise UserError(f"{entry.path} has scores of none of the evaluated concepts; name its concepts")
        return found


def _first_error(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Where the first mistake is, and what it is."""
    first = error.errors()[0]
    where = first["loc"]
    key = ".".join(str(part) for part in where)
    message = {
        "missing": "is missing",
        "extra_forbidden": "is unknown",
    }.get(first["type"], first["msg"].removeprefix("Value error, "))
    if first["type"] == "extra_forbidden" and len(where) == 1:
        message += f"; keys are {', '.join(SweepConfig.model_fields)}"
    if not key:
        # Checks of several keys at once begin their message with the key to blame.
        return tuple(message.partition(":")[0].split(".")), message
    return where, f"{key}: {message}"


def repeated_keys(tree: yaml.Node | None) -> Iterator[yaml.Node]:
    """Keys of a YAML tree that their mapping has already; YAML's loader silently takes the last."""
    if isinstance(tree, yaml.MappingNode):
        seen = set()
        for key, value in tree.value:
            if key.value in seen:
                yield key
            seen.add(key.value)
            yield from repeated_keys(value)
    elif isinstance(tree, yaml.SequenceNode):
        for value in tree.value:
            yield from repeated_keys(value)


def line_of(tree: yaml.Node | None, where: Sequence[int | str]) -> int:
    """The line of a YAML tree, counted from 1, that holds the value at `where`, or the nearest thing around it."""
    line = 1
    for part in where:
        if isinstance(tree, yaml.MappingNode):
            found = next((pair for pair in tree.value if pair[0].value == str(part)), None)
            if found is None:
                break
            line, tree = found[0].start_mark.line + 1, found[1]
        elif isinstance(tree, yaml.SequenceNode) and isinstance(part, int) and part < len(tree.value):
            tree = tree.value[part]
            line = tree.start_mark.line + 1
        else:
            break
    return line
