"""Scoring 100,000 prompts × 109,440 units within a memory budget: time of each part, and the largest memory.

    python -m benchmarks.responses_memory [--prompts 100000] [--memory 4G] [--folder DIR]

The model is a narrow random Llama with as many gate, up and down units as SmolLM2-135M, so that the
responses (22 GB in float16) are what takes the memory, not the weights. They need that much disk in DIR.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from itertools import cycle, islice

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from interventions.memory import parse_memory
from interventions.planted.facts import RELATIONS, Settings
from interventions.planted.model import Planted
from interventions.responses import collect
from interventions.statistical.contrasts import make_contrasts
from interventions.statistical.methods import AVERAGE_PRECISION
from interventions.statistical.options import Options
from interventions.statistical.run import Run
from interventions.units import layout_of


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--memory", default="4G")
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    planted = Planted(Settings(subjects=2000))
    known = planted.prompts("detect", "paraphrase")
    random.Random(0).shuffle(known)
    prompts = list(islice(cycle(known), arguments.prompts))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(planted.facts.vocabulary),
        hidden_size=64,
        intermediate_size=1792,
        num_hidden_layers=30,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).eval()
    kinds = ("gate", "up", "down")
    sites = layout_of(model).sites(kinds)
    base = peak_mib()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as store:
        start = time.perf_counter()
        found = collect(
            model,
            planted.tokenizer(),
            prompts,
            sites,
            dtype="float16",
            memory=parse_memory(arguments.memory),
            store=store,
            progress=True,
        )
        read, read_peak = time.perf_counter() - start, peak_mib()
        options = Options.parse({"memory": arguments.memory}, {})
        run = Run(AVERAGE_PRECISION.statistic, found, len(RELATIONS), options, torch.device("cpu"))
        start = time.perf_counter()
        run.scores(make_contrasts(prompts, RELATIONS))
        scored = time.perf_counter() - start
    print(
        json.dumps(
            {
                "prompts": len(prompts),
                "units": layout_of(model).count(kinds),
                "concepts": len(RELATIONS),
                "threads": torch.get_num_threads(),
                "seconds_reading": round(read, 1),
                "seconds_scoring": round(scored, 1),
                "memory_budget_mib": parse_memory(arguments.memory) >> 20,
                "peak_rss_mib_before": base,
                "peak_rss_mib_reading": read_peak,
                "peak_rss_mib": peak_mib(),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
