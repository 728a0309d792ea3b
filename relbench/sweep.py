"""Sweeps: a baseline and many interventions over probe tasks, with one load of the model.

A sweep directory holds `sweep.yaml` (what was asked for, resolved and hashed), `scores/` and `masks/`,
`journal/` (finished blocks), and from them `samples.jsonl`, `perplexity.jsonl` when it was asked for, and
`results/`. Dates and durations stand in `run.json` alone, so that everything else is the same from run to run.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from interventions import parallel
from interventions.errors import UserError
from interventions.files import atomic_write, canonical_json, remove_unfinished, sha256_json
from interventions.scores import Scores
from relbench.blocks import (
    CONTINUATION,
    PERPLEXITY,
    RECALL,
    Block,
    Evaluator,
    continuation_blocks,
    samples_in,
)
from relbench.executors import Executor, Local
from relbench.journal import Journal, Records, full_or_denied, read_journals
from relbench.perplexity import documents
from relbench.provenance import code, hardware
from relbench.results import write_logged, write_results
from relbench.samples import Sample, write_samples
from relbench.scoring import ScoringPlan, data_hash, score, scoring_prompts
from relbench.sweep_config import MethodConfig, ScoresConfig, SweepConfig
from relbench.sweep_state import (
    alone,
    make_state,
    read_state,
    refuse_changes,
    refuse_other_outputs,
    write_state,
)
from relbench.treatments import Treatment, make_treatments, sizes_of, write_masks

if TYPE_CHECKING:
    from interventions.model_id import ModelId
    from relbench.lm import RelbenchLM

# Seconds after which what a sweep has cost so far is written down.
KEEP_EVERY = 30.0

Scored = list[tuple[MethodConfig | ScoresConfig, Scores]]


def run_sweep(
    config: SweepConfig, directory: str | Path, *, progress: bool = True, executor: str = "local"
) -> Path:
    """Run a sweep, or what is left of it.

    Started by torchrun, every process does a share of the blocks; all must see the directory.

    Args:
        config: What to run.
        directory: Where; a directory of the same sweep is continued.
        progress: Whether to show progress on stderr.
        executor: "local", or "ray" to have the blocks done by the workers of a Ray cluster.

    Returns:
        The directory.

    Raises:
        UserError: The directory belongs to another sweep or is in use, or the config asks for something
            that is not there.
    """
    directory = Path(directory)
    config.check()
    before = read_state(directory) if (directory / "sweep.yaml").exists() else None
    if before is None:
        refuse_other_outputs(directory)
    else:
        refuse_changes(before["config"], config.to_dict(), directory)
        if _is_finished(directory) and data_state(config) == before["data"]:
            return directory
    rank, _ = parallel.world()
    with _alone_together(directory):
        clock = _Clock(directory)
        try:
            lm = load(config)
            clock.lap("load model")
            scored = _scored(config, lm, directory, clock, progress and rank == 0)
            clock.lap("score units")
            if rank == 0:
                _prepare(config, scored, lm, directory)
            parallel.barrier()
            treatments = [Treatment.from_dict(raw) for raw in read_state(directory)["treatments"]]
            evaluator = Evaluator(config, directory, lm)
            blocks = _evaluate(evaluator, treatments, clock, progress, executor)
            clock.lap("evaluate")
            if rank == 0:
                _finish(evaluator, treatments, blocks)
                clock.write(lm)
            parallel.barrier()
        except OSError as error:
            raise full_or_denied(directory, error) from error
    return directory


def _is_finished(directory: Path) -> bool:
    return all((directory / name).exists() for name in ("run.json", "samples.jsonl", "results"))


@contextmanager
def _alone_together(directory: Path) -> Iterator[None]:
    """Rank 0 holds the lock for all processes of a sweep; where it cannot, all say why."""
    with ExitStack() as stack:
        refusal = ""
        if parallel.world().rank == 0:
            try:
                stack.enter_context(alone(directory))
            except UserError as error:
                refusal = str(error)
        refusal = parallel.broadcast_text(refusal)
        if refusal:
            raise UserError(refusal)
        yield


def data_state(config: SweepConfig) -> dict[str, str]:
    """Hashes of what the probes say now: of what each method scores, of the tested facts, of other texts."""
    state = {
        f"tested {template} {shots}-shot": data_hash(config.tested_prompts(template, shots))
        for template in config.templates
        for shots in config.shots
    }
    for method, plan in zip(config.methods, config.scoring_plans(), strict=True):
        state[f"scored by {method.id}"] = data_hash(scoring_prompts(plan))
    for entry in config.scores:
        state[f"scores {entry.id}"] = Scores.load(entry.path).digest
    if config.perplexity is not None:
        texts = [[document.id, document.kind, document.text] for document in documents(config)]
        state["texts for perplexity"] = sha256_json(texts)
    return state


def load(config: SweepConfig) -> RelbenchLM:
    """The sweep's model, nothing done to it."""
    from relbench.lm import load_lm

    return load_lm(config.model, dtype=config.dtype, device=config.device, batch_size=config.batch_size)


def _scored(config: SweepConfig, lm: RelbenchLM, directory: Path, clock: _Clock, progress: bool) -> Scored:
    """Every entry of `methods` and `scores` with its scores; made where the directory does not have them yet."""
    # What can be refused is refused before hours of scoring.
    sizes_of(config, lm.model_id)
    given = given_scores(config, lm.model_id)
    scored: Scored = []
    for method, plan in zip(config.methods, config.scoring_plans(), strict=True):
        path = directory / "scores" / f"{method.id}.safetensors"
        with clock.scoring(method.id, path):
            scored.append((method, _scores(path, plan, lm, progress)))
    return [*scored, *given]


def given_scores(config: SweepConfig, model: ModelId) -> list[tuple[ScoresConfig, Scores]]:
    """The entries of `scores` with their scores.

    Raises:
        UserError: A file has scores of another model.
    """
    given = []
    for entry in config.scores:
        found = Scores.load(entry.path)
        if not found.model.fits(model):
            raise UserError(
                f"{entry.path} has scores of {found.model.describe()}, the sweep's model is {model.describe()}"
            )
        given.append((entry, found))
    return given


def _scores(path: Path, plan: ScoringPlan, lm: RelbenchLM, progress: bool) -> Scores:
    """Scores of one method, from the directory when they are there already."""
    # What they were made from stands beside them: until `sweep.yaml` is written, the config may change.
    beside = path.with_suffix(".json")
    wanted = canonical_json(
        {"plan": asdict(plan), "prompts": data_hash(scoring_prompts(plan)), "dtype": str(lm.model.dtype)}
    )
    same = beside.exists() and beside.read_text(encoding="utf-8") == wanted + "\n"
    # All processes must decide alike, and before one of them writes the file.
    if parallel.broadcast_text("yes" if same and path.exists() else "no") == "yes":
        found = Scores.load(path)
        if found.model.fits(lm.model_id):
            return found
    made = score(plan, lm.model, lm.tokenizer, lm.model_id, progress=progress)
    if parallel.world().rank == 0:
        beside.unlink(missing_ok=True)
        made.save(path)
        with atomic_write(beside) as file:
            file.write(wanted + "\n")
    parallel.barrier()
    return made


def _prepare(config: SweepConfig, scored: Scored, lm: RelbenchLM, directory: Path) -> None:
    """Write the masks and `sweep.yaml`, or make sure that those of the directory are the same."""
    remove_unfinished(directory)
    treatments, masks = make_treatments(config, scored, lm.model_id)
    state = make_state(config, data_state(config), lm.model_id, treatments)
    if (directory / "sweep.yaml").exists():
        refuse_changes(read_state(directory), state, directory)
    write_masks(masks, directory)
    write_state(directory, state)


def _evaluate(
    evaluator: Evaluator, treatments: Sequence[Treatment], clock: _Clock, progress: bool, executor: str
) -> dict[Block, Records]:
    """Do what is left of all blocks; every finished block."""
    config, directory = evaluator.config, evaluator.directory
    worker = _executor(executor, evaluator)
    journal = Journal(directory / "journal" / f"{parallel.world().rank}.jsonl")
    by_id = {treatment.id: treatment for treatment in treatments}
    blocks = evaluator.blocks(treatments)
    for stage in (RECALL, CONTINUATION):
        done = _done(directory, by_id)
        if stage == CONTINUATION:
            blocks = list(continuation_blocks(blocks, done)) if config.continuations else []
        # Nobody may append to a journal that another process still has to read.
        parallel.barrier()
        left = [block for block in blocks if block not in done]
        costs = {block: evaluator.cost(block) for block in left}
        bar = tqdm(
            total=sum(costs.values()),
            desc="evaluating" if stage == RECALL else "asking again",
            unit="token",
            unit_scale=True,
            disable=None if progress and parallel.world().rank == 0 else True,
        )

        def finished(
            block: Block, records: Records, bar: tqdm = bar, costs: Mapping[Block, int] = costs
        ) -> None:
            journal.append(block, records)
            clock.lap("evaluate")
            # With several processes the others are about as far.
            bar.update(min(costs[block] * parallel.world().size, bar.total - bar.n))

        with bar:
            worker.run(left, by_id, done, finished)
        parallel.barrier()
    evaluator.lm.interventions = ()
    return _done(directory, by_id)


def _done(directory: Path, treatments: Mapping[str, Treatment]) -> dict[Block, Records]:
    """Finished blocks of the sweep's treatments, from the journals of all processes."""
    found = {Block(*key): records for key, records in read_journals(directory / "journal").items()}
    return {block: records for block, records in found.items() if block.treatment in treatments}


def _executor(name: str, evaluator: Evaluator) -> Executor:
    if name == "local":
        return Local(evaluator, *parallel.world())
    if name == "ray":
        if parallel.world().size > 1:
            raise UserError("executor ray shares out the work itself; start it without torchrun")
        from relbench.ray_executor import RayCluster

        return RayCluster(evaluator.config, evaluator.directory)
    raise UserError(f"unknown executor {name!r}; there are local and ray")


def _finish(evaluator: Evaluator, treatments: Sequence[Treatment], blocks: Mapping[Block, Records]) -> None:
    """Write everything that derives from the journals."""
    config, directory, model_id = evaluator.config, evaluator.directory, evaluator.lm.model_id
    _refuse_gaps(evaluator, treatments, blocks)
    samples = [
        sample
        for block, records in sorted(blocks.items())
        if block.kind == RECALL
        for sample in _samples(block, records, blocks)
    ]
    write_results(directory / "results", samples, treatments, config, model_id)
    write_samples(directory / "samples.jsonl", samples)
    if config.log_samples:
        recall = {block: records for block, records in blocks.items() if block.kind == RECALL}
        write_logged(directory / "logged", recall, treatments, evaluator, model_id)
    if config.perplexity is not None:
        with atomic_write(directory / "perplexity.jsonl") as file:
            for block, records in sorted(blocks.items()):
                if block.kind == PERPLEXITY:
                    file.writelines(canonical_json(record) + "\n" for record in records)


def _refuse_gaps(
    evaluator: Evaluator, treatments: Sequence[Treatment], blocks: Mapping[Block, Records]
) -> None:
    wanted = evaluator.blocks(treatments)
    missing = [block for block in wanted if block not in blocks]
    if not missing and evaluator.config.continuations:
        missing = [block for block in continuation_blocks(wanted, blocks) if block not in blocks]
    if missing:
        raise UserError(
            f"the journals in {evaluator.directory} lack {len(missing)} blocks, {'/'.join(missing[0])} the "
            "first; run the sweep again"
        )


def _samples(block: Block, records: Records, blocks: Mapping[Block, Records]) -> Iterator[Sample]:
    """Samples of a block, with what the model said where it was asked."""
    said = {raw["doc_id"]: raw["text"] for raw in blocks.get(block._replace(kind=CONTINUATION), ())}
    for sample in samples_in(records):
        yield replace(sample, continuation=said.get(sample.doc_id))


class _Clock:
    """Seconds per phase, and what each method's scores cost, over all runs that a sweep took.

    Both are kept while it runs, so that of a killed run at most the last half minute is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "run.json"
        self.kept = directory / "costs.json"
        self.started = time.time()
        self.last = self.saved = time.perf_counter()
        before: dict[str, Any] = {}
        for path in (self.kept, self.path):
            with suppress(FileNotFoundError):
                before = json.loads(path.read_text(encoding="utf-8"))
                break
        self.laps: dict[str, float] = before.get("seconds", {})
        self.methods: dict[str, dict[str, float]] = before.get("methods", {})
        self.runs: int = before.get("runs", 0) + 1

    def lap(self, name: str) -> None:
        """Count the time since the last lap as the phase `name`."""
        now = time.perf_counter()
        self.laps[name] = round(self.laps.get(name, 0.0) + now - self.last, 2)
        self.last = now
        if now - self.saved > KEEP_EVERY:
            self.keep()

    def keep(self) -> None:
        """Write down what is known so far."""
        self.saved = time.perf_counter()
        if parallel.world().rank == 0:
            _write_json(self.kept, {"runs": self.runs, "seconds": self.laps, "methods": self.methods})

    @contextmanager
    def scoring(self, method: str, path: Path) -> Iterator[None]:
        """What a method costs, when the block makes its scores file."""
        before, began = _changed(path), time.perf_counter()
        yield
        if _changed(path) != before:
            seconds = round(time.perf_counter() - began, 2)
            self.methods[method] = {"seconds": seconds, "bytes": path.stat().st_size}
            self.keep()

    def write(self, lm: RelbenchLM) -> None:
        from interventions.artifact import package_versions

        record = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.started)),
            "runs": self.runs,
            "seconds": self.laps,
            "methods": self.methods,
            "device": str(lm.device),
            "hardware": hardware(str(lm.device)),
            "code": code(),
            "processes": parallel.world().size,
            "python": platform.python_version(),
            "packages": package_versions(),
        }
        _write_json(self.path, record)
        self.kept.unlink(missing_ok=True)


def _changed(path: Path) -> int | None:
    """When a file was written last, in nanoseconds; None when it is not there."""
    return path.stat().st_mtime_ns if path.exists() else None


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    with atomic_write(path) as file:
        json.dump(record, file, indent=2)
        file.write("\n")
