"""Scores of the model `relbench` beside those of lm-eval's `hf`: every relation, language and embedded model.

    python -m benchmarks.parity DIR [--models smollm2-135m,gemma3-270m] [--limit 10] [--shots 5] [-o FILE]

Both get the same requests of the same lm-eval tasks, in fp32, bare and under a random `act` mask. For lm-eval's
model the mask is a forward pre-hook on every down projection, written here. Bare, ours also gets the requests
shuffled and in calls of another size. A fact whose recall differs, or a request whose greediness differs, is
listed with the smallest gap between the two best tokens over its answer, taken from a plain forward pass.

A killed run goes on where it stopped. About 100 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from interventions.apply import Intervention
from interventions.controls import random_from_histogram
from interventions.files import atomic_write
from interventions.mask import Mask
from interventions.model_id import ModelId
from interventions.units import layout_of
from relbench.harness import BuiltTask, build_tasks, samples_of
from relbench.languages import LANGUAGES
from relbench.lm import load_lm
from relbench.models import resolve
from relbench.relations import relation_names

# Share of the `act` units in the mask: large enough to change many answers, small enough to leave others.
SHARE = 0.01
HF_BATCH = 16


@contextmanager
def hooked(model: Any, mask: Mask) -> Iterator[None]:
    """Multiply the masked inputs of every down projection by 0, without any of our own machinery."""

    def silence(module: Any, inputs: Any, *, units: torch.Tensor) -> Any:
        return inputs[0].index_fill(-1, units, 0.0)

    with ExitStack() as stack:
        for site, units in mask.units.items():
            hook = partial(silence, units=torch.as_tensor(units, dtype=torch.int64))
            down = model.model.layers[site.layer].mlp.down_proj
            stack.callback(down.register_forward_pre_hook(hook).remove)
        yield


def gap(lm: HFLM, context: str, answer: str) -> float:
    """Smallest difference between the two largest logits over the positions that predict the answer."""
    own, following = lm._encode_pair(context, answer)
    with torch.inference_mode():
        logits = lm.model(torch.tensor([own + following])).logits[0, len(own) - 1 : -1].float()
    best = logits.topk(2, dim=-1).values
    return float((best[:, 0] - best[:, 1]).min())


def compare(built: BuiltTask, lm: HFLM, theirs: Sequence[Any], ours: Sequence[Any]) -> dict[str, Any]:
    """How two lists of responses to a task's requests differ."""
    flips = [
        {"answer": one.args[1], "gap": gap(lm, *one.args), "doc_id": one.doc_id}
        for one, a, b in zip(built.instances, theirs, ours, strict=True)
        if a[1] != b[1]
    ]
    recall = [
        [sample.recall for sample in samples_of(built, responses, "compared")] for responses in (theirs, ours)
    ]
    return {
        "facts": len(recall[0]),
        "recalled": sum(recall[0]),
        "recall differs": sum(a != b for a, b in zip(*recall, strict=True)),
        "requests": len(ours),
        "flips": flips,
        "difference": max(abs(a[0] - b[0]) for a, b in zip(theirs, ours, strict=True)),
    }


class Bench:
    """One embedded model, loaded twice: as lm-eval's `hf` and as `relbench`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.theirs = HFLM(str(resolve(name)), batch_size=HF_BATCH, dtype="float32", device="cpu")
        self.ours = load_lm(name, dtype="float32", device="cpu")
        layout = layout_of(self.ours.model)
        sites = dict.fromkeys(layout.sites(["act"]), 1.0)
        k = round(SHARE * layout.count(["act"]))
        self.mask = random_from_histogram(sites, k, layout, ModelId.of(self.ours.model), seed=0)

    def measure(self, built: BuiltTask, masked: bool) -> dict[str, Any]:
        """Score a task with both models; bare also with ours in another order and in smaller calls."""
        requests = list(built.instances)
        with ExitStack() as stack:
            if masked:
                stack.enter_context(hooked(self.theirs.model, self.mask))
            theirs = self.theirs.loglikelihood(requests, disable_tqdm=True)
            self.ours.interventions = (Intervention(self.mask),) if masked else ()
            ours = self.ours.loglikelihood(requests, disable_tqdm=True)
            found = compare(built, self.theirs, theirs, ours)
        if masked:
            return {**found, "order and size": None}
        order = list(range(len(requests)))
        random.Random(0).shuffle(order)
        usual, self.ours.batch_size_per_gpu = self.ours.batch_size_per_gpu, 4
        again = self.ours.loglikelihood([requests[number] for number in order], disable_tqdm=True)
        self.ours.batch_size_per_gpu = usual
        found["order and size"] = max(
            abs(ours[number][0] - response[0]) for number, response in zip(order, again, strict=True)
        )
        return found


def report(records: Sequence[dict[str, Any]]) -> list[str]:
    """The tables: a row for each model, language and condition, and the flips."""
    lines = [
        "| model | language | shots | mask | facts | recalled | recall differs | requests | greediness differs "
        "| largest difference in log probability | of order and call size |",
        "|---|---|---:|---|" + "---:|" * 7,
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in records:
        groups.setdefault((one["model"], one["language"], one["shots"], one["masked"]), []).append(one)
    for (model, language, shots, masked), own in groups.items():
        total = {
            key: sum(one[key] for one in own) for key in ("facts", "recalled", "recall differs", "requests")
        }
        worst = max(one["difference"] for one in own)
        moved = [one["order and size"] for one in own if one["order and size"] is not None]
        flips = sum(len(one["flips"]) for one in own)
        lines.append(
            f"| {model} | {language} | {shots} | {f'{SHARE:.0%} random' if masked else 'none'} | {total['facts']} "
            f"| {total['recalled']} | {total['recall differs']} | {total['requests']} | {flips} "
            f"| {worst:.1e} | {f'{max(moved):.1e}' if moved else ''} |"
        )
    flips_of = [(one, flip) for one in records for flip in one["flips"]]
    if flips_of:
        lines += [
            "",
            "| model | task | mask | document | answer | gap of the two best tokens |",
            "|---|---|---|---:|---|---:|",
        ]
        lines += [
            f"| {one['model']} | {one['task']} | {'random' if one['masked'] else 'none'} | {flip['doc_id']} "
            f"| {flip['answer'].strip()} | {flip['gap']:.1e} |"
            for one, flip in flips_of
        ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="smollm2-135m,gemma3-270m")
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    journal = arguments.folder / "parity.jsonl"
    records: list[dict[str, Any]] = []
    if journal.exists():
        records = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    done = {(one["model"], one["task"], one["shots"], one["masked"]) for one in records}
    for name in arguments.models.split(","):
        bench: Bench | None = None
        for language in arguments.languages.split(","):
            tasks = build_tasks(
                [f"relbench_{relation}_{language}" for relation in relation_names()],
                shots=arguments.shots,
                limit=arguments.limit,
            )
            for masked in (False, True):
                for built in tqdm(tasks, desc=f"{name} {language} {'masked' if masked else 'bare'}"):
                    if (name, built.name, arguments.shots, masked) in done:
                        continue
                    bench = bench or Bench(name)
                    head = {
                        "model": name,
                        "language": language,
                        "task": built.name,
                        "shots": arguments.shots,
                        "masked": masked,
                    }
                    records.append({**head, **bench.measure(built, masked)})
                    with open(journal, "a", encoding="utf-8") as file:
                        file.write(json.dumps(records[-1], ensure_ascii=False) + "\n")
    text = "\n".join(report(records)) + "\n"
    print(text)
    if arguments.out:
        with atomic_write(arguments.out) as file:
            file.write(text)


if __name__ == "__main__":
    main()
