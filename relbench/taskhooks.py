"""What the lm-eval task files call: the documents of a probe task and the metrics of its three forms.

`tasks/_*.yaml` name these functions; nothing else belongs here. Documents never carry run state
(model, mask), so that document hashes pair between runs.
"""

from __future__ import annotations

import logging
import random
import unicodedata
from collections.abc import Mapping, Sequence
from math import exp
from typing import TYPE_CHECKING, Any

from relbench.probes import DEFAULT_TEMPLATE, Probe, probes

if TYPE_CHECKING:
    from datasets import DatasetDict

FORMS = ("recall", "mc", "gen")
# Other objects that the multiple-choice form sets beside the accepted answers.
DISTRACTORS = 15


class _NoCustomDatasetHint(logging.Filter):
    """Drops lm-eval's advice about `--metadata`, which it repeats for each of hundreds of tasks."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not (message.startswith("relbench_") and "Custom kwargs can be passed" in message)


logging.getLogger("lm_eval.api.task").addFilter(_NoCustomDatasetHint())


def documents(
    relation: str,
    language: str,
    form: str = "recall",
    template: str = DEFAULT_TEMPLATE,
    split: str = "eval",
    shots_seed: int = 0,
    **_run: Any,
) -> DatasetDict:
    """The documents of one task; lm-eval calls this with `dataset_kwargs` and its run's metadata.

    Args:
        relation: Relation name.
        language: Language code.
        form: "recall" (accepted answers only), "mc" (beside other objects) or "gen".
        template: Template name; `--metadata template=question` chooses another.
        split: Which facts are tested; `--metadata split=tune` chooses another.
        shots_seed: Seed of the few-shot examples.
        **_run: Model arguments and other metadata, which do not concern the documents.

    Returns:
        Splits "test" and "shots", one row a probe.
    """
    from datasets import Dataset, DatasetDict

    tested = probes(relation, language, split, template)
    shots = probes(relation, language, "shots", template, shots_seed=int(shots_seed))
    pool = _answer_pool(relation, language) if form == "mc" else ()
    return DatasetDict(
        {
            "test": Dataset.from_list([document(probe, pool) for probe in tested]),
            "shots": Dataset.from_list([document(probe, ()) for probe in shots]),
        }
    )


def document(probe: Probe, pool: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """A probe as lm-eval's document.

    Args:
        probe: What is asked.
        pool: Identities and labels of the relation's objects, to draw other candidates from.
    """
    others = [label for _, label in pool if label not in probe.accepted]
    if others:
        chosen = random.Random(f"distractors:{probe.fact_id}:{probe.language}")
        others = sorted(chosen.sample(others, min(DISTRACTORS, len(others))))
    return {
        "fact_id": probe.fact_id,
        "subject_id": probe.subject_id,
        "relation": probe.relation,
        "language": probe.language,
        "subject": probe.subject,
        "prompt": probe.prompt,
        "answer": probe.answer,
        "answer_id": probe.answer_id,
        "choices": [*probe.accepted, *others],
        "gold": list(range(len(probe.accepted))),
        "answer_seen": probe.answer_seen,
        "copyable": probe.copyable,
    }


def _answer_pool(relation: str, language: str) -> list[tuple[str, str]]:
    """Identity and canonical label of every object of the relation, sorted."""
    pool = {}
    for split in ("detect", "tune", "eval"):
        for probe in probes(relation, language, split):
            pool[probe.answer_id] = probe.answer
    return sorted(pool.items())


def recall_metrics(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Metrics of the base form from the log probabilities of the accepted answers.

    `recall` is 1 when the greedy continuation is an accepted answer. `answer_logprob` and
    `answer_prob` are the canonical answer's, natural logarithm, summed over its tokens.
    `first_token_mrr` is there when the model reports the rank of the answer's first token.
    """
    canonical = results[0]
    metrics = {
        "recall": float(any(greedy for _, greedy in results)),
        "answer_logprob": float(canonical[0]),
        "answer_prob": exp(canonical[0]),
    }
    rank = getattr(canonical, "first_token_rank", None)
    if rank is not None:
        metrics["first_token_mrr"] = 1.0 / rank
    return metrics


def mc_metrics(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Metrics of the multiple-choice form: `acc` (a tie with a wrong candidate is wrong) and `mrr`."""
    n_gold = len(doc["gold"])
    best = max(score for score, _ in results[:n_gold])
    above = sum(score >= best for score, _ in results[n_gold:])
    return {"acc": float(above == 0), "mrr": 1.0 / (1 + above)}


def gen_metrics(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Metrics of the generated form.

    `recall` is 1 when an accepted answer starts the normalised text. A word may go on after the answer, as in
    the base form, so that recall there implies recall here.

    `prefix2` (arXiv 2502.17355) is 1 when the first two generated tokens, normalised, are the beginning of an
    accepted answer. It is there when the model reports those tokens, as `relbench` does; from the text alone
    nobody can tell where the second one ends.
    """
    text = _normal(results[0])
    accepted = [_normal(answer) for answer in doc["choices"][: len(doc["gold"])]]
    metrics = {"recall": float(any(text.startswith(answer) for answer in accepted))}
    first_two = getattr(results[0], "first_two", None)
    if first_two is not None:
        # Tokens may end within a character.
        start = _normal(first_two.rstrip("\ufffd"))
        metrics["prefix2"] = float(bool(start) and any(answer.startswith(start) for answer in accepted))
    return metrics


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
