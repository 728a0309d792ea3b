"""Sample records for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relbench.samples import Sample


def sample(number: int, recall: int, **changes: Any) -> Sample:
    """The `number`-th question of a task, answered right or wrong."""
    base = Sample(
        intervention="baseline",
        task="relbench_country_capital_en",
        relation="country_capital",
        language="en",
        template="completion",
        shots=5,
        doc_id=number,
        fact_id=f"country_capital.{number}",
        subject_id=f"country:{number}",
        answer_id=f"city:{number}",
        answer_seen=False,
        copyable=False,
        answer_in_shots=False,
        filter="none",
        doc_hash=f"d{number}",
        prompt_hash=f"p{number}",
        target_hash=f"t{number}",
        recall=recall,
        answer_logprob=-1.0 if recall else -3.0,
        first_token_rank=1,
    )
    return replace(base, **changes)
