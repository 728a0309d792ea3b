"""Sweeps: a baseline and many interventions over probe tasks, with one load of the model.

A sweep directory holds `sweep.yaml` (what was asked for, resolved and hashed), `scores/` and `masks/`,
`journal/` (finished blocks), and from them `samples.jsonl` and `results/`. Dates and durations stand
in `run.json` alone, so that everything else is the same from run to run.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tqdm import tqdm

from interventions.errors import UserError
from interventions.files import atomic_write, sha256_json
from interventions.scores import Scores
from relbench.journal import Journal
from relbench.results import write_results
from relbench.samples import write_samples
from relbench.scoring import ScoringPlan, data_hash, score, scoring_prompts
from relbench.sweep_config import SweepConfig
from relbench.taskfiles import task_name
from relbench.treatments import Treatment, interventions_of, make_treatments

if TYPE_CHECKING:
    from relbench.engine import Plan
    from relbench.harness import BuiltTask
    from relbench.lm import RelbenchLM


def run_sweep(config: SweepConfig, directory: str | Path, *, progress: bool = True) -> Path:
    """Run a sweep, or what is left of it.

    Args:
        config: What to run.
        directory: Where; a directory of the same sweep is continued.
        progress: Whether to show progress on stderr.

    Returns:
        The directory.

    Raises:
        UserError: The directory belongs to another sweep or is in use, or the config asks for something
            that is not there.
    """
    directory = Path(directory)
    config.check()
    stated = directory / "sweep.yaml"
    before = _read_state(stated) if stated.exists() else None
    if before is not None:
        _refuse_changes(before["config"], config.to_dict(), stated)
        if (directory / "run.json").exists() and _data_state(config) == before["data"]:
            return directory
    with _alone(directory):
        clock = _Clock(directory)
        lm = _load(config)
        clock.lap("load model")
        all_scores = [_scores(config, plan, lm, directory, progress) for plan in config.scoring_plans()]
        clock.lap("score units")
        treatments = make_treatments(config, all_scores, lm.model_id, directory)
        state = {
            "config": config.to_dict(),
            "data": _data_state(config),
            "model": lm.model_id.to_dict(),
            "treatments": [asdict(treatment) for treatment in treatments],
        }
        if before is not None:
            _refuse_changes(before, state, stated)
        with atomic_write(stated) as file:
            yaml.safe_dump(state, file, sort_keys=False, allow_unicode=True)
        _evaluate(config, lm, treatments, directory, progress)
        clock.lap("evaluate")
        _finish(config, lm, treatments, directory)
        clock.write(lm)
    return directory


def read_treatments(directory: str | Path) -> list[Treatment]:
    """What was done in a sweep.

    Raises:
        UserError: The directory is not a sweep's.
    """
    path = Path(directory) / "sweep.yaml"
    if not path.is_file():
        raise UserError(f"{directory} is not a sweep directory: it has no sweep.yaml")
    return [Treatment(**raw) for raw in _read_state(path)["treatments"]]


def read_config(directory: str | Path) -> SweepConfig:
    """The resolved config of a sweep directory.

    Raises:
        UserError: The directory is not a sweep's.
    """
    path = Path(directory) / "sweep.yaml"
    if not path.is_file():
        raise UserError(f"{directory} is not a sweep directory: it has no sweep.yaml")
    return SweepConfig.from_dict(_read_state(path)["config"], str(path))


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged; use another directory ({error})") from error
    if not isinstance(state, dict) or not {"config", "data", "treatments"} <= state.keys():
        raise UserError(f"{path} is not a sweep's; use another directory")
    return state


def _refuse_changes(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        raise UserError(
            f"{path} was made with another {', '.join(changed)}; use a new directory, or the old settings"
        )


def _data_state(config: SweepConfig) -> dict[str, str]:
    """Hashes of what the probes say now: of every scoring plan's prompts, and of the tested facts."""
    scored = {f"scored by {plan.method}": data_hash(scoring_prompts(plan)) for plan in config.scoring_plans()}
    return {"tested": data_hash(config.tested_prompts()), **scored}


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, or say that another process does."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ".lock"
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is running a sweep in {directory}") from error
        try:
            yield
        finally:
            # A mistake found before anything was made leaves no directory behind.
            if list(directory.iterdir()) == [path]:
                path.unlink()
                directory.rmdir()


def _load(config: SweepConfig) -> RelbenchLM:
    from relbench.lm import load_lm

    return load_lm(config.model, dtype=config.dtype, device=config.device, batch_size=config.batch_size)


def _scores(
    config: SweepConfig, plan: ScoringPlan, lm: RelbenchLM, directory: Path, progress: bool
) -> Scores:
    """Scores of one method, from the directory when they are there already."""
    path = directory / "scores" / f"{plan.method}.safetensors"
    if path.exists():
        found = Scores.load(path)
        if found.model.fits(lm.model_id) and found.data_hash == data_hash(scoring_prompts(plan)):
            return found
    made = score(plan, lm.model, lm.tokenizer, lm.model_id, progress=progress)
    made.save(path)
    return made


def _evaluate(
    config: SweepConfig, lm: RelbenchLM, treatments: Sequence[Treatment], directory: Path, progress: bool
) -> None:
    from relbench.harness import build_tasks, samples_of

    journal = Journal(directory / "journal" / "0.jsonl")
    names = [task_name(relation, code) for relation in config.relations for code in config.languages]
    metadata = {"template": config.template, "split": config.split, "shots_seed": config.shots_seed}
    built = build_tasks(names, shots=config.shots, metadata=metadata, limit=config.limit)
    plans: dict[str, tuple[BuiltTask, Plan]] = {
        task.name: (task, lm.plan(lm.token_requests(task.instances))) for task in built
    }
    bar = tqdm(
        total=len(treatments) * len(built),
        initial=len(journal.blocks),
        desc="evaluating",
        unit="block",
        disable=None if progress else True,
    )
    with bar:
        for treatment in treatments:
            if all((treatment.id, task.name) in journal.blocks for task in built):
                continue
            lm.interventions = interventions_of(config, treatment, directory)
            for task, plan in plans.values():
                if (treatment.id, task.name) in journal.blocks:
                    continue
                samples = samples_of(task, lm.score_plan(plan), treatment.id)
                journal.append((treatment.id, task.name), samples)
                bar.update(1)
    lm.interventions = ()


def _finish(config: SweepConfig, lm: RelbenchLM, treatments: Sequence[Treatment], directory: Path) -> None:
    """Write everything that derives from the journal."""
    journal = Journal(directory / "journal" / "0.jsonl")
    known = {treatment.id for treatment in treatments}
    samples = [
        sample
        for (treatment, _), block in sorted(journal.blocks.items())
        if treatment in known
        for sample in block
    ]
    write_results(directory / "results", samples, treatments, config, lm.model_id)
    write_samples(directory / "samples.jsonl", samples)


class _Clock:
    """Seconds per phase, added up over the runs that a sweep took."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "run.json"
        self.started = time.time()
        self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self.last, 2)
        self.last = now

    def write(self, lm: RelbenchLM) -> None:
        from interventions.artifact import package_versions

        record = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.started)),
            "seconds": self.laps,
            "device": str(lm.device),
            "packages": package_versions(),
        }
        with atomic_write(self.path) as file:
            json.dump(record, file, indent=2)
            file.write("\n")


def sweep_hash(directory: str | Path) -> str:
    """Hash of what a sweep is: its config, data, model and treatments."""
    return sha256_json(_read_state(Path(directory) / "sweep.yaml"))
