"""Results of a sweep as files in lm-eval's own format: `results/<treatment>.json`, and its logged samples on request.

Where a sweep asks its tasks in several ways, each has a file of its own. `logged/<treatment>/` is a folder as
`lm_eval --log_samples --output_path` writes it, for lm-eval's loggers and `relbench compare`; lm-eval puts dates
into its file names, and here, where equal results are equal bytes, the date is always the same.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from interventions.files import atomic_write
from relbench.relations import load_relation
from relbench.samples import Sample

if TYPE_CHECKING:
    from interventions.model_id import ModelId
    from relbench.blocks import Block, Evaluator
    from relbench.journal import Records
    from relbench.sweep_config import SweepConfig
    from relbench.treatments import Treatment

NO_DATE = "1970-01-01T00-00-00.000000"


def write_results(
    folder: Path,
    samples: Sequence[Sample],
    treatments: Sequence[Treatment],
    config: SweepConfig,
    model_id: ModelId,
) -> None:
    """Write `<folder>/<treatment>.json` for every treatment; the same samples give the same bytes."""
    grouped: dict[tuple[str, str, int], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        grouped[sample.intervention, sample.template, sample.shots][sample.task].append(sample)
    by_id = {treatment.id: treatment for treatment in treatments}
    for (treatment, template, shots), tasks in sorted(grouped.items()):
        record = results_record(tasks, by_id[treatment], template, shots, config, model_id)
        _write_json(folder / f"{setting_name(config, treatment, template, shots)}.json", record)


def setting_name(config: SweepConfig, treatment: str, template: str, shots: int) -> str:
    """A treatment's name, with how it was asked where the sweep asks in several ways."""
    several = len(config.templates) * len(config.shots) > 1
    return f"{treatment}.{template}-{shots}shot" if several else treatment


def results_record(
    tasks: Mapping[str, Sequence[Sample]],
    treatment: Treatment,
    template: str,
    shots: int,
    config: SweepConfig,
    model_id: ModelId,
) -> dict[str, Any]:
    """lm-eval's results of one treatment, with what was done under `config.relbench`."""
    ordered = sorted(tasks.items())
    return {
        "results": {name: _metrics(name, members) for name, members in ordered},
        "group_subtasks": {name: [] for name, _ in ordered},
        "configs": {
            name: {"task": name, "output_type": "multiple_choice", "metadata": {"template": template}}
            for name, _ in ordered
        },
        "versions": {name: load_relation(members[0].relation).version for name, members in ordered},
        "n-shot": {name: shots for name, _ in ordered},
        "higher_is_better": {
            name: {"recall": True, "answer_logprob": True, "first_token_mrr": True} for name, _ in ordered
        },
        "n-samples": {
            name: {"original": len(members), "effective": len(members)} for name, members in ordered
        },
        "config": {
            "model": "relbench",
            "model_args": {"pretrained": config.model, "dtype": config.dtype},
            "batch_size": config.batch_size,
            "limit": config.limit,
            "relbench": {
                "model_id": model_id.to_dict(),
                "treatment": asdict(treatment),
                "template": template,
                "split": config.split,
                "shots_seed": config.shots_seed,
            },
        },
    }


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


def write_logged(
    folder: Path,
    blocks: Mapping[Block, Records],
    treatments: Sequence[Treatment],
    evaluator: Evaluator,
    model_id: ModelId,
) -> None:
    """Write lm-eval's logged samples of every treatment.

    Args:
        folder: Where; each treatment gets a folder in it.
        blocks: Finished recall blocks, whose records hold `resps`.
        treatments: Of the sweep.
        evaluator: For the tasks' documents and requests.
        model_id: Of the model.
    """
    from relbench.blocks import samples_in

    by_id = {treatment.id: treatment for treatment in treatments}
    grouped: dict[tuple[str, str, int], dict[str, list[Sample]]] = defaultdict(dict)
    for block, records in sorted(blocks.items()):
        where = setting_name(evaluator.config, block.treatment, block.template, int(block.shots))
        with atomic_write(folder / where / f"samples_{block.task}_{NO_DATE}.jsonl") as file:
            for raw in records:
                line = evaluator.logged(block, raw)
                file.write(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n")
        setting = (block.treatment, block.template, int(block.shots))
        grouped[setting][block.task] = samples_in(records)
    for (treatment, template, shots), tasks in sorted(grouped.items()):
        record = results_record(tasks, by_id[treatment], template, shots, evaluator.config, model_id)
        where = setting_name(evaluator.config, treatment, template, shots)
        _write_json(folder / where / f"results_{NO_DATE}.json", record)


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    with atomic_write(path) as file:
        json.dump(record, file, indent=2, ensure_ascii=False, sort_keys=True)
        file.write("\n")
