"""Table of perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relbench.analysis.perplexity import Harm, Perplexity
from relbench.findings.columns import MASK, interval, mask_values
from relbench.tables import Column, Table, make_table


def perplexity_table(found: Sequence[Harm]) -> Table:
    """Perplexity under every mask, by language and kind of text."""
    return make_table(
        "perplexity",
        "Perplexity before and after",
        "Ratio: perplexity with the mask over perplexity without, paired by document, with a bootstrap interval "
        "over documents (10,000 draws). Random: geometric mean over masks of the same size; its interval is over "
        "seeds too and takes ten.",
        (
            *MASK,
            Column("selection", "selection", "text"),
            Column("text", "text", "text"),
            Column("language", "language", "text"),
            Column("documents", "documents", "count"),
            Column("tokens", "tokens", "count"),
            Column("before", "perplexity before", "number"),
            Column("after", "perplexity after", "number"),
            Column("ratio", "ratio", "number"),
            interval("ratio"),
            Column("random_ratio", "random: ratio", "number"),
            interval("random_ratio"),
            Column("random_masks", "random masks", "count"),
        ),
        [
            (
                *mask_values(one.treatment),
                one.treatment.selection,
                one.text,
                one.language,
                one.mask.documents,
                one.mask.tokens,
                one.mask.before,
                one.mask.after,
                *_ratio(one.mask),
                *(_ratio(one.control) if one.control else (None, None)),
                one.seeds,
            )
            for one in found
        ],
    )


def _ratio(found: Perplexity) -> tuple[Any, Any]:
    return found.ratio, found.interval
