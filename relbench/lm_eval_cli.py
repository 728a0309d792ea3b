"""lm_eval's own command line with the probes on its path, the model `relbench`, and a paired baseline.

Its `run` command looks `simple_evaluate` up when it is called; that is the place where a run with a mask
becomes two: the same model without and with it, their samples paired, and the change written into the
results before lm-eval prints its table and saves its files.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import lm_eval
import lm_eval.tasks
from lm_eval.__main__ import cli_evaluate
from lm_eval.utils import simple_parse_args_string

from interventions.errors import UserError
from interventions.files import sha256_json
from interventions.masks import Mask
from interventions.model_id import hash_weights
from relbench.analysis.pairing import Pair, pair
from relbench.logged import LoggedSample, logged_samples, read_logged
from relbench.paths import tasks_dir
from relbench.prompts import parse_concept

if TYPE_CHECKING:
    from relbench.lm import RelbenchLM

Results = dict[str, Any]
BATCH_SIZE = 32
# Model arguments that say what is done to the model.
INTERVENTION = {
    *("mask", "concept", "k", "fraction", "mode", "factor", "value", "percentile", "positions", "mask_seed"),
    *("baseline", "force"),
}


def run(arguments: Sequence[str]) -> None:
    """Run lm_eval's command line on `arguments`.

    Raises:
        UserError: A mistake that is ours to explain; lm-eval reports its own.
    """
    from relbench import lm as _registers_the_model  # noqa: F401

    arguments = [*arguments, *_default_batch_size(arguments)]
    with _patched(arguments):
        try:
            cli_evaluate()
        except ValueError as error:
            # lm-eval lets these two mistakes end in a traceback.
            if "Duplicate task" in str(error) or "Tasks not found" in str(error):
                raise UserError(f"{error}; `relbench lm-eval ls tasks` lists all") from error
            raise
        except AssertionError as error:
            if "number of fewshot samples" in str(error):
                raise UserError(f"--num_fewshot is too large: {error}") from error
            raise


def _default_batch_size(arguments: Sequence[str]) -> list[str]:
    """`--batch_size` for runs of our model that do not say it: lm-eval's default is 1."""
    # A config file may say it.
    if any(word.startswith(("--batch", "-b", "--config", "-C")) for word in arguments):
        return []
    pairs = pairwise([*arguments, ""])
    ours = any(
        first in ("--model=relbench", "-M=relbench") or (first in ("--model", "-M") and second == "relbench")
        for first, second in pairs
    )
    return ["--batch_size", str(BATCH_SIZE)] if ours else []


@contextmanager
def _patched(arguments: list[str]) -> Iterator[None]:
    """lm-eval with our arguments, our tasks on its path and our `simple_evaluate`, put back afterwards."""
    evaluate, manager, argv = lm_eval.simple_evaluate, lm_eval.tasks.TaskManager, sys.argv
    only_ours = _names_only_our_tasks(arguments)

    class WithProbes(manager):  # type: ignore[misc, valid-type]
        """A task manager that knows the probes besides whatever it is told to include."""

        def __init__(self, *args: Any, include_path: Any = None, **kwargs: Any) -> None:
            paths = include_path if isinstance(include_path, (list, tuple)) else [include_path]
            given = [path for path in paths if path]
            # Building lm-eval's own index takes seconds; a run of our tasks alone does without.
            if only_ours and not given:
                kwargs["include_defaults"] = False
            super().__init__(*args, include_path=[str(tasks_dir()), *given], **kwargs)

    lm_eval.simple_evaluate = lambda **settings: simple_evaluate(evaluate, **settings)
    lm_eval.tasks.TaskManager = WithProbes
    sys.argv = ["lm-eval", *arguments]
    try:
        yield
    finally:
        lm_eval.simple_evaluate, lm_eval.tasks.TaskManager, sys.argv = evaluate, manager, argv


def _names_only_our_tasks(arguments: Sequence[str]) -> bool:
    for flag in ("--tasks", "-t"):
        if flag in arguments:
            following = arguments[arguments.index(flag) + 1 :]
            end = next((i for i, word in enumerate(following) if word.startswith("-")), len(following))
            names = [name for word in following[:end] for name in word.split(",") if name]
            return bool(names) and all(name.startswith("relbench") for name in names)
    return False


def simple_evaluate(evaluate: Callable[..., Results | None], **settings: Any) -> Results | None:
    """lm-eval's `simple_evaluate`, with a paired baseline when the model is `relbench` with a mask.

    Args:
        evaluate: lm-eval's function.
        **settings: Its arguments, by name, as lm-eval's `run` command passes them.

    Returns:
        Its results, with `<metric>_baseline` and `<metric>_delta` for each task and group.

    Raises:
        UserError: `--cache_requests` (its keys leave out the template, so it would return another
            prompt's requests), or whatever `RelbenchLM` refuses.
    """
    if settings["model"] != "relbench":
        return evaluate(**settings)
    if settings.get("cache_requests") or settings.get("rewrite_requests_cache"):
        raise UserError(
            "--cache_requests keeps requests by task name alone and would return those of another "
            "template or seed; leave it out (building requests takes seconds)"
        )
    arguments = settings["model_args"]
    arguments = simple_parse_args_string(arguments) if isinstance(arguments, str) else dict(arguments or {})
    if "pretrained" not in arguments:
        raise UserError("--model_args needs pretrained=, a hub id, a folder or an embedded model's name")
    run = _Run(evaluate, settings, arguments, _load(arguments, settings))
    limit = settings.get("limit")
    if limit is not None and 1 <= limit < run.lm.world_size:
        raise UserError(
            f"--limit {limit:g} leaves some of the {run.lm.world_size} processes without a document"
        )
    chosen, option = run.lm.interventions, str(arguments.get("baseline", "auto"))
    if not chosen:
        return run("baseline")
    before = _baseline(run, option)
    run.lm.interventions = chosen
    label = "+".join(intervention.id for intervention in chosen)
    results = run(label)
    if results is None:
        return None
    if before is not None:
        asked = [sample for sample in before if sample.task in results["samples"]]
        try:
            add_deltas(results, pair(asked, logged_samples(results["samples"])), _targets(run.lm))
        except UserError as error:
            # What was measured is kept: a baseline that fits can still be compared with it.
            warnings.warn(f"the results have no deltas: {error}", stacklevel=2)
    run.direct_output(label)
    if not settings.get("log_samples"):
        del results["samples"]
    return results


def _load(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> RelbenchLM:
    from relbench.lm import RelbenchLM

    run_settings = {key: settings.get(key) for key in ("batch_size", "max_batch_size", "device")}
    lm: RelbenchLM = RelbenchLM.create_from_arg_obj(dict(arguments), run_settings)
    return lm


class _Run:
    """One loaded model, evaluated under changing interventions with the same settings."""

    def __init__(
        self,
        evaluate: Callable[..., Results | None],
        settings: dict[str, Any],
        arguments: dict[str, Any],
        lm: RelbenchLM,
    ) -> None:
        self.evaluate, self.settings, self.arguments, self.lm = evaluate, settings, arguments, lm
        self.tracker = settings.get("evaluation_tracker")
        self.output = self.tracker.output_path if self.tracker else None

    def __call__(self, label: str) -> Results | None:
        """Results under the model's current interventions, samples always included."""
        settings = {**self.settings, "model": self.lm, "log_samples": True}
        if settings.get("use_cache"):
            # lm-eval's response cache has no key for model or mask, so its file has.
            others = {key: str(value) for key, value in self.arguments.items() if key not in INTERVENTION}
            answering = sha256_json([hash_weights(self.lm.model), str(self.lm.model.dtype), others])
            settings["use_cache"] = f"{settings['use_cache']}-{answering[:16]}-{label}"
        results = self.evaluate(**settings)
        if results is not None:
            if self.lm.world_size > 1:
                _in_order(results["samples"])
            results["config"].update(model="relbench", model_args=self.arguments)
            if self.tracker is not None:
                kept = self.tracker.general_config_tracker
                kept.log_experiment_args(
                    model_source="relbench",
                    model_args=self.arguments,
                    system_instruction=kept.system_instruction,
                    chat_template=kept.chat_template,
                    fewshot_as_multiturn=kept.fewshot_as_multiturn,
                )
        return results

    def direct_output(self, label: str) -> None:
        """Let what lm-eval saves next go to a place of its own for each mask."""
        if self.tracker is not None and self.output is not None:
            path = Path(self.output)
            named = path.with_name(f"{path.stem}-{label}.json") if path.suffix == ".json" else path / label
            self.tracker.output_path = str(named)

    def save(self, results: Results, label: str) -> None:
        """Save results as lm-eval would, under `label`."""
        if self.tracker is None or self.output is None:
            return
        self.direct_output(label)
        kept = dict(results)
        samples = kept.pop("samples")
        self.tracker.save_results_aggregated(results=kept, samples=samples)
        if self.settings.get("log_samples"):
            for task in kept["configs"]:
                self.tracker.save_results_samples(task_name=task, samples=samples[task])


def _in_order(samples: Mapping[str, list[dict[str, Any]]]) -> None:
    """Sort each task's samples as one process would have made them; they come process by process."""
    for members in samples.values():
        filters = list(dict.fromkeys(sample["filter"] for sample in members))
        members.sort(key=lambda sample: (filters.index(sample["filter"]), sample["doc_id"]))


def _baseline(run: _Run, option: str) -> list[LoggedSample] | None:
    """Samples without the mask: measured now ("auto"), from a folder, or not at all ("none")."""
    if option == "none":
        return None
    if option != "auto":
        return read_logged(option)
    run.lm.interventions = ()
    results = run("baseline")
    if results is None:
        return None
    run.save(results, "baseline")
    return logged_samples(results["samples"])


def _targets(lm: RelbenchLM) -> set[tuple[str, str]]:
    """(relation, language) of every concept that the masks were made for."""
    found = set()
    for intervention in lm.interventions:
        for name in concepts_of(intervention.mask):
            try:
                found.add(parse_concept(name))
            except UserError:
                # A mask of somebody else's concept has no target among the probes.
                continue
    return found


def concepts_of(mask: Mask) -> set[str]:
    """Every concept in a mask's provenance, through all set operations."""
    found, todo = set(), [mask.provenance]
    while todo:
        entry = todo.pop()
        # A random control is matched to its mask but holds none of its concept.
        if entry.get("operation") == "random":
            continue
        if isinstance(entry.get("concept"), str):
            found.add(entry["concept"])
        masks = [inner for inner in entry.get("masks", ()) if isinstance(inner, dict)]
        # What is taken away from the first mask is not masked.
        todo.extend(masks[:1] if entry.get("operation") == "difference" else masks)
    return found


def add_deltas(results: Results, pairs: Sequence[Pair[LoggedSample]], targets: set[tuple[str, str]]) -> None:
    """Write baseline and delta of each task's metrics, and a summary for each group, into lm-eval's results.

    For tasks that report `recall`, that metric alone; for others every numeric one. A group's deltas are
    the unweighted means of its tasks'; `recall_delta_target` takes the masked relations' tasks,
    `recall_delta_off_target` those of other relations.

    Args:
        results: As `simple_evaluate` returned them; changed in place.
        pairs: Paired samples of all tasks.
        targets: (relation, language) that the mask was made for.
    """
    by_task: dict[str, list[Pair[LoggedSample]]] = {}
    for one in pairs:
        by_task.setdefault(one.before.task, []).append(one)
    for task, members in by_task.items():
        for metric in _shown(members):
            changes = [p.after.metrics[metric] - p.before.metrics[metric] for p in members]
            entry, suffix = results["results"][task], members[0].before.filter
            entry[f"{metric}_baseline,{suffix}"] = mean(p.before.metrics[metric] for p in members)
            entry[f"{metric}_delta,{suffix}"] = mean(changes)
            entry[f"{metric}_delta_stderr,{suffix}"] = (
                stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else "N/A"
            )
    for group, tasks in _leaves(results).items():
        present = [by_task[task] for task in tasks if task in by_task]
        for key, value in _summary(present, targets).items():
            for column in ("results", "groups"):
                if group in results.get(column, {}):
                    results[column][group][f"{key},none"] = value


def _shown(members: Sequence[Pair[LoggedSample]]) -> list[str]:
    metrics = [
        metric
        for metric in members[0].before.metrics
        if all(metric in p.before.metrics and metric in p.after.metrics for p in members)
    ]
    return ["recall"] if "recall" in metrics else metrics


def _leaves(results: Results) -> dict[str, list[str]]:
    """Group → the tasks below it, through nested groups."""
    children: dict[str, list[str]] = results.get("group_subtasks", {})

    def below(name: str) -> list[str]:
        inner = children.get(name) or []
        return [leaf for child in inner for leaf in below(child)] if inner else [name]

    return {group: below(group) for group, inner in children.items() if inner}


def _summary(
    tasks: Sequence[Sequence[Pair[LoggedSample]]], targets: set[tuple[str, str]]
) -> dict[str, float]:
    recalled = [members for members in tasks if members and _shown(members) == ["recall"]]
    if not recalled:
        return {}
    before = [mean(p.before.metrics["recall"] for p in members) for members in recalled]
    after = [mean(p.after.metrics["recall"] for p in members) for members in recalled]
    summary = {
        "recall_baseline": mean(before),
        "recall_delta": mean(b - a for a, b in zip(before, after, strict=True)),
    }
    masked = {relation for relation, _ in targets}
    target, off_target = [], []
    for members, old, new in zip(recalled, before, after, strict=True):
        asked = members[0].before
        if (asked.relation, asked.language) in targets:
            target.append(new - old)
        elif asked.relation is not None and asked.relation not in masked:
            off_target.append(new - old)
    if target:
        summary["recall_delta_target"] = mean(target)
    if targets and off_target:
        summary["recall_delta_off_target"] = mean(off_target)
    return summary
