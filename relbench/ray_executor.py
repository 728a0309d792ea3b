"""A sweep's blocks on the workers of a Ray cluster; the driver keeps the journal.

Every worker loads the model once. A worker that is lost takes its block with it, which another one does again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interventions.errors import UserError
from relbench.blocks import CONTINUATION, RECALL, Block, Evaluator
from relbench.executors import Finished
from relbench.journal import Records
from relbench.samples import BASELINE
from relbench.sweep_config import SweepConfig
from relbench.treatments import Treatment

# A block whose worker is lost so often is taken for what kills it.
ATTEMPTS = 3


class RayCluster:
    """The workers of a Ray cluster.

    Joins the cluster that `RAY_ADDRESS` names, or starts one on this machine. `RELBENCH_RAY_WORKERS` says how many
    workers to use; by default one for each GPU, else one for each two CPUs.

    Args:
        config: Of the sweep.
        directory: Of the sweep; workers read masks from it and so must see it.

    Raises:
        UserError: Ray is not installed, or the number of workers is not a number.
    """

    def __init__(self, config: SweepConfig, directory: Path) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("executor ray needs Ray; install relbench-lm[ray]") from error
        self.ray, self.config, self.directory = ray, config, directory.resolve()
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        text = os.environ.get("RELBENCH_RAY_WORKERS", str(gpus or max(1, cpus // 2)))
        if not text.isdigit() or not int(text):
            raise UserError(f"RELBENCH_RAY_WORKERS is {text!r}; give a number of workers")
        self.workers = int(text)
        self.options = {"num_gpus": 1} if gpus else {"num_cpus": max(1, cpus // self.workers)}

    def run(
        self,
        blocks: Sequence[Block],
        treatments: Mapping[str, Treatment],
        known: Mapping[Block, Records],
        finished: Finished,
    ) -> None:
        """See `Executor.run`.

        Raises:
            UserError: A block's worker is lost again and again.
        """
        actor = self.ray.remote(Worker).options(**self.options)
        waiting, lost = deque(blocks), dict.fromkeys(blocks, 0)
        running: dict[Any, tuple[Any, Block]] = {}

        def give(worker: Any) -> None:
            if waiting:
                block = waiting.popleft()
                needed = [(key, known[key]) for key in _needs(block) if key in known]
                running[worker.run.remote(block, treatments[block.treatment], needed)] = (worker, block)

        for _ in range(min(self.workers, len(blocks))):
            give(actor.remote(self.config.to_dict(), str(self.directory)))
        while running:
            (ready,), _ = self.ray.wait(list(running), num_returns=1)
            worker, block = running.pop(ready)
            try:
                records = self.ray.get(ready)
            except self.ray.exceptions.RayActorError as error:
                lost[block] += 1
                why = (str(error).strip().splitlines() or ["no reason given"])[-1]
                if error.actor_init_failed:
                    raise UserError(f"a worker could not start: {why}") from error
                if lost[block] >= ATTEMPTS:
                    raise UserError(
                        f"{ATTEMPTS} workers were lost on the block {'/'.join(block)}: {why}"
                    ) from error
                waiting.appendleft(block)
                worker = actor.remote(self.config.to_dict(), str(self.directory))
            except self.ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise UserError(str(error.cause)) from error
                raise
            else:
                finished(block, records)
            give(worker)


def _needs(block: Block) -> list[Block]:
    """The finished blocks that a block rests on."""
    if block.kind != CONTINUATION:
        return []
    recall = block._replace(kind=RECALL)
    return [recall, recall._replace(treatment=BASELINE)]


class Worker:
    """One process of the cluster: a loaded model that does blocks one after the other.

    Args:
        config: Of the sweep, as plain values.
        directory: Of the sweep.
    """

    def __init__(self, config: Mapping[str, Any], directory: str) -> None:
        from relbench.sweep import load

        made = SweepConfig.from_dict(config, "sweep")
        self.evaluator = Evaluator(made, Path(directory), load(made))

    def run(self, block: Block, treatment: Treatment, known: Sequence[tuple[Block, Records]]) -> Records:
        """Do one block."""
        return self.evaluator.run(Block(*block), treatment, {Block(*key): records for key, records in known})
