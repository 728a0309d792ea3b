"""Scoring methods: the protocol they follow and the registry that finds them by name.

A method turns a model and prompts into a float per unit for each concept. Other people's methods register
under the entry point group `relbench.methods`:

    [project.entry-points."relbench.methods"]
    my-method = "my_package.scoring:MyMethod"

The object is a `ScoringMethod`, or a class that makes one without arguments. Methods that cannot run here can
hand in a scores file instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from interventions.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from interventions.prompts import Prompt
    from interventions.units import Site

ENTRY_POINTS = "relbench.methods"

# name -> "module:attribute"; imported when asked for.
METHODS: dict[str, str] = {
    "average-precision": "interventions.statistical.methods:AVERAGE_PRECISION",
    "auroc": "interventions.statistical.methods:AUROC",
    "mean-difference": "interventions.statistical.methods:MEAN_DIFFERENCE",
    "cohens-d": "interventions.statistical.methods:COHENS_D",
    "welch-t": "interventions.statistical.methods:WELCH_T",
    "point-biserial": "interventions.statistical.methods:POINT_BISERIAL",
    "mutual-information": "interventions.statistical.methods:MUTUAL_INFORMATION",
    "lape": "interventions.statistical.methods:LAPE",
    "probe": "interventions.statistical.methods:PROBE",
    "random": "interventions.statistical.methods:RANDOM",
    "log-probability-increase": "interventions.attribution.methods:LOG_PROBABILITY_INCREASE",
    "value-log-probability": "interventions.attribution.methods:VALUE_LOG_PROBABILITY",
    "probability-increase": "interventions.attribution.methods:PROBABILITY_INCREASE",
    "value-norm": "interventions.attribution.methods:VALUE_NORM",
    "coefficient": "interventions.attribution.methods:COEFFICIENT",
    "reciprocal-rank": "interventions.attribution.methods:RECIPROCAL_RANK",
    "coefficient-norm": "interventions.attribution.methods:COEFFICIENT_NORM",
    "coefficient-rank": "interventions.attribution.methods:COEFFICIENT_RANK",
    "gradient-activation": "interventions.attribution.methods:GRADIENT_ACTIVATION",
    "integrated-gradients": "interventions.attribution.methods:INTEGRATED_GRADIENTS",
    "attribution-patching": "interventions.attribution.methods:ATTRIBUTION_PATCHING",
    "direct-logit": "interventions.attribution.methods:DIRECT_LOGIT",
}


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What a method found.

    Attributes:
        values: Site → float32 [concepts, units], rows in the order of the concepts asked for, no NaN.
        references: Reference statistics by name, as in `Scores.references`.
        parameters: What was actually used and noted, plain JSON values.
    """

    values: Mapping[Site, NDArray[np.float32]]
    references: Mapping[str, Mapping[Site, NDArray[np.float32]]] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class ScoringMethod(Protocol):
    """A way to score units.

    It may also have `check_options(options)` and `check_prompts(prompts, concepts, options)`, which raise a
    `UserError` for what `score` would refuse; they are called before a model is loaded.

    Attributes:
        name: Its name, as registered.
        template: Prompt template that it reads unless told otherwise ("question" or "completion").
        shots: Few-shot examples before each prompt unless told otherwise.
    """

    @property
    def name(self) -> str: ...
    @property
    def template(self) -> str: ...
    @property
    def shots(self) -> int: ...

    def score(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        concepts: Sequence[str],
        *,
        kinds: tuple[str, ...],
        seed: int,
        options: Mapping[str, object],
        progress: bool,
    ) -> MethodResult:
        """Score the units of `kinds` for `concepts`.

        Args:
            model: A causal LM in eval mode; it is left as it was.
            tokenizer: Its tokenizer.
            prompts: Prompts of every concept, and of others to tell them from.
            concepts: What to score, in the order of the rows.
            kinds: Unit kinds.
            seed: Of everything the method draws.
            options: The method's own options; an unknown one is a `UserError`.
            progress: Show progress on stderr.

        Raises:
            UserError: What the method cannot do with these prompts, kinds or options.
        """
        ...


def method_names() -> list[str]:
    """Names of all methods, built-in and installed, sorted."""
    return sorted(METHODS.keys() | {point.name for point in entry_points(group=ENTRY_POINTS)})


def get_method(name: str) -> ScoringMethod:
    """The scoring method called `name`. A built-in one wins over an installed one of the same name.

    Raises:
        UserError: No such method, or an installed one that cannot be loaded or is no scoring method.
    """
    if name in METHODS:
        module, _, attribute = METHODS[name].partition(":")
        return _instance(name, getattr(importlib.import_module(module), attribute))
    installed = list(entry_points(group=ENTRY_POINTS, name=name))
    if not installed:
        raise UserError(f"unknown scoring method {name!r}; there are {', '.join(method_names())}")
    try:
        found = installed[0].load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"scoring method {name!r} ({installed[0].value}) cannot be loaded: {why}") from error
    return _instance(name, found)


def _instance(name: str, found: Any) -> ScoringMethod:
    method = found() if isinstance(found, type) else found
    if not isinstance(method, ScoringMethod):
        raise UserError(
            f"{name!r} is no scoring method: it needs the attributes name, template and shots and a function "
            "score (interventions.methods.ScoringMethod)"
        )
    return method
