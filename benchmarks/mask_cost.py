"""What a mask costs: at run time (bare model, folded, hooked), to put in and take out, and to build.

    python -m benchmarks.mask_cost [--model NAME] [--batch 16] [--tokens 96] [--rounds 9] [--threads 1]

The variants run in turn within each round, and each round's times are compared with the bare model's of the
same round. Both wall time and processor time are given: on a machine that does other work at the same time
only the second means much, and only with one thread. The bare model runs twice a round: what differs between
the two is the noise.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from interventions.apply import Intervention, intervene
from interventions.controls import random_from_histogram
from interventions.mask import Mask
from interventions.model_id import ModelId, hash_layout
from interventions.scores import Scores
from interventions.selection import top_k
from interventions.units import UnitLayout, layout_of
from relbench.models import resolve


def seconds(call: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Cost(NamedTuple):
    """Seconds of a call on the wall and on the processor (all threads together)."""

    wall: float
    processor: float


def cost(call: Callable[[], object]) -> Cost:
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


def run_time(model: torch.nn.Module, mask: Mask, *, batch: int, tokens: int, rounds: int) -> dict[str, float]:
    """Median cost of a forward pass of the bare model, and median overhead of each variant over it."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 1000, (batch, tokens), generator=generator)
    zero = Intervention(mask)

    def forward() -> None:
        with torch.inference_mode():
            model(ids, logits_to_keep=1)

    def under(how: str) -> Cost:
        with intervene(model, zero, how=how):  # type: ignore[arg-type]
            return cost(forward)

    variants: dict[str, Callable[[], Cost]] = {
        "bare": lambda: cost(forward),
        "bare again": lambda: cost(forward),
        "folded": lambda: under("fold"),
        "hooked": lambda: under("hook"),
    }
    forward()
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            costs[name].append(variants[name]())
        # Another order each round: whoever follows a warm cache should not always be the same.
        order = order[1:] + order[:1]
    found: dict[str, float] = {}
    for clock in Cost._fields:
        bare = [getattr(one, clock) for one in costs["bare"]]
        found[f"forward pass, bare, {clock} (s)"] = statistics.median(bare)
        for name in list(variants)[1:]:
            own = [getattr(one, clock) for one in costs[name]]
            ratios = [mine / base for mine, base in zip(own, bare, strict=True)]
            found[f"{name} over bare, {clock} (%)"] = 100 * (statistics.median(ratios) - 1)
    return found


def hook_time(model: torch.nn.Module, mask: Mask, *, batch: int, tokens: int, rounds: int) -> float:
    """Time of the hooks' own work alone, on tensors of the model's shapes."""
    from interventions.apply import Handle, _changed, _op, _resolve

    one = Intervention(mask)
    (plan,) = _resolve((one,))
    ops = [(_op(model, plan, site, units), site) for site, units in plan.units.items()]
    layout = layout_of(model)
    tensors = {site: torch.randn(batch, tokens, layout.size(site.kind)) for _, site in ops}
    handle = Handle(model)

    def work() -> None:
        with torch.inference_mode():
            for op, site in ops:
                _changed(tensors[site], [op], handle)

    work()
    return statistics.median(cost(work).processor for _ in range(rounds))


def entering(model: torch.nn.Module, mask: Mask, rounds: int) -> dict[str, float]:
    """Time to put a mask in and take it out, the check of the model's identity included."""
    one = Intervention(mask)

    def enter(how: str) -> Callable[[], None]:
        def call() -> None:
            with intervene(model, one, how=how):  # type: ignore[arg-type]
                pass

        return call

    return {
        f"in and out, {word} (s)": statistics.median(seconds(enter(how)) for _ in range(rounds))
        for how, word in (("fold", "folded"), ("hook", "hooked"))
    } | {
        "of which the model's identity (s)": statistics.median(
            seconds(lambda: ModelId.of(model)) for _ in range(rounds)
        )
    }


def building(concepts: int, k: int) -> dict[str, float]:
    """Time to make a mask of `k` of the 1.31 M gate, up and down units of a 13B model from scores."""
    kinds = ("gate", "up", "down")
    layout = UnitLayout(
        "llama",
        40,
        5120,
        13824,
        40,
        40,
        128,
        ("gate", "up", "act", "down", "q", "k", "v", "attn", "attn_out"),
    )
    generator = np.random.default_rng(0)
    values = {
        site: generator.standard_normal((concepts, layout.size(site.kind)), np.float32)
        for site in layout.sites(kinds)
    }
    names = tuple(f"relation_{number}@en" for number in range(concepts))
    identity = ModelId("llama-13b", "", hash_layout(layout), "0" * 64, layout)
    scores = Scores(values, names, identity, "random")
    found: dict[str, float] = {"units scored": layout.count(kinds), "concepts": concepts, "k": k}
    found["mask from scores, the first (hashes the scores once) (s)"] = seconds(
        lambda: top_k(scores, names[0], k)
    )
    found["mask from scores, each further one (s)"] = statistics.median(
        seconds(lambda name=name: top_k(scores, name, k))
        for name in names  # type: ignore[misc]
    )
    ties = {site: np.round(array) for site, array in values.items()}
    tied = Scores(ties, names, identity, "random")
    _ = tied.digest
    found["the same with ties everywhere (s)"] = seconds(lambda: top_k(tied, names[0], k))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores"
        found["saving the scores (s)"] = seconds(lambda: scores.save(path))
        found["loading the scores (s)"] = seconds(lambda: Scores.load(path))
        mask = top_k(scores, names[0], k)
        found["saving the mask (s)"] = seconds(lambda: mask.save(Path(folder) / "mask"))
        found["loading the mask (s)"] = seconds(lambda: Mask.load(Path(folder) / "mask"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--k", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found: dict[str, float] = building(12, arguments.k)
    model = AutoModelForCausalLM.from_pretrained(resolve(arguments.model), dtype=torch.float32).eval()
    layout = layout_of(model)
    mask = random_from_histogram(
        dict.fromkeys(layout.sites(["act"]), 1.0), arguments.k, layout, ModelId.of(model), seed=0
    )
    found |= entering(model, mask, arguments.rounds)
    shape = {"batch": arguments.batch, "tokens": arguments.tokens, "rounds": arguments.rounds}
    found |= run_time(model, mask, **shape)
    work = hook_time(model, mask, **shape)
    found["hooks' own work, all layers, processor (s)"] = work
    found["the same over a bare forward pass (%)"] = 100 * work / found["forward pass, bare, processor (s)"]
    head = {
        "model": arguments.model,
        **shape,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    print(json.dumps({**head, **found}, indent=2))


if __name__ == "__main__":
    main()
