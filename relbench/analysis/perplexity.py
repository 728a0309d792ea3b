"""Perplexity before and after, paired by document: whether a mask harms more than the relations it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from relbench.analysis.intervals import percentile_interval
from relbench.analysis.resampling import DRAWS, multiplicities, ratio_draws
from relbench.analysis.runs import controls_of, relation_of
from relbench.analysis.selectivity import LEAST_SEEDS
from relbench.samples import BASELINE
from relbench.tables import Interval
from relbench.treatments import RANDOM, Treatment


@dataclass(frozen=True)
class Document:
    """A document's log probability under one treatment.

    Attributes:
        treatment: Id; "baseline" for nothing.
        name: Of the document.
        language: Its language.
        relation: The relation that its sentence carries; None for neutral text.
        tokens: Number of predicted tokens.
        logprob: Sum of their natural log probabilities.
    """

    treatment: str
    name: str
    language: str
    relation: str | None
    tokens: int
    logprob: float


@dataclass(frozen=True)
class Perplexity:
    """Perplexity over documents without and with an intervention, or with each of several seeds.

    Attributes:
        documents, tokens: How many; predicted tokens.
        before, after: exp of the mean negative log probability of a token.
        ratio: `after / before`; of several seeds the geometric mean.
        interval: Bootstrap over documents, and over seeds where there are several (10 at least; else None);
            None for a single document.
    """

    documents: int
    tokens: int
    before: float
    after: float
    ratio: float
    interval: Interval | None


def perplexity_ratio(
    tokens: Mapping[str, int],
    before: Mapping[str, float],
    after: Sequence[Mapping[str, float]],
    *,
    seed: int = 0,
) -> Perplexity:
    """Change of perplexity over the same documents.

    Args:
        tokens: Document → number of predicted tokens.
        before: Document → sum of the tokens' natural log probabilities without the intervention.
        after: The same with it; one mapping for a mask, one a seed for a random control.
        seed: Of the bootstrap draws.

    Raises:
        ValueError: There are no documents, or not the same ones everywhere.
    """
    names = sorted(tokens)
    if not names or not after or any(run.keys() != tokens.keys() for run in (before, *after)):
        raise ValueError("perplexities pair only over the same documents")
    n = np.array([tokens[name] for name in names], float)
    old = np.array([before[name] for name in names])
    # [seeds, documents]
    new = np.array([[run[name] for name in names] for run in after])
    rise = old - new
    return Perplexity(
        documents=len(names),
        tokens=int(n.sum()),
        before=exp(-old.sum() / n.sum()),
        after=exp(-new.mean(0).sum() / n.sum()),
        ratio=exp(rise.mean(0).sum() / n.sum()),
        interval=_interval(n, rise, seed),
    )


NEUTRAL, OWN, OTHERS = "neutral text", "sentences of the masked relation", "sentences of other relations"


@dataclass(frozen=True)
class Harm:
    """Perplexity under one mask on one kind of text in one language, beside its random controls.

    Attributes:
        treatment: The mask.
        language: Of the text.
        text: `NEUTRAL`, `OWN` or `OTHERS`.
        mask: Without and with the mask.
        control: Without and with its random controls; None without any.
        seeds: Number of those.
    """

    treatment: Treatment
    language: str
    text: str
    mask: Perplexity
    control: Perplexity | None
    seeds: int


def harms(treatments: Sequence[Treatment], documents: Iterable[Document], *, seed: int = 0) -> list[Harm]:
    """Change of perplexity under every mask, by language and kind of text.

    Args:
        treatments: Of a sweep.
        documents: Under the baseline and every treatment.
        seed: Of the bootstrap draws.

    Raises:
        UserError: Documents do not pair.
    """
    by_treatment: dict[str, dict[str, Document]] = {}
    for document in documents:
        by_treatment.setdefault(document.treatment, {})[document.name] = document
    baseline = by_treatment.get(BASELINE, {})
    if not baseline:
        return []
    controls = [t for t in treatments if t.method == RANDOM and t.id in by_treatment]
    found = []
    for mask in treatments:
        if mask.concept is None or mask.id not in by_treatment:
            continue
        seeds = [by_treatment[control.id] for control in controls_of(mask, controls)]
        for (language, text), own in _texts(baseline, relation_of(mask.concept)).items():
            pairs = _Paired(own, seed)
            found.append(
                Harm(
                    treatment=mask,
                    language=language,
                    text=text,
                    mask=pairs.ratio([by_treatment[mask.id]]),
                    control=pairs.ratio(seeds) if seeds else None,
                    seeds=len(seeds),
                )
            )
    return found


def _texts(baseline: Mapping[str, Document], masked: str) -> dict[tuple[str, str], list[Document]]:
    found: dict[tuple[str, str], list[Document]] = {}
    for document in baseline.values():
        text = NEUTRAL if document.relation is None else OWN if document.relation == masked else OTHERS
        found.setdefault((document.language, text), []).append(document)
    return found


class _Paired:
    """Documents of the baseline, to be compared with the same ones under treatments."""

    def __init__(self, baseline: Sequence[Document], seed: int) -> None:
        self.baseline, self.seed = baseline, seed

    def ratio(self, runs: Sequence[Mapping[str, Document]]) -> Perplexity:
        for run in runs:
            for document in self.baseline:
                other = run.get(document.name)
                if other is None or other.tokens != document.tokens:
                    raise UserError(f"document {document.name} does not pair; run the sweep again")
        return perplexity_ratio(
            {document.name: document.tokens for document in self.baseline},
            {document.name: document.logprob for document in self.baseline},
            [{d.name: run[d.name].logprob for d in self.baseline} for run in runs],
            seed=self.seed,
        )


def _interval(tokens: NDArray[np.float64], rise: NDArray[np.float64], seed: int) -> Interval | None:
    seeds, documents = rise.shape
    if documents < 2 or 1 < seeds < LEAST_SEEDS:
        return None
    if documents <= _KEPT:
        drawn = _document_draws(documents, seed)
        logs = (rise @ drawn) / (tokens @ drawn)
    else:
        logs = ratio_draws(rise, tokens, np.random.default_rng(seed))
    if seeds > 1:
        logs = logs * multiplicities(seeds, DRAWS, np.random.default_rng([seed, 1])) / seeds
    units = documents if seeds == 1 else min(documents, seeds)
    found = percentile_interval(logs.sum(0), units=units)
    return None if found is None else Interval(exp(found.low), exp(found.high))


# Documents up to which draws are kept for the next treatment.
_KEPT = 1_000


@lru_cache(maxsize=4)
def _document_draws(documents: int, seed: int) -> NDArray[np.float64]:
    return multiplicities(documents, DRAWS, np.random.default_rng(seed)).astype(np.float64)
