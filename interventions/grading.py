"""Grading a scoring method on the planted model, where the units of every relation are known."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.methods import get_method
from interventions.planted.facts import RELATIONS, Settings
from interventions.planted.model import Planted, Truth
from interventions.scores import Scores
from interventions.stability import top_k
from interventions.units import Site, layout_of


class AtK(NamedTuple):
    """The top k units of one relation against the truth.

    Attributes:
        precision: Share of the top k that carry the relation.
        recall: Share of the units that carry the relation that are in the top k.
        confounds: Share of the top k that are confounds.
    """

    precision: float
    recall: float
    confounds: float


@dataclass(frozen=True)
class Grade:
    """How well a method finds the units of one relation.

    Attributes:
        method: Its name.
        noise, seed: Of the planted model.
        relation: What was looked for.
        planted: How many units carry it.
        at: k → what the top k holds.
        auprc: Area under the precision-recall curve of the scores against the truth (average precision);
            chance is the share of units that carry the relation.
    """

    method: str
    noise: float
    seed: int
    relation: str
    planted: int
    at: Mapping[int, AtK]
    auprc: float


def grade(
    method: str,
    settings: Settings,
    *,
    ks: Sequence[int] = (24,),
    template: str | None = None,
    shots: int | None = None,
    options: Mapping[str, object] | None = None,
) -> list[Grade]:
    """Score the planted model's `act` units with a method and compare with what was planted.

    Args:
        method: Name of a scoring method.
        settings: Of the planted model; the method's own randomness takes its seed too.
        ks: Sizes of the top sets.
        template, shots: Of the prompts, of the split "detect"; None for the method's own.
        options: The method's options.

    Returns:
        A grade for each relation.

    Raises:
        UserError: What the method or the planted model cannot do.
    """
    scorer = get_method(method)
    planted = Planted(settings)
    with warnings.catch_warnings():
        # An exact model's units tie by construction.
        warnings.filterwarnings("ignore", message=".*units tie at rank")
        result = scorer.score(
            planted.model(),
            planted.tokenizer(),
            planted.prompts(
                "detect", template or scorer.template, shots=scorer.shots if shots is None else shots
            ),
            RELATIONS,
            kinds=("act",),
            seed=settings.seed,
            options=options or {},
            progress=False,
        )
    return _grades(method, settings, planted.truth, result.values, RELATIONS, ks)


def grade_scores(scores: Scores, settings: Settings, *, ks: Sequence[int] = (24,)) -> list[Grade]:
    """Grade scores that were made elsewhere for the planted model of `settings`.

    Args:
        scores: Of `act` units; concepts are relations, with or without an "@" and what follows.
        settings: Of the planted model.
        ks: Sizes of the top sets.

    Raises:
        UserError: Scores of another model, of units that are missing, or of concepts that were not planted.
    """
    from interventions.model_id import ModelId

    planted = Planted(settings)
    model = planted.model()
    if not scores.model.fits(ModelId.of(model)):
        raise UserError(
            f"the scores are not of the planted model with noise {settings.noise:g} and seed "
            f"{settings.seed}; name the settings that `relbench planted` was run with"
        )
    missing = [site for site in layout_of(model).sites(("act",)) if site not in scores.values]
    if missing:
        raise UserError(f"the scores lack {missing[0]}; score the act units of all layers")
    relations = [concept.partition("@")[0] for concept in scores.concepts]
    unknown = [relation for relation in relations if relation not in RELATIONS]
    if unknown:
        raise UserError(f"{unknown[0]!r} is not planted; there are {', '.join(RELATIONS)}")
    values = {site: values for site, values in scores.values.items() if site.kind == "act"}
    return _grades(scores.method, settings, planted.truth, values, relations, ks)


def _grades(
    method: str,
    settings: Settings,
    truth: Truth,
    values: Mapping[Site, NDArray[np.float32]],
    relations: Sequence[str],
    ks: Sequence[int],
) -> list[Grade]:
    from sklearn.metrics import average_precision_score

    sites = list(values)
    confounds = truth.confounds(sites)
    grades = []
    for row, relation in enumerate(relations):
        scores = np.concatenate([values[site][row] for site in sites])
        labels = truth.labels(relation, sites)
        at = {}
        for k in ks:
            if not 1 <= k <= len(scores):
                raise UserError(f"k is {k}; the planted model has {len(scores)} act units")
            top = top_k(scores, k)
            hits = int(labels[top].sum())
            at[k] = AtK(hits / k, hits / int(labels.sum()), float(confounds[top].mean()))
        auprc = float(average_precision_score(labels, scores))
        grades.append(Grade(method, settings.noise, settings.seed, relation, int(labels.sum()), at, auprc))
    return grades
