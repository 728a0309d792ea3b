"""Speed of the exact top-K log-probability increase, against the vectorised evaluation of every unit.

    python benchmarks/attribution_speed.py [--model smollm2-135m] [--k 300] [--prompts 16]

Both start from tokens: forward pass, residual stream and scores of all `act` units of the model, one answer
token. The full evaluation is what a careful user would write: the logits of `x + m v` for blocks of units,
log-softmax, less the log probability at x. The pruned search returns the same units with the same values.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from interventions.attribution import importance
from interventions.attribution.lens import Lens, lens_of
from interventions.attribution.methods import LOG_PROBABILITY_INCREASE
from interventions.attribution.readouts import Readouts
from interventions.attribution.stream import Write, read_stream, writes_of
from interventions.prompts import Prompt
from relbench.models import resolve

FACTS = (
    ("The capital of Japan is", " Tokyo"),
    ("The capital of Italy is", " Rome"),
    ("The capital of Egypt is", " Cairo"),
    ("The official language of Brazil is", " Portuguese"),
    ("The official language of Austria is", " German"),
    ("The country that is home to the Eiffel Tower is", " France"),
    ("The country that is home to the Colosseum is", " Italy"),
    ("The usual color of a ripe banana is", " yellow"),
)


class Timed(NamedTuple):
    """Seconds of each repetition and the last result."""

    seconds: list[float]
    result: object


def timed(function: Callable[[], object], repeats: int) -> Timed:
    """Time `function`, after one call that is not counted when there is more than one."""
    seconds, result = [], None
    for repeat in range(repeats + (repeats > 1)):
        start = time.perf_counter()
        result = function()
        if repeat or repeats == 1:
            seconds.append(time.perf_counter() - start)
    return Timed(seconds, result)


def full_evaluation(
    model: PreTrainedModel, lens: Lens, writes: list[Write], ids: Tensor, target: int
) -> Tensor:
    """Log-probability increase of every unit, block by block: `[L, units]`."""
    last = Readouts(*(torch.tensor([value]) for value in (0, ids.shape[1] - 1, target)))
    stream = read_stream(model, ids, last)
    scale = lens.scale(stream.final)
    states = stream.before("act")[:, 0]
    found = []
    for layer, write in enumerate(writes):
        before = lens.logits(states[layer][None], scale).log_softmax(-1)[0, target]
        added = stream.coefficients("act", layer, lens.dtype)[0][:, None] * write.vectors
        values = [
            lens.logits(states[layer] + block, scale.expand(len(block))).log_softmax(-1)[:, target] - before
            for block in added.split(512)
        ]
        found.append(torch.cat(values))
    return torch.stack(found)


def pruned(
    model: PreTrainedModel, lens: Lens, writes: list[Write], ids: Tensor, readouts: Readouts, k: int
) -> list[importance.Top]:
    """The exact top k at each readout."""
    stream = read_stream(model, ids, readouts)
    return importance.top(lens, stream, writes, "act", readouts.targets, k)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--k", type=int, default=300)
    parser.add_argument("--full", type=int, default=1, help="prompts that are evaluated in full")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = resolve(options.model)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    lens, writes = lens_of(model), writes_of(model, "act")

    encoded = [tokenizer.encode(text) for text, _ in FACTS]
    targets = [
        tokenizer.encode(text + answer)[len(ids)] for (text, answer), ids in zip(FACTS, encoded, strict=True)
    ]
    width = max(map(len, encoded))
    batch = torch.tensor([ids + [0] * (width - len(ids)) for ids in encoded])
    positions = torch.tensor([len(ids) - 1 for ids in encoded])
    everyone = Readouts(torch.arange(len(encoded)), positions, torch.tensor(targets))

    def one(index: int) -> tuple[Tensor, Readouts]:
        place = (0, len(encoded[index]) - 1, targets[index])
        return torch.tensor([encoded[index]]), Readouts(*(torch.tensor([value]) for value in place))

    full = [
        timed(lambda i=i: full_evaluation(model, lens, writes, one(i)[0], targets[i]), 1)
        for i in range(options.full)
    ]
    single = [
        timed(lambda i=i: pruned(model, lens, writes, *one(i), options.k), options.repeats)
        for i in range(len(encoded))
    ]
    together = timed(lambda: pruned(model, lens, writes, batch, everyone, options.k), options.repeats)
    prompts = [
        Prompt(text, answer, (answer,), "facts", str(i), str(i), f"answer:{answer}")
        for i, (text, answer) in enumerate(FACTS)
    ]
    first_order = timed(
        lambda: LOG_PROBABILITY_INCREASE.score(
            model,
            tokenizer,
            prompts,
            ("facts",),
            kinds=("act",),
            options={"contrast": "none", "tokens": "first"},
        ),
        options.repeats,
    )
    worst, same, rounding = 0.0, True, 0.0
    for index, run in enumerate(full):
        # The stable form of every unit is the reference; the plain form shows what its rounding costs.
        ids, place = one(index)
        stream = read_stream(model, ids, place)
        values = importance.exact(lens, stream, writes, "act", place.targets)[:, 0].flatten()
        rounding = max(rounding, float((run.result.flatten() - values).abs().max()))  # type: ignore[attr-defined]
        top: importance.Top = single[index].result[0]  # type: ignore[index]
        best = values.topk(options.k)
        units = top.layers * len(writes[0].vectors) + top.units
        worst = max(worst, float((values[units] - top.values).abs().max()))
        # Where sets differ, the values must be ties.
        same &= float((values[units].sort(descending=True).values - best.values).abs().max()) < 1e-6
    seconds_full = statistics.median(run.seconds[0] for run in full)
    seconds_pruned = statistics.median(statistics.median(run.seconds) for run in single)
    seconds_batch = statistics.median(together.seconds) / len(encoded)
    found = {
        "model": options.model,
        "threads": torch.get_num_threads(),
        "units": len(writes) * len(writes[0].vectors),
        "k": options.k,
        "full_seconds": seconds_full,
        "pruned_seconds": seconds_pruned,
        "pruned_seconds_per_prompt_in_batch": seconds_batch,
        "first_order_seconds_per_prompt_in_batch": statistics.median(first_order.seconds) / len(encoded),
        "speedup": seconds_full / seconds_pruned,
        "speedup_in_batch": seconds_full / seconds_batch,
        "evaluated": [run.result[0].evaluated for run in single],  # type: ignore[index]
        "same_top": same,
        "largest_difference": worst,
        "largest_rounding_error_of_plain_form": rounding,
    }
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
