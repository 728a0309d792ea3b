"""How long an evaluation takes, beside lm-eval's `hf` model and a plain matrix product.

    python -m benchmarks.evaluation_speed SECTION… [--model smollm2-135m] [--threads 1] [--limit N]

Sections:

- `commands`: `lm_eval run --model hf`, at the batch size that is fastest on a sample, and `relbench lm-eval run
  --model relbench` before and after it, as whole processes on `relbench_paper12_en`, 5-shot; peak memory of each.
- `grid`: masks of 12 relations × 4 sizes on 24 relations in one `relbench sweep`, against a loop of lm-eval runs,
  extrapolated from three of them. 10 facts a relation unless --limit says otherwise.
- `throughput`: operations a second of our evaluation over those of the model's own weight products, each with as
  many rows as a forward call of ours has tokens. Attention and everything between is in the time only.
- `precision`: the same tasks in bfloat16, and which recalls differ.
- `growth`: seconds and tokens over the number of masks, relations and few-shot examples.

Everything is fp32 on the processor. Prints a JSON object a section.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import yaml

from interventions.apply import Intervention
from interventions.controls import random_from_histogram
from interventions.scores import Scores
from interventions.units import UnitLayout
from relbench.harness import BuiltTask, build_tasks, samples_of
from relbench.lm import RelbenchLM, load_lm
from relbench.models import resolve
from relbench.paths import tasks_dir
from relbench.prompts import concept
from relbench.relations import relation_names

T = TypeVar("T")

GROUP = "relbench_paper12_en"
HF_BATCHES = (1, 4, 8, 16, 32)
GRID_CONCEPTS, GRID_SIZES, GRID_LIMIT = 12, (0.0003, 0.001, 0.003, 0.01), 10
HF_RUNS = 3


class Process(NamedTuple):
    """A command that ran: seconds on the wall and of the processor, and the most memory it held."""

    seconds: float
    processor: float
    peak_mib: int


def command(arguments: Sequence[str], threads: int) -> Process:
    """Run a command to its end.

    Raises:
        SystemExit: It failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(arguments)}")
    return Process(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10)


def lm_eval(model: str, tasks: str, out: Path, batch_size: int, limit: int | None) -> list[str]:
    """The command line of an unmodified lm-eval on its `hf` model."""
    return [
        *("-m", "lm_eval", "run", "--model", "hf", "--tasks", tasks, "--include_path", str(tasks_dir())),
        *("--model_args", f"pretrained={resolve(model)},dtype=float32", "--device", "cpu"),
        *("--num_fewshot", "5", "--batch_size", str(batch_size), "--output_path", str(out)),
        *(["--limit", str(limit)] if limit else []),
    ]


def ours(model: str, tasks: str, out: Path, limit: int | None) -> list[str]:
    """The same run on the model `relbench`."""
    return [
        *("-m", "relbench", "lm-eval", "run", "--model", "relbench", "--tasks", tasks),
        *("--model_args", f"pretrained={resolve(model)},dtype=float32", "--device", "cpu"),
        *("--num_fewshot", "5", "--batch_size", "32", "--output_path", str(out)),
        *(["--limit", str(limit)] if limit else []),
    ]


def results(folder: Path) -> dict[str, Any]:
    """The newest results file under a folder."""
    newest = max(folder.rglob("results_*.json"), key=lambda path: path.name)
    return dict(json.loads(newest.read_text(encoding="utf-8")))


def recalls(folder: Path) -> dict[str, float]:
    """Task → recall."""
    return {
        task: found["recall,none"]
        for task, found in results(folder)["results"].items()
        if "recall,none" in found
    }


def tasks_of(names: Sequence[str], shots: int, limit: int | None) -> list[BuiltTask]:
    return build_tasks(names, shots=shots, limit=limit)


def best_batch(model: str, threads: int) -> tuple[int, dict[int, float]]:
    """lm-eval's fastest batch size on every twelfth request, and the seconds of each."""
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(threads)
    instances = [one for task in tasks_of([GROUP], 5, 12) for one in task.instances][::2]
    taken = {}
    for size in HF_BATCHES:
        lm = HFLM(str(resolve(model)), batch_size=size, dtype="float32", device="cpu")
        lm.loglikelihood(instances[:size], disable_tqdm=True)
        began = time.perf_counter()
        lm.loglikelihood(instances, disable_tqdm=True)
        taken[size] = time.perf_counter() - began
    return min(taken, key=lambda size: taken[size]), taken


def apart(call: Callable[..., T], *arguments: Any) -> T:
    """Call in a process of its own: memory of this one would count as that of the commands that it starts."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def commands(model: str, threads: int, limit: int | None) -> dict[str, Any]:
    batch, sample = apart(best_batch, model, threads)
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for number, line in enumerate(
            [
                ours(model, GROUP, Path(folder) / "0", limit),
                lm_eval(model, GROUP, Path(folder) / "1", batch, limit),
                ours(model, GROUP, Path(folder) / "2", limit),
            ]
        ):
            process = command(line, threads)
            evaluation = float(results(Path(folder) / str(number))["total_evaluation_time_seconds"])
            runs.append({**process._asdict(), "lm-eval's own clock": evaluation})
        same = recalls(Path(folder) / "0") == recalls(Path(folder) / "1") == recalls(Path(folder) / "2")
    mean = {key: (runs[0][key] + runs[2][key]) / 2 for key in runs[0]}
    return {
        "lm_eval batch size": batch,
        "seconds of the sample by batch size": sample,
        "lm_eval hf": runs[1],
        "relbench": [runs[0], runs[2]],
        "times faster": {key: runs[1][key] / mean[key] for key in mean if key != "peak_mib"},
        "same recall of every task": same,
    }


def save_random_scores(model: str, names: Sequence[str], path: Path) -> None:
    lm = load_lm(model)
    layout = lm.model_id.layout
    assert isinstance(layout, UnitLayout)
    generator = np.random.default_rng(0)
    values = {
        site: generator.random((len(names), layout.size(site.kind)), np.float32)
        for site in layout.sites(["act"])
    }
    Scores(values, tuple(names), lm.model_id, "random").save(path)


def grid(model: str, threads: int, limit: int | None) -> dict[str, Any]:
    limit = limit or GRID_LIMIT
    batch, _ = apart(best_batch, model, threads)
    masked = relation_names()[:GRID_CONCEPTS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apart(save_random_scores, model, [concept(one, "en") for one in masked], folder / "scores")
        config = {
            "model": str(resolve(model)),
            "relations": "all",
            "limit": limit,
            "scores": [
                {"id": "units", "path": str(folder / "scores"), "concepts": [f"{one}@en" for one in masked]}
            ],
            "fractions": list(GRID_SIZES),
            "controls": {"seeds": 0},
        }
        (folder / "grid.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        theirs = [
            command(lm_eval(model, "relbench_en", folder / f"hf{number}", batch, limit), threads)
            for number in range(HF_RUNS)
        ]
        sweep = ["-m", "relbench", "sweep", str(folder / "grid.yaml"), "-o", str(folder / "sweep")]
        own = command(sweep, threads)
    runs = 1 + GRID_CONCEPTS * len(GRID_SIZES)
    loop = statistics.median(one.seconds for one in theirs) * runs
    return {
        "facts a relation": limit,
        "lm_eval hf, a run": [one._asdict() for one in theirs],
        "runs of the loop": runs,
        "the loop, extrapolated (s)": loop,
        "sweep": own._asdict(),
        "times faster": loop / own.seconds,
    }


def scored(lm: RelbenchLM, tasks: Sequence[BuiltTask]) -> tuple[float, int, list[int]]:
    """Seconds, tokens, and the recall of every fact, task by task."""
    plans = [(task, lm.plan(lm.token_requests(task.instances))) for task in tasks]
    began = time.perf_counter()
    scores = [lm.score_plan(plan) for _, plan in plans]
    seconds = time.perf_counter() - began
    recall = [
        sample.recall
        for (task, _), found in zip(plans, scores, strict=True)
        for sample in samples_of(task, found, "measured")
    ]
    return seconds, sum(plan.n_tokens for _, plan in plans), recall


def throughput(model: str, threads: int, limit: int | None) -> dict[str, Any]:
    lm = load_lm(model)
    tasks = tasks_of([GROUP], 5, limit)
    plans = [lm.plan(lm.token_requests(task.instances)) for task in tasks]
    tokens = sum(plan.n_tokens for plan in plans)
    predicting = sum(
        len({slot for read in pack.reads for slot in read.slots})
        for plan in plans
        for stem in plan.stems
        for pack in stem.packs
    )
    embedding = lm.model.get_output_embeddings().weight
    blocks = [
        module.weight
        for module in lm.model.modules()
        if isinstance(module, torch.nn.Linear) and module.weight is not embedding
    ]
    operations = 2 * tokens * sum(weight.numel() for weight in blocks) + 2 * predicting * embedding.numel()

    def product(weights: Sequence[torch.Tensor], rows: int) -> float:
        """Operations a second of products with every weight in turn."""
        inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in weights}
        best = []
        with torch.inference_mode():
            for _ in range(5):
                began = time.perf_counter()
                for weight in weights:
                    torch.nn.functional.linear(inputs[weight.shape[1]], weight)
                best.append(time.perf_counter() - began)
        return 2 * rows * sum(weight.numel() for weight in weights) / statistics.median(best)

    rounds = []
    for _ in range(3):
        reference = product(blocks, lm.call_tokens)
        began = time.perf_counter()
        for plan in plans:
            lm.score_plan(plan)
        seconds = time.perf_counter() - began
        rounds.append((operations / seconds, reference))
    return {
        "tokens": tokens,
        "positions unembedded": predicting,
        "operations": operations,
        "ours (G operations/s)": [own / 1e9 for own, _ in rounds],
        "plain products (G operations/s)": [plain / 1e9 for _, plain in rounds],
        "share": statistics.median(own / plain for own, plain in rounds),
    }


def precision(model: str, threads: int, limit: int | None) -> dict[str, Any]:
    tasks = tasks_of([GROUP], 5, limit)
    found = {dtype: scored(load_lm(model, dtype=dtype), tasks) for dtype in ("float32", "bfloat16")}
    full, half = found["float32"], found["bfloat16"]
    return {
        "facts": len(full[2]),
        "recalled in float32": sum(full[2]),
        "recalled in bfloat16": sum(half[2]),
        "recall differs": sum(a != b for a, b in zip(full[2], half[2], strict=True)),
        "seconds": {dtype: one[0] for dtype, one in found.items()},
    }


def growth(model: str, threads: int, limit: int | None) -> dict[str, Any]:
    lm = load_lm(model)
    layout = lm.model_id.layout
    assert isinstance(layout, UnitLayout)
    names = [f"relbench_{relation}_en" for relation in relation_names()]
    few = tasks_of(names[:4], 5, limit or 20)
    scored(lm, few[:1])
    masks: dict[int, float] = {}
    for count in (1, 2, 4, 8):
        taken = 0.0
        for seed in range(count):
            sites = dict.fromkeys(layout.sites(["act"]), 1.0)
            mask = random_from_histogram(sites, 461, layout, lm.model_id, seed=seed)
            lm.interventions = (Intervention(mask),)
            taken += scored(lm, few)[0]
        masks[count] = taken
    lm.interventions = ()
    relations, shots = {}, {}
    for count in (3, 6, 12, 24):
        seconds, tokens, _ = scored(lm, tasks_of(names[:count], 5, limit or 20))
        relations[count] = {"seconds": seconds, "tokens": tokens}
    for count in (0, 1, 2, 5, 8):
        tasks = tasks_of(names[:12], count, limit or 20)
        seconds, tokens, _ = scored(lm, tasks)
        unshared = sum(len(sum(one, ())) for task in tasks for one in lm.token_requests(task.instances))
        shots[count] = {"seconds": seconds, "tokens": tokens, "tokens of unshared requests": unshared}
    return {"seconds by masks": masks, "by relations": relations, "by shots, 12 relations": shots}


SECTIONS: Mapping[str, Callable[[str, int, int | None], dict[str, Any]]] = {
    "commands": commands,
    "grid": grid,
    "throughput": throughput,
    "precision": precision,
    "growth": growth,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sections", nargs="+", choices=list(SECTIONS))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for section in arguments.sections:
        found = SECTIONS[section](arguments.model, arguments.threads, arguments.limit)
        print(json.dumps({"section": section, **found}, indent=1), flush=True)


if __name__ == "__main__":
    main()
