"""Columns that several tables share, and the values that go into them."""

from __future__ import annotations

from typing import Any

from relbench.analysis.runs import language_of, relation_of
from relbench.tables import Column
from relbench.treatments import Treatment

MASK = (
    Column("treatment", "mask", "text"),
    Column("method", "method", "text"),
    Column("masked", "masked relation", "text"),
    Column("masked_language", "its language", "text"),
    Column("fraction", "share of all FFN neurons", "share"),
    Column("k", "units", "count"),
    Column("mode", "what is done to them", "text"),
    Column("positions", "at which positions", "text"),
)
EVALUATED = (
    Column("relation", "evaluated relation", "text"),
    Column("language", "language", "text"),
)


def mask_values(treatment: Treatment) -> tuple[Any, ...]:
    """Values of `MASK`."""
    concept = treatment.concept
    return (
        treatment.id,
        treatment.method,
        None if concept is None else relation_of(concept),
        None if concept is None else language_of(concept),
        treatment.fraction,
        treatment.k,
        treatment.mode,
        treatment.positions,
    )


def evaluated_values(concept: str) -> tuple[str, str]:
    """Values of `EVALUATED`."""
    return relation_of(concept), language_of(concept)


def interval(of: str, label: str = "95 % interval") -> Column:
    """The column of an estimate's interval."""
    return Column(f"{of}_interval", label, "interval", of=of)
