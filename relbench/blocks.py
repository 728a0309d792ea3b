"""Blocks: the atoms of a sweep's work, one treatment on one task each, and what evaluates them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from relbench.continuations import LENGTH, continuations, flipped
from relbench.journal import Records
from relbench.perplexity import Document, documents, perplexity_records
from relbench.samples import BASELINE, Sample, sample_from_dict
from relbench.taskfiles import task_name
from relbench.treatments import Treatment, interventions_of

if TYPE_CHECKING:
    from relbench.engine import Plan
    from relbench.harness import BuiltTask
    from relbench.lm import RelbenchLM
    from relbench.sweep_config import SweepConfig

RECALL, PERPLEXITY, CONTINUATION = "recall", "perplexity", "continuation"


class Block(NamedTuple):
    """What identifies a block in the journal.

    Attributes:
        kind: "recall": samples of a task; "perplexity": of documents in one language; "continuation": what the
            model says to the facts of a task that the treatment lost (of the baseline: to those it knows).
        treatment: Its id.
        task: The task; of perplexity the language.
        template, shots: Of the prompts; empty for perplexity.
    """

    kind: str
    treatment: str
    task: str
    template: str = ""
    shots: str = ""

    @property
    def setting(self) -> Setting:
        """How its task is asked."""
        return Setting(self.template, int(self.shots))


class Setting(NamedTuple):
    """How tasks are asked."""

    template: str
    shots: int


class Evaluator:
    """A model with the tasks of a sweep, ready to do its blocks.

    Args:
        config: Of the sweep.
        directory: Where its masks are.
        lm: The model.

    Raises:
        UserError: A task cannot be built, or an answer has no tokens.
    """

    def __init__(self, config: SweepConfig, directory: Path, lm: RelbenchLM) -> None:
        from relbench.harness import build_tasks

        self.config, self.directory, self.lm = config, directory, lm
        self.built: dict[tuple[str, Setting], tuple[BuiltTask, Plan]] = {}
        names = [task_name(relation, code) for relation in config.relations for code in config.languages]
        for setting in settings(config):
            metadata = {
                "template": setting.template,
                "split": config.split,
                "shots_seed": config.shots_seed,
            }
            for task in build_tasks(names, shots=setting.shots, metadata=metadata, limit=config.limit):
                plan = lm.plan(lm.token_requests(task.instances))
                self.built[task.name, setting] = (task, plan)
        self.documents: list[Document] = documents(config)
        self._inside: str | None = None

    def blocks(self, treatments: Sequence[Treatment]) -> list[Block]:
        """All blocks that need no other block's result, treatment by treatment."""
        languages = sorted({document.language for document in self.documents})
        found = []
        for treatment in treatments:
            for name, setting in self.built:
                if treatment.tasks is None or name in treatment.tasks:
                    found.append(Block(RECALL, treatment.id, name, setting.template, str(setting.shots)))
            found += [Block(PERPLEXITY, treatment.id, language) for language in languages]
        return found

    def cost(self, block: Block) -> int:
        """Tokens that the model reads for a block, padding aside."""
        if block.kind == PERPLEXITY:
            return sum(document.size for document in self.documents if document.language == block.task)
        task, plan = self._built(block)
        if block.kind == CONTINUATION:
            return len(task.docs) * LENGTH
        return plan.n_tokens

    def run(self, block: Block, treatment: Treatment, known: Mapping[Block, Records]) -> Records:
        """Do a block.

        Args:
            block: Which.
            treatment: Its treatment.
            known: The recall blocks that a continuation block rests on.

        Raises:
            UserError: The treatment's mask is not there or is another.
        """
        self._enter(treatment)
        if block.kind == PERPLEXITY:
            members = [document for document in self.documents if document.language == block.task]
            return perplexity_records(self.lm, treatment.id, members)
        task, plan = self._built(block)
        if block.kind == CONTINUATION:
            return continuations(self.lm, task, asked(block, known), limit=LENGTH)
        from relbench.harness import responses_of, samples_of

        scores = self.lm.score_plan(plan)
        records = [sample.to_dict() for sample in samples_of(task, scores, treatment.id)]
        if self.config.log_samples:
            said = responses_of(task, scores)
            records = [{**record, "resps": said[record["doc_id"]]} for record in records]
        return records

    def logged(self, block: Block, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record of a recall block as lm-eval logs samples."""
        from relbench.harness import logged_sample

        return logged_sample(self._built(block)[0], record)

    def _built(self, block: Block) -> tuple[BuiltTask, Plan]:
        return self.built[block.task, block.setting]

    def _enter(self, treatment: Treatment) -> None:
        if treatment.id != self._inside:
            self.lm.interventions = interventions_of(self.config, treatment, self.directory)
            self._inside = treatment.id


def settings(config: SweepConfig) -> list[Setting]:
    """Every way in which the sweep asks its tasks."""
    return [Setting(template, shots) for template in config.templates for shots in config.shots]


def continuation_blocks(blocks: Sequence[Block], done: Mapping[Block, Records]) -> Iterator[Block]:
    """The continuation blocks that finished recall blocks call for: those with a fact to ask about."""
    for block in blocks:
        if block.kind == RECALL:
            wanted = block._replace(kind=CONTINUATION)
            if asked(wanted, done):
                yield wanted


def asked(block: Block, done: Mapping[Block, Records]) -> list[int]:
    """Documents whose continuation a block asks for."""
    recall = block._replace(kind=RECALL)
    before = samples_in(done[recall._replace(treatment=BASELINE)])
    if block.treatment == BASELINE:
        # Any of them may flip under some mask.
        return [sample.doc_id for sample in before]
    return flipped(before, samples_in(done[recall]))


def samples_in(records: Records) -> list[Sample]:
    """The samples of a recall block."""
    return [sample_from_dict({key: raw[key] for key in raw if key != "resps"}) for raw in records]
