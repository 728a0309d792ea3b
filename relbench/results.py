"""Results of a sweep as files in lm-eval's own format, one an intervention."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from interventions.files import atomic_write
from relbench.relations import load_relation
from relbench.samples import Sample

if TYPE_CHECKING:
    from interventions.model_id import ModelId
    from relbench.sweep_config import SweepConfig
    from relbench.treatments import Treatment


def write_results(
    folder: Path,
    samples: Sequence[Sample],
    treatments: Sequence[Treatment],
    config: SweepConfig,
    model_id: ModelId,
) -> None:
    """Write `<folder>/<treatment>.json` for every treatment; the same samples give the same bytes."""
    grouped: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        grouped[sample.intervention][sample.task].append(sample)
    for treatment in treatments:
        tasks = grouped[treatment.id]
        record = {
            "results": {name: _metrics(name, members) for name, members in sorted(tasks.items())},
            "versions": {
                name: load_relation(members[0].relation).version for name, members in sorted(tasks.items())
            },
            "n-shot": {name: config.shots for name in sorted(tasks)},
            "higher_is_better": {
                name: {"recall": True, "answer_logprob": True, "first_token_mrr": True}
                for name in sorted(tasks)
            },
            "n-samples": {
                name: {"original": len(members), "effective": len(members)}
                for name, members in sorted(tasks.items())
            },
            "config": {
                "model": "relbench",
                "model_args": {"pretrained": config.model, "dtype": config.dtype},
                "batch_size": config.batch_size,
                "limit": config.limit,
                "relbench": {"model_id": model_id.to_dict(), "treatment": asdict(treatment)},
            },
        }
        with atomic_write(folder / f"{treatment.id}.json") as file:
            json.dump(record, file, indent=2, ensure_ascii=False, sort_keys=True)
            file.write("\n")


def _metrics(name: str, samples: Sequence[Sample]) -> dict[str, Any]:
    columns: dict[str, list[float]] = {
        "recall": [sample.recall for sample in samples],
        "answer_logprob": [sample.answer_logprob for sample in samples],
        "first_token_mrr": [1 / sample.first_token_rank for sample in samples if sample.first_token_rank],
    }
    metrics: dict[str, Any] = {"alias": name}
    for metric, values in columns.items():
        if not values:
            continue
        metrics[f"{metric},none"] = mean(values)
        metrics[f"{metric}_stderr,none"] = stdev(values) / len(values) ** 0.5 if len(values) > 1 else "N/A"
    return metrics
