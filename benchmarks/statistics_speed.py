"""Average precision of every unit for every concept: against a scikit-learn call each, and at full scale.

    python -m benchmarks.statistics_speed [--prompts 2500] [--concepts 12] [--units 4096]
    python -m benchmarks.statistics_speed --full [--memory 4G] [--folder DIR]

The first form times both on the same responses, of three kinds: without ties, half zeros as after a ReLU, and
float16 as kept in a store. scikit-learn is timed on as many units as fit into a few seconds. The second form
scores 835,584 units, a 7B model's, from a store on disk (4 GB), and prints the largest memory in use.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.metrics import average_precision_score

from interventions.memory import parse_memory
from interventions.statistics import average_precision
from interventions.store import DiskStore, Shape, blocks
from interventions.units import Site


def responses(kind: str, prompts: int, units: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(prompts, units, generator=generator)
    if kind == "half zeros":
        return values.relu()
    return values.half() if kind == "float16" else values


def compare(prompts: int, concepts: int, units: int) -> list[dict[str, object]]:
    labels = torch.randint(0, concepts, (prompts,), generator=torch.Generator().manual_seed(1))
    truth = np.stack([labels.numpy() == concept for concept in range(concepts)])
    rows = []
    for kind in ("no ties", "half zeros", "float16"):
        values = responses(kind, prompts, units)
        average_precision(values[:, :64], labels, concepts)
        start = time.perf_counter()
        ours = average_precision(values, labels, concepts).numpy()
        own_time = (time.perf_counter() - start) / units
        calls, difference, start = 0, 0.0, time.perf_counter()
        for unit in range(units):
            column = values[:, unit].numpy()
            for concept in range(concepts):
                exact = average_precision_score(truth[concept], column)
                difference = max(difference, abs(float(ours[concept, unit]) - exact))
                calls += 1
            if time.perf_counter() - start > 5:
                break
        their_time = (time.perf_counter() - start) / calls * concepts
        rows.append(
            {
                "responses": kind,
                "ours_us_per_unit": round(own_time * 1e6, 1),
                "scikit_learn_us_per_unit": round(their_time * 1e6, 1),
                "times_faster": round(their_time / own_time),
                "largest_difference": difference,
                "seconds_for_835584_units": round(own_time * 835_584, 1),
            }
        )
    return rows


def full(memory: int, folder: str | None, prompts: int, concepts: int) -> dict[str, object]:
    """Score every FFN unit of a 7B model from a store that is written first."""
    sites = tuple(Site(layer, kind) for layer in range(32) for kind in ("gate", "up", "down"))
    units = tuple(4096 if site.kind == "down" else 11_008 for site in sites)
    rows = 100
    shape = Shape(sites, units, (rows,) * (prompts // rows), "float16")
    labels = torch.randint(0, concepts, (shape.n_rows,), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        store = DiskStore(Path(name) / "store", shape, {"of": "random numbers"})
        for batch in range(len(shape.batches)):
            block = responses("float16", rows, sum(units), seed=batch).numpy()
            store.write(batch, np.split(block, np.cumsum(units)[:-1], axis=1))
        del block
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        for _, _, block in blocks(store, memory // 4):
            average_precision(torch.from_numpy(block), labels, concepts)
        seconds = time.perf_counter() - start
    return {
        "units": sum(units),
        "prompts": shape.n_rows,
        "concepts": concepts,
        "seconds": round(seconds, 1),
        "memory_budget_mib": memory >> 20,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "peak_rss_before_scoring_mib": before >> 10,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=2500)
    parser.add_argument("--concepts", type=int, default=12)
    parser.add_argument("--units", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--memory", default="4G")
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": arguments.threads,
        "numpy": np.__version__,
        "torch": torch.__version__,
        "scikit_learn": sklearn.__version__,
    }
    if arguments.full:
        memory = parse_memory(arguments.memory)
        result: object = full(memory, arguments.folder, arguments.prompts, arguments.concepts)
    else:
        result = compare(arguments.prompts, arguments.concepts, arguments.units)
    print(json.dumps({"machine": machine, "result": result}, indent=1))


if __name__ == "__main__":
    main()
