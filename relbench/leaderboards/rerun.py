"""Evaluating samples of submissions again, where model and masks can be had."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from interventions.files import sha256_file
from relbench.leaderboards.problems import Problem, Refused
from relbench.leaderboards.reading import open_regular
from relbench.leaderboards.samples_file import read_questions, samples_in
from relbench.leaderboards.submission import Submission
from relbench.samples import Sample
from relbench.sweep_config import SweepConfig
from relbench.treatments import Treatment, interventions_of

if TYPE_CHECKING:
    from relbench.harness import BuiltTask
    from relbench.lm import RelbenchLM

# How far a log probability may be off: sums in another order; numbers of 8 or 11 bits.
TOLERANCE: Mapping[str, float] = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
_MASK_BYTES = 2**30


@dataclass
class Rerun:
    """What came of evaluating samples again.

    Attributes:
        checked: How many samples.
        problems: Samples that came out otherwise, and models or masks that are others.
        notes: What could not be run again, a line each.
    """

    checked: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Chosen(NamedTuple):
    treatment: Treatment
    sample: Sample


def rerun(
    submissions: Sequence[Submission],
    root: Path,
    n: int,
    *,
    seed: int = 0,
    model: str | None = None,
    masks: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Rerun:
    """Evaluate up to `n` samples of each submission again, and compare.

    Recall must be the same, and the log probability within `TOLERANCE`.

    Args:
        submissions: Verified ones.
        root: Their leaderboards folder.
        n: Samples of each submission, drawn at random from those whose mask can be had.
        seed: Of the draw.
        model: Path of a checkpoint for submissions of its weights; embedded models are used when they are cached.
        masks: A folder with `masks/` as a sweep directory has it; else a mask's own `url`, when it is a path below
            `root`. Nothing is downloaded.
        progress: Told what is being done.
    """
    done = Rerun()
    by_model = sorted(submissions, key=lambda one: (one.model.source, one.model.dtype, str(one.path)))
    for (source, dtype), members in groupby(by_model, lambda one: (one.model.source, one.model.dtype)):
        mine = list(members)
        lm = _load(source, dtype, model, done, mine, progress)
        if lm is None:
            continue
        for submission in mine:
            if not lm.model_id.fits(submission.model.id):
                given = f"expected the weights {submission.model.id.fingerprint[:12]}"
                found = f"{given}, found {lm.model_id.fingerprint[:12]} in the model that is here"
                done.problems.append(Problem(_file(submission, root), "model.id.fingerprint", found))
                continue
            progress(f"evaluating {n} samples of {submission.id} again")
            _rerun_one(submission, root, n, seed, masks, lm, done)
    return done


def _load(
    source: str,
    dtype: str,
    model: str | None,
    done: Rerun,
    submissions: Sequence[Submission],
    progress: Callable[[str], None],
) -> RelbenchLM | None:
    """The model of some submissions; None, and a note, when it is not here."""
    from relbench.lm import load_lm
    from relbench.models import EMBEDDED, is_cached

    names = ", ".join(one.id for one in submissions)
    if model is None and not (source in EMBEDDED and is_cached(EMBEDDED[source])):
        how = (
            f"run `relbench models pull {source}`"
            if source in EMBEDDED
            else "give its checkpoint with --model"
        )
        done.notes.append(f"{names}: not run again, the model {source} is not here; {how}")
        return None
    progress(f"loading {model or source}")
    lm = load_lm(model or source, dtype=dtype)
    if model is not None and not any(lm.model_id.fits(one.model.id) for one in submissions):
        done.notes.append(f"{names}: not run again, {model} has other weights than {source}")
        return None
    return lm


def _rerun_one(
    submission: Submission, root: Path, n: int, seed: int, masks: Path | None, lm: RelbenchLM, done: Rerun
) -> None:
    config = SweepConfig.from_dict(submission.config, "config")
    folders = {one.path: _mask_folder(submission, one.path, root, masks, done) for one in submission.masks}
    there = {one.id: one for one in submission.treatments if one.mask is None or folders.get(one.mask)}
    missing = len(submission.treatments) - len(there)
    if missing:
        done.notes.append(
            f"{submission.id}: {missing} of {len(submission.treatments)} treatments not run again, their masks are "
            "not here; give the sweep's directory with --masks"
        )
    chosen = _draw(submission, there, n, seed)
    built = _built(config, [one.sample for one in chosen])
    for treatment, members in groupby(chosen, lambda one: one.treatment):
        folder = folders[treatment.mask] if treatment.mask else None
        lm.interventions = interventions_of(config, treatment, folder) if folder else ()
        samples = [one.sample for one in members]
        again = {_asked(one): one for one in _evaluate(lm, built, samples)}
        for sample in samples:
            done.checked += 1
            other = again[_asked(sample)]
            done.problems += _compare(submission, root, sample, other)
    lm.interventions = ()


def _mask_folder(
    submission: Submission, path: str, root: Path, masks: Path | None, done: Rerun
) -> Path | None:
    """The folder in which a mask lies under the path that treatments name; None when it cannot be had."""
    listed = next(one for one in submission.masks if one.path == path)
    folder, within = masks, masks
    if folder is None or not (folder / path).is_file():
        if listed.url is None or "://" in listed.url or not listed.url.endswith(f"/{path}"):
            return None
        folder, within = root / listed.url.removesuffix(f"/{path}"), root
    try:
        open_regular(folder / path, _MASK_BYTES).close()
        if within is None or not (folder / path).resolve().is_relative_to(within.resolve()):
            raise Refused("expected a mask in its folder, found a link that leads elsewhere")
    except Refused as refusal:
        if (folder / path).exists():
            done.notes.append(f"{submission.id}: {path} is not run again, {refusal.what}")
        return None
    found = sha256_file(folder / path)
    if found != listed.sha256:
        number = submission.masks.index(listed)
        what = f"expected the hash {listed.sha256}, found {found} in {folder}"
        done.problems.append(Problem(_file(submission, root), f"masks[{number}].sha256", what))
        return None
    return folder


def _draw(
    submission: Submission, treatments: Mapping[str, Treatment], n: int, seed: int
) -> Sequence[_Chosen]:
    """`n` samples at random, treatment by treatment."""
    assert submission.path is not None
    ids = [one.id for one in submission.treatments]
    path = submission.path.parent / submission.samples.path
    generator = random.Random(f"{seed}:{submission.id}:{submission.samples.sha256}")
    # A reservoir: the samples are too many to keep.
    kept: list[Sample] = []
    seen = 0
    for question in read_questions(path, len(ids)):
        for sample in samples_in(question, ids):
            if sample.intervention not in treatments:
                continue
            seen += 1
            if len(kept) < n:
                kept.append(sample)
            elif (place := generator.randrange(seen)) < n:
                kept[place] = sample
    order = {name: number for number, name in enumerate(ids)}
    kept.sort(key=lambda one: (order[one.intervention], one.task, one.template, one.shots, one.doc_id))
    return [_Chosen(treatments[sample.intervention], sample) for sample in kept]


def _asked(sample: Sample) -> tuple[str, str, int, int]:
    return sample.task, sample.template, sample.shots, sample.doc_id


def _built(config: SweepConfig, samples: Sequence[Sample]) -> dict[tuple[str, str, int], BuiltTask]:
    """The tasks of some samples; building them takes longer than evaluating a few documents."""
    from relbench.harness import build_tasks

    wanted: dict[tuple[str, int], set[str]] = {}
    for sample in samples:
        wanted.setdefault((sample.template, sample.shots), set()).add(sample.task)
    built = {}
    for (template, shots), names in sorted(wanted.items()):
        metadata = {"template": template, "split": config.split, "shots_seed": config.shots_seed}
        for task in build_tasks(sorted(names), shots=shots, metadata=metadata, limit=config.limit):
            built[task.name, template, shots] = task
    return built


def _evaluate(
    lm: RelbenchLM, built: Mapping[tuple[str, str, int], BuiltTask], samples: Sequence[Sample]
) -> Iterator[Sample]:
    """The same questions, under what is done to the model now."""
    from relbench.harness import samples_of, with_documents

    wanted: dict[tuple[str, str, int], set[int]] = {}
    for sample in samples:
        wanted.setdefault((sample.task, sample.template, sample.shots), set()).add(sample.doc_id)
    for where, documents in wanted.items():
        some = with_documents(built[where], documents)
        plan = lm.plan(lm.token_requests(some.instances))
        yield from samples_of(some, lm.score_plan(plan), samples[0].intervention)


def _compare(submission: Submission, root: Path, sample: Sample, again: Sample) -> Iterator[Problem]:
    assert submission.path is not None
    folder = submission.path.parent.relative_to(root).as_posix()
    file = f"{folder}/{submission.samples.path}"
    asked = f"{sample.task} document {sample.doc_id} ({sample.template}, {sample.shots} shots)"
    where = f"{asked} under {sample.intervention}"
    if sample.prompt_hash != again.prompt_hash:
        yield Problem(file, where, f"expected the prompt {again.prompt_hash}, found {sample.prompt_hash}")
    elif sample.recall != again.recall:
        yield Problem(
            file, where, f"expected recall {again.recall}, as evaluated again, found {sample.recall}"
        )
    elif abs(sample.answer_logprob - again.answer_logprob) > TOLERANCE[submission.model.dtype]:
        expected = f"expected answer_logprob {again.answer_logprob:.6f}, as evaluated again"
        yield Problem(file, where, f"{expected}, found {sample.answer_logprob}")


def _file(submission: Submission, root: Path) -> str:
    assert submission.path is not None
    return submission.path.relative_to(root).as_posix()
