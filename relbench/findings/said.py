"""Tables of what the model says instead of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relbench.analysis.continuations import CLASSES, Flip, shares
from relbench.findings.columns import EVALUATED, MASK, evaluated_values, mask_values
from relbench.prompts import concept
from relbench.tables import Column, Table, make_table
from relbench.treatments import Treatment

Flips = Sequence[tuple[Treatment, Flip]]


def continuation_table(found: Flips) -> Table:
    """Shares of what stands where the answer was, for every mask and evaluated concept with flipped facts."""
    groups: dict[tuple[Treatment, str, bool], list[Flip]] = {}
    for treatment, flip in found:
        evaluated = concept(flip.before.relation, flip.before.language)
        groups.setdefault((treatment, evaluated, flip.lost), []).append(flip)
    named = "; ".join(f"{name}: {what}" for name, what in CLASSES.items())

    def row(treatment: Treatment, evaluated: str, lost: bool, flips: Sequence[Flip]) -> tuple[Any, ...]:
        wrong = [flip.became if lost else flip.was for flip in flips]
        return (
            *mask_values(treatment),
            treatment.selection,
            treatment.seed,
            *evaluated_values(evaluated),
            "lost" if lost else "gained",
            len(flips),
            *shares(wrong).values(),
        )

    return make_table(
        "continuations",
        "What the model says instead",
        "Greedy continuations of facts that a mask flips: for lost facts what is said under it, for gained ones "
        f"what was said before. Shares of: {named}.",
        (
            *MASK,
            Column("selection", "selection", "text"),
            Column("seed", "seed", "count"),
            *EVALUATED,
            Column("flip", "facts", "text"),
            Column("n", "flipped facts", "count"),
            *(Column(name.replace(" ", "_"), name, "share") for name in CLASSES),
        ),
        [row(*key, flips) for key, flips in groups.items()],
    )


def flip_table(found: Flips) -> Table:
    """Every flipped fact of a mask's own relation, with both continuations."""
    return make_table(
        "flips",
        "Flipped facts of the masked relation",
        "What the model says greedily before and after, and what that is.",
        (
            *MASK,
            Column("selection", "selection", "text"),
            *EVALUATED,
            Column("fact", "fact", "text"),
            Column("before", "before", "text"),
            Column("was", "that is", "text"),
            Column("after", "after", "text"),
            Column("became", "that is", "text"),
        ),
        [
            (
                *mask_values(treatment),
                treatment.selection,
                flip.before.relation,
                flip.before.language,
                flip.before.fact_id,
                flip.before.continuation,
                flip.was,
                flip.after.continuation,
                flip.became,
            )
            for treatment, flip in found
            if treatment.concept is not None and treatment.concept.rpartition("@")[0] == flip.before.relation
        ],
    )
