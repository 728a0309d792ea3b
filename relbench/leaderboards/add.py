"""`relbench leaderboard add`: a submission made from a finished sweep directory."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from interventions.errors import UserError
from interventions.files import sha256_file
from interventions.model_id import ModelId
from relbench.findings.reading import Sweep, read_sweep
from relbench.leaderboards.aggregates import results_of, sweep_of
from relbench.leaderboards.checks import command_of, folder_of
from relbench.leaderboards.meta import ModelMeta
from relbench.leaderboards.names import META, RESULTS, SLUG, samples_name
from relbench.leaderboards.problems import Problem
from relbench.leaderboards.questions import data_version, questions_of, task_hash, task_names
from relbench.leaderboards.rules import Rules, load_rules
from relbench.leaderboards.samples_file import read_questions, samples_in, write_questions
from relbench.leaderboards.submission import (
    MaskFile,
    Method,
    Model,
    SamplesFile,
    Submission,
    Submitter,
    TaskData,
)
from relbench.leaderboards.tree import submission_files
from relbench.leaderboards.verify import verify
from relbench.leaderboards.writing import write_json
from relbench.samples import Sample, read_samples
from relbench.sweep_config import MethodConfig, ScoresConfig, SweepConfig
from relbench.sweep_state import read_state

RUN = "run.json"


class NotAdded(UserError):
    """A submission that would not be verified.

    Attributes:
        problems: Why.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(f"the submission is not added: {problems[0]}")
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Statement:
    """What a submitter says, which no file can.

    Attributes:
        name, link: Who submits.
        licence: Of the submission, an SPDX identifier.
        id: Name of the submission; made from the sweep's directory when "".
        boards: Boards that it is for; all whose rules it keeps when empty.
        tuned_on: Method → "tune" or "nothing"; of those not named, what their preset says, else "nothing".
        mask_url: Where the masks can be had: what stands before `masks/…`; None when they cannot.
        created: Day, YYYY-MM-DD; today when "".
    """

    name: str
    link: str
    licence: str
    id: str = ""
    boards: tuple[str, ...] = ()
    tuned_on: Mapping[str, str] | None = None
    mask_url: str | None = None
    created: str = ""


def add(
    directory: Path,
    root: Path,
    statement: Statement,
    *,
    rules: Rules | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Make a submission from a sweep directory and put it under `root`, when it passes every check there.

    It is made and verified in a folder beside its place, together with what is there already, and moved in whole.

    Args:
        directory: A finished sweep's.
        root: The leaderboards folder; made when it is not there.
        statement: What the submitter says.
        rules: Of the boards; those of this version when not given.
        progress: Told what is being done.

    Returns:
        The submission's file.

    Raises:
        UserError: The sweep is not finished, keeps the rules of no board, or would not be verified; every problem
            is a line of the message.
    """
    rules = rules or load_rules()
    progress("reading the sweep")
    sweep, run = read_sweep(directory), _run(directory)
    there = root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=root, prefix=".adding-"))
    except OSError as error:
        raise UserError(f"cannot write into {root}: {error.strerror}") from error
    try:
        submission = _make(directory, sweep, run, statement, rules, staged, progress)
        folder = Path(RESULTS) / folder_of(submission)
        path = folder / f"{submission.id}.json"
        if (root / path).exists():
            raise UserError(f"{root / path} is there already; give the submission another --id")
        write_json(staged / path, submission.to_dict())
        _take_along(root, staged)
        if not (staged / folder / META).exists():
            write_json(staged / folder / META, ModelMeta.of(submission.model).to_dict())
        progress("verifying")
        own = [folder / META, folder / submission.samples.path, path]
        found = verify(staged, rules=rules, only=staged / path).problems
        problems = [one for one in found if Path(one.file) in own]
        if problems:
            raise NotAdded(problems)
        _move(staged, root, own)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        if not there and not any(root.iterdir()):
            root.rmdir()
    return root / path


def _run(directory: Path) -> Mapping[str, Any]:
    path = directory / RUN
    if not path.is_file():
        raise UserError(f"{directory} has no {RUN}: the sweep is not finished; run the same command to go on")
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    needed = {"seconds", "hardware", "packages", "device", "code"}
    if not isinstance(run, dict) or not needed <= run.keys():
        raise UserError(
            f"{path} does not say on what the sweep ran; run it again with this version of relbench"
        )
    return run


def _make(
    directory: Path,
    sweep: Sweep,
    run: Mapping[str, Any],
    statement: Statement,
    rules: Rules,
    staged: Path,
    progress: Callable[[str], None],
) -> Submission:
    """The submission; its samples are written under `staged`."""
    state = read_state(directory)
    model_id = ModelId.from_dict(state.get("model"))
    if model_id.layout is None:
        raise UserError(f"{directory} does not say what layout its model has")
    source = _source(sweep.config.model, model_id)
    config = _public(sweep.config, source)
    boards = statement.boards or _boards(config, rules)
    name = statement.id or _slug(directory.resolve().name)
    if not SLUG.fullmatch(name):
        raise UserError(f"{name!r} is no name for a submission; use small letters, digits and hyphens")
    tasks = {
        task: TaskData(task_hash(*where), len(questions_of(config, task)) // _settings(config))
        for task, where in task_names(config).items()
    }
    made = Submission(
        id=name,
        submitter=Submitter(statement.name, statement.link),
        licence=statement.licence,
        created=statement.created or date.today().isoformat(),
        protocol=rules.protocol,
        boards=tuple(boards),
        model=Model(model_id, source, config.dtype, str(run["device"])),
        data_version=data_version({task: data.hash for task, data in tasks.items()}),
        tasks=tasks,
        config=config.to_dict(),
        treatments=sweep.treatments,
        methods=tuple(_methods(directory, sweep, run, statement)),
        masks=tuple(_masks(directory, sweep, statement.mask_url)),
        samples=SamplesFile(samples_name(name), "", 1, 1),
        results={},
        environment=_environment(run),
        command="",
    )
    path = staged / RESULTS / folder_of(made) / made.samples.path
    progress("writing samples")
    samples, ids = read_samples(directory / "samples.jsonl"), [one.id for one in sweep.treatments]
    unknown = {sample.intervention for sample in samples} - set(ids)
    if unknown:
        raise UserError(f"{directory} has samples of {min(unknown)}, which is no treatment of its sweep.yaml")
    questions, answers = write_questions(path, samples, ids)
    progress("computing results")
    kept: list[Sample] = []
    for question in read_questions(path, len(ids)):
        kept.extend(samples_in(question, ids))
    return replace(
        made,
        samples=SamplesFile(made.samples.path, sha256_file(path), questions, answers),
        results=results_of(sweep_of(config, sweep.treatments, kept)),
        command=command_of(made),
    )


def _settings(config: SweepConfig) -> int:
    return len(config.templates) * len(config.shots)


def _source(given: str, model: ModelId) -> str:
    """What others can give as the model: a path says nothing to them."""
    from relbench.models import EMBEDDED

    if given in EMBEDDED:
        return given
    return model.name if Path(given).exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", given) else given


def _public(config: SweepConfig, source: str) -> SweepConfig:
    """The config without the paths of one machine."""
    raw = config.to_dict()
    raw["model"] = source
    raw["scores"] = [{**entry, "path": Path(entry["path"]).name} for entry in raw["scores"]]
    if raw["perplexity"] not in (None, "neutral"):
        raw["perplexity"] = Path(raw["perplexity"]).name
    return SweepConfig.from_dict(raw, "config")


def _boards(config: SweepConfig, rules: Rules) -> list[str]:
    """The boards whose rules a config keeps."""
    broken = [f"{one.field}: {one.what}" for one in rules.broken(config)]
    if broken:
        raise UserError("the sweep does not ask what the boards ask: " + "; ".join(broken))
    why = {
        name: [f"{one.field}: {one.what}" for one in board.broken(config)]
        for name, board in rules.boards.items()
    }
    fitting = [name for name, broken in why.items() if not broken]
    if not fitting:
        reasons = "; ".join(broken[0] for broken in why.values())
        raise UserError(f"the sweep keeps the rules of no board: {reasons}")
    return fitting


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:64].strip("-") or "submission"


def _methods(directory: Path, sweep: Sweep, run: Mapping[str, Any], statement: Statement) -> Iterable[Method]:
    from interventions.methods import get_method
    from relbench.presets import PRESETS

    config, costs = sweep.config, run.get("methods", {})
    given = statement.tuned_on or {}
    entries: Sequence[MethodConfig | ScoresConfig] = (*config.methods, *config.scores)
    odd = sorted(given.keys() - {entry.id for entry in entries})
    if odd:
        raise UserError(f"--tuned-on names {odd[0]!r}, which is no method of the sweep")
    for entry in entries:
        cost = costs.get(entry.id, {})
        if isinstance(entry, MethodConfig):
            known = get_method(entry.name)
            name, preset = entry.name, entry.preset
            template = entry.template or known.template
            shots = known.shots if entry.shots is None else entry.shots
            kinds, options = tuple(entry.kinds or config.kinds), dict(entry.options)
        else:
            name, preset = "scores", None
            template, shots, kinds, options = _of_scores(Path(entry.path))
        usual = PRESETS[preset].tuned_on if preset is not None and preset in PRESETS else "nothing"
        yield Method(
            id=entry.id,
            name=name,
            preset=preset,
            template=template,
            shots=shots,
            kinds=kinds,
            options=options,
            code=run["code"],
            tuned_on=given.get(entry.id, usual),
            contrast_relations=tuple(sorted(sweep.contrasted[entry.id])),
            seconds=cost.get("seconds"),
            bytes=cost.get("bytes"),
        )


def _of_scores(path: Path) -> tuple[str, int, tuple[str, ...], dict[str, Any]]:
    """Template, shots, kinds and method of scores that were made elsewhere."""
    from interventions.scores import Scores

    scores = Scores.load(path)
    parameters = scores.parameters
    kinds = tuple(dict.fromkeys(site.kind for site in scores.values))
    options = {"method": scores.method, "data_hash": scores.data_hash, "scores_digest": scores.digest}
    template, shots = parameters.get("template"), parameters.get("shots")
    return (
        template if isinstance(template, str) else "unknown",
        shots if isinstance(shots, int) else 0,
        kinds,
        options,
    )


def _masks(directory: Path, sweep: Sweep, url: str | None) -> Iterable[MaskFile]:
    for path in dict.fromkeys(one.mask for one in sweep.treatments if one.mask is not None):
        if not (directory / path).is_file():
            raise UserError(f"{directory / path} is missing; a submission says the hash of every mask")
        where = None if url is None else f"{url.rstrip('/')}/{path}"
        yield MaskFile(path, sha256_file(directory / path), where)


def _environment(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "python": run.get("python"),
        "packages": dict(run["packages"]),
        "hardware": dict(run["hardware"]),
        "processes": run.get("processes", 1),
        "seconds": dict(run["seconds"]),
    }


def _take_along(root: Path, staged: Path) -> None:
    """Copy the other submissions' own files, which duplicates are found by."""
    for path in submission_files(root):
        for one in (path, path.parent / META):
            place = staged / one.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            if one.is_file() and not one.is_symlink():
                shutil.copyfile(one, place)


def _move(staged: Path, root: Path, paths: Sequence[Path]) -> None:
    """Move files into place, the last of them the one that counts; take them back when one cannot be moved."""
    moved: list[Path] = []
    try:
        for path in paths:
            if path.name == META and (root / path).exists():
                # It was taken along, and is known to be of the same model.
                continue
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (staged / path).rename(root / path)
            moved.append(root / path)
    except OSError as error:
        for path in moved:
            path.unlink(missing_ok=True)
        raise UserError(f"cannot write into {root}: {error.strerror}; nothing was added") from error
