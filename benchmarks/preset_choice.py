"""Which statistical settings find the most selective units: the measurement behind the preset `default`.

    python -m benchmarks.preset_choice DIR [-o benchmarks/preset_choice.md]

Only facts of the splits `tune` and (zero-shot, where no example is shown) `shots` are evaluated, never `eval`;
copyable ones and those that the model does not recall are left out. Loss is the share of them that a mask turns
wrong; selectivity is the loss on the masked relation less the mean loss on others. The recalled relations are
split into two folds: units are found with the prompts of one fold, and off-target loss is measured on the other,
so that no off-target relation was a negative.

Round 1 compares statistics, poolings and templates, zero-shot; round 2 varies the prompts of the best; round 3
evaluates the best three 5-shot as well, beside the paper's settings, attribution, and random masks from the same
layers and deciles of mean |m|·‖v‖. The best is the one with the largest mean over both budgets and both forms.

A killed run goes on where it stopped. About 25 minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tqdm import tqdm

from interventions.apply import Intervention
from interventions.controls import contribution, random_like
from interventions.errors import UserError
from interventions.files import atomic_write
from interventions.masks import Mask, budget, top_k
from interventions.prompts import Prompt
from interventions.removed import value_norms
from interventions.scores import Scores
from relbench.lm import load_lm
from relbench.probes import probes
from relbench.prompts import concept, prompts
from relbench.relations import relation_names
from relbench.scoring import ScoringPlan, score

FRACTIONS = (0.002, 0.01)
# Shots of the evaluated prompts -> splits that they come from.
FORMS: Mapping[int, tuple[str, ...]] = {0: ("tune", "shots"), 5: ("tune",)}
LANGUAGE, TEMPLATE = "en", "completion"
# Recalled facts without which a relation is no target and no off-target.
LEAST = 4
# Scored prompts a relation.
LIMIT = 60
# Off-target facts a relation.
OFF_TARGET = 4
DRAWS = 2000


@dataclass(frozen=True)
class Candidate:
    """A scoring method with its settings."""

    method: str
    template: str = "completion"
    shots: int = 0
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def id(self) -> str:
        settings = [f"{key}={value}" for key, value in self.options]
        shots = f"{self.shots}-shot" if self.shots else "zero-shot"
        return ", ".join([self.method, f"{shots} {self.template}", *settings])


FIRST = (
    *(
        Candidate(statistic, template, 0, (("pooling", pooling),))
        for statistic in ("average-precision", "mean-difference", "cohens-d")
        for pooling in ("mean", "last")
        for template in ("question", "completion")
    ),
    Candidate("lape", "question"),
    Candidate("lape", "completion"),
)
PAPER = Candidate("average-precision", "question", 0, (("pooling", "mean"),))
ATTRIBUTION = Candidate("log-probability-increase", "completion")


def variants(best: Candidate) -> list[Candidate]:
    """Other prompt sets for the best candidate of the first round."""
    changes: list[tuple[str, Any]] = [
        ("balance", "length"),
        ("balance", "answers"),
        ("balance", "both"),
        ("correct_only", True),
        ("negatives_per_positive", 4),
    ]
    if best.method == "lape":
        # It compares all concepts with one another: nothing can be drawn.
        changes = [("correct_only", True)]
    varied = [replace(best, options=(*best.options, change)) for change in changes]
    return [*varied, replace(best, template=f"{best.template},paraphrase"), replace(best, shots=5)]


@dataclass(frozen=True)
class Measured:
    """What a mask does to one target.

    Attributes:
        target: [facts] 1 where a recalled fact of the target becomes wrong.
        off: The same for each off-target relation.
    """

    target: np.ndarray
    off: tuple[np.ndarray, ...]

    @property
    def losses(self) -> tuple[float, float]:
        return float(self.target.mean()), float(np.mean([flips.mean() for flips in self.off]))

    def drawn(self, random: np.random.Generator) -> float:
        """Selectivity on facts drawn with replacement."""
        again = [random.choice(flips, len(flips)).mean() for flips in (self.target, *self.off)]
        return float(again[0] - np.mean(again[1:]))


class Bench:
    """The model, the facts, and a journal of every mask that was evaluated."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.lm = load_lm(model)
        self.journal_path = folder / "journal.jsonl"
        self.journal: dict[str, list[int]] = {}
        if self.journal_path.exists():
            for line in self.journal_path.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):
                    self.journal |= json.loads(line)
        self.bar = tqdm(desc="masks", unit="mask")

    def facts(self, shots: int) -> list[Prompt]:
        """The facts of one form that are recalled without a mask, relation by relation."""
        found = []
        for relation in relation_names():
            for split in FORMS[shots]:
                given = prompts([relation], [LANGUAGE], split, TEMPLATE, shots=shots)
                fresh = [not probe.copyable for probe in probes(relation, LANGUAGE, split, TEMPLATE)]
                found += [prompt for prompt, keep in zip(given, fresh, strict=True) if keep]
        right = self.right(f"baseline/{shots}", found, ())
        return [prompt for prompt, recalled in zip(found, right, strict=True) if recalled]

    @cached_property
    def recalled(self) -> dict[int, dict[str, list[Prompt]]]:
        """Shots -> relation -> recalled facts."""
        forms: dict[int, dict[str, list[Prompt]]] = {}
        for shots in FORMS:
            by_relation: dict[str, list[Prompt]] = {}
            for prompt in self.facts(shots):
                by_relation.setdefault(prompt.concept.partition("@")[0], []).append(prompt)
            forms[shots] = {name: facts for name, facts in by_relation.items() if len(facts) >= LEAST}
        return forms

    @cached_property
    def folds(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Relations that are recalled zero-shot, in two halves."""
        names = tuple(self.recalled[0])
        return names[::2], names[1::2]

    def right(self, key: str, asked: Sequence[Prompt], interventions: Sequence[Intervention]) -> list[int]:
        """Whether the greedy continuation of each prompt is an accepted answer; from the journal if there."""
        if key not in self.journal:
            requests, owner = [], []
            for number, prompt in enumerate(asked):
                for answer in prompt.accepted:
                    requests.append(SimpleNamespace(args=(prompt.text, answer)))
                    owner.append(number)
            self.lm.interventions = tuple(interventions)
            scores = self.lm.score_plan(self.lm.plan(self.lm.token_requests(requests)))
            self.lm.interventions = ()
            found = [0] * len(asked)
            for number, (_, greedy) in zip(owner, scores, strict=True):
                found[number] |= int(greedy)
            self.journal[key] = found
            with open(self.journal_path, "a", encoding="utf-8") as file:
                file.write(json.dumps({key: found}) + "\n")
        self.bar.update(1)
        return self.journal[key]

    def scores(self, candidate: Candidate, fold: int) -> Scores:
        """The candidate's scores of a fold's relations, from the folder when they are there."""
        path = self.folder / "scores" / f"{candidate.id}.{fold}.safetensors"
        if path.exists():
            return Scores.load(path)
        options = dict(candidate.options)
        if candidate != ATTRIBUTION:
            options["store"] = str(self.folder / "responses")
        plan = ScoringPlan(
            candidate.method,
            self.folds[fold],
            template=candidate.template,
            shots=candidate.shots,
            limit=LIMIT,
            options=options,
        )
        made = score(plan, self.lm.model, self.lm.tokenizer, self.lm.model_id)
        made.save(path)
        return made

    def measure(
        self, candidate: Candidate, shots: int, fraction: float, change: Callable[[Mask, Scores], Mask] | None
    ) -> dict[str, Measured]:
        """Evaluate the candidate's masks of one size, or what `change` makes of each.

        Returns:
            Target relation -> what its mask does.
        """
        found = {}
        name = candidate.id if change is None else f"random like {candidate.id}"
        facts = self.recalled[shots]
        for fold, members in enumerate(self.folds):
            others = [relation for relation in self.folds[1 - fold] if relation in facts]
            scores = self.scores(candidate, fold)
            for relation in (relation for relation in members if relation in facts):
                groups = [facts[relation], *(facts[other][:OFF_TARGET] for other in others)]
                key = f"{name}/{relation}/{fraction}/{shots}"
                interventions: tuple[Intervention, ...] = ()
                if key not in self.journal:
                    k = budget(self.lm.model_id.layout, fraction)
                    mask = top_k(scores, concept(relation, LANGUAGE), k)
                    interventions = (Intervention(mask if change is None else change(mask, scores)),)
                right = self.right(key, [prompt for group in groups for prompt in group], interventions)
                bounds = np.cumsum([len(group) for group in groups])[:-1]
                target, *off = np.split(1 - np.array(right), bounds)
                found[relation] = Measured(target, tuple(off))
        return found

    def results(
        self, candidate: Candidate, shots: int, change: Callable[[Mask, Scores], Mask] | None = None
    ) -> dict[float, dict[str, Measured]]:
        """Fraction -> target relation -> what its mask does."""
        return {fraction: self.measure(candidate, shots, fraction, change) for fraction in FRACTIONS}


Results = Mapping[float, Mapping[str, Measured]]


def selectivity(*results: Results) -> float:
    """Mean over forms, budgets and relations of target loss less off-target loss."""
    means = [
        np.mean([np.subtract(*one.losses) for one in by_relation.values()])
        for result in results
        for by_relation in result.values()
    ]
    return float(np.mean(means))


def interval(by_relation: Mapping[str, Measured], less: Mapping[str, Measured] | None = None) -> list[float]:
    """95 % bootstrap interval, over relations and facts, of mean selectivity, or of its excess over `less`."""
    random = np.random.default_rng(0)
    names = list(by_relation)
    draws = []
    for _ in range(DRAWS):
        chosen = random.choice(names, len(names))
        own = np.mean([by_relation[name].drawn(random) for name in chosen])
        other = np.mean([less[name].drawn(random) for name in chosen]) if less is not None else 0.0
        draws.append(own - other)
    return [float(bound) for bound in np.percentile(draws, [2.5, 97.5])]


def row(name: str, result: Results) -> str:
    """A row of the table: for each budget target loss, off-target loss and selectivity."""
    cells = [name]
    for by_relation in result.values():
        target, off = np.mean([one.losses for one in by_relation.values()], axis=0)
        low, high = interval(by_relation)
        cells += [f"{target:.2f}", f"{off:.2f}", f"{target - off:+.2f} [{low:+.2f}, {high:+.2f}]"]
    return "| " + " | ".join(cells) + " |"


def table(rows: Sequence[str]) -> list[str]:
    sizes = [f"{fraction:.1%}" for fraction in FRACTIONS]
    head = "".join(f" | {size}: target loss | off-target loss | selectivity" for size in sizes)
    return [f"| settings{head} |", "|---" + "|---:" * 3 * len(sizes) + "|", *rows, ""]


def matched(mask: Mask, scores: Scores, norms: Mapping[Any, Any]) -> Mask:
    """A random mask from the same layers and deciles of mean |m|·‖v‖, none of whose units is the mask's."""
    name = str(mask.provenance["concept"])
    return random_like(mask, seed=0, disjoint=True, contribution=contribution(scores, name, norms=norms))


def run(bench: Bench) -> list[str]:
    """Every round; the lines of the report."""
    first: dict[Candidate, Results] = {}
    failed: list[str] = []

    def attempt(candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            try:
                first[candidate] = bench.results(candidate, 0)
            except UserError as error:
                failed.append(f"- {candidate.id}: {error}")

    attempt(FIRST)
    best = max(first, key=lambda one: selectivity(first[one]))
    attempt(variants(best))
    ranked = sorted(first, key=lambda one: -selectivity(first[one]))
    finalists = ranked[:3]
    again = {one: bench.results(one, 5) for one in dict.fromkeys([*finalists, best, PAPER])}
    chosen = max(again, key=lambda one: selectivity(first[one], again[one]))
    norms = value_norms(bench.lm.model)
    control = {
        shots: bench.results(chosen, shots, lambda mask, s: matched(mask, s, norms)) for shots in FORMS
    }
    reference = {shots: bench.results(ATTRIBUTION, shots) for shots in FORMS}

    zero, five = bench.recalled[0], bench.recalled[5]
    lines = [
        "# The choice of the preset `default`",
        "",
        f"Written by `python -m benchmarks.preset_choice`, on {bench.lm.model_id.describe()}. Relations and "
        "recalled facts, zero-shot: "
        + ", ".join(f"{name} {len(facts)}" for name, facts in zero.items())
        + "; 5-shot: "
        + ", ".join(f"{name} {len(facts)}" for name, facts in five.items() if name in zero)
        + ". Brackets: 95 % bootstrap intervals over relations and facts. Target loss, off-target loss and "
        "selectivity are means over relations.",
        "",
        "## Zero-shot completion",
        "",
        *table([row(one.id, first[one]) for one in ranked]),
        *(["Not possible:", "", *failed, ""] if failed else []),
        "## 5-shot completion",
        "",
        *table([row(one.id, again[one]) for one in sorted(again, key=lambda one: -selectivity(again[one]))]),
        f"## Chosen: {chosen.id}",
        "",
        *table(
            [
                line
                for shots in FORMS
                for line in (
                    row(f"chosen, {shots}-shot", (first if shots == 0 else again)[chosen]),
                    row(f"random masks, {shots}-shot", control[shots]),
                    row(f"{ATTRIBUTION.id}, {shots}-shot", reference[shots]),
                )
            ]
        ),
    ]
    runner = max((one for one in again if one != chosen), key=lambda one: selectivity(first[one], again[one]))
    for shots, found in ((0, first), (5, again)):
        for fraction in FRACTIONS:
            low, high = interval(found[chosen][fraction], found[runner][fraction])
            over = selectivity({fraction: found[chosen][fraction]}) - selectivity(
                {fraction: found[runner][fraction]}
            )
            lines.append(
                f"- over the runner-up ({runner.id}), {shots}-shot, {fraction:.1%}: {over:+.2f} "
                f"[{low:+.2f}, {high:+.2f}]"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("-o", "--out", default="benchmarks/preset_choice.md")
    arguments = parser.parse_args()
    bench = Bench(arguments.folder, arguments.model)
    lines = run(bench)
    bench.bar.close()
    with atomic_write(arguments.out) as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
