"""What must hold within one submission, its samples aside: each check yields everything that it finds wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from interventions.errors import UserError
from interventions.files import canonical_json
from relbench.analysis.runs import language_of, relation_of
from relbench.findings.reading import Sweep
from relbench.leaderboards.limits import META_BYTES
from relbench.leaderboards.meta import META_SCHEMA, ModelMeta
from relbench.leaderboards.names import META, RESULTS, model_folder, revision_folder, samples_name
from relbench.leaderboards.problems import Problem, Refused, quoted
from relbench.leaderboards.questions import data_version, questions_of, task_hash, task_names
from relbench.leaderboards.reading import read_json
from relbench.leaderboards.rules import Board, Rules
from relbench.leaderboards.schema import schema_problems
from relbench.leaderboards.submission import Method, Submission
from relbench.presets import PRESETS
from relbench.relations import TEMPLATES, load_relation, relation_names
from relbench.samples import BASELINE
from relbench.sweep_config import MethodConfig, ScoresConfig, SweepConfig
from relbench.taskfiles import languages_of, task_name
from relbench.treatments import BAND, RANDOM, TOP_K, Treatment, placed

# Task → hashes that it once had.
Past = Mapping[str, frozenset[str]]


class Found(NamedTuple):
    """A finding before it is known in which file: the field, and what was expected and found."""

    field: str
    what: str


def command_of(submission: Submission) -> str:
    """The command that makes a submission's sweep again. It depends on nothing that a stranger can choose freely."""
    path = f"{RESULTS}/{folder_of(submission)}/{submission.id}.json"
    made = f"relbench leaderboard config leaderboards/{path} -o {submission.id}.yaml"
    return f"{made} && relbench sweep {submission.id}.yaml -o {submission.id}"


def folder_of(submission: Submission) -> str:
    """`<org__model>/<revision>`."""
    return f"{model_folder(submission.model.id)}/{revision_folder(submission.model.id)}"


def place_findings(submission: Submission, root: Path) -> Iterator[Found]:
    """Names: of the file, its folders and its samples."""
    assert submission.path is not None
    if submission.path.stem != submission.id:
        yield Found("id", f"expected {submission.path.stem!r}, the name of the file, found {submission.id!r}")
    folder = submission.path.parent.relative_to(root / RESULTS).as_posix()
    if folder != folder_of(submission):
        yield Found(
            "model.id", f"expected a model of the folder {folder}, found one of {folder_of(submission)}"
        )
    if submission.samples.path != samples_name(submission.id):
        found = f"expected {samples_name(submission.id)!r}, found {submission.samples.path!r}"
        yield Found("samples.path", found)
    try:
        date.fromisoformat(submission.created)
    except ValueError:
        yield Found("created", f"expected a day of the calendar, found {submission.created!r}")
    if submission.command != command_of(submission):
        expected = f"expected {command_of(submission)!r}"
        yield Found("reproduce.command", f"{expected}, found {quoted(submission.command)}")


def meta_problems(submission: Submission, root: Path) -> list[Problem]:
    """Whether `model_meta.json` is of the submission's model."""
    assert submission.path is not None
    path = submission.path.parent / META
    file = path.relative_to(root).as_posix()
    try:
        raw = read_json(path, most=META_BYTES)
    except Refused as refusal:
        return [Problem(file, refusal.field, refusal.what)]
    problems = schema_problems(file, raw, META_SCHEMA)
    if problems:
        return problems
    own = ModelMeta.of(submission.model).to_dict()
    return [
        Problem(
            file, key, f"expected {quoted(own[key])}, as {submission.id} has it, found {quoted(raw[key])}"
        )
        for key in ("name", "revision", "fingerprint", "layout_hash", "layout", "source")
        if raw[key] != own[key]
    ]


def parsed_config(submission: Submission) -> SweepConfig | list[Found]:
    """The submission's config, or why it is none of a sweep that could have run here."""
    try:
        config = SweepConfig.from_dict(submission.config, "config")
    except UserError as error:
        return [
            Found("config", f"expected a sweep's config, found that {str(error).removeprefix('config: ')}")
        ]
    found = list(_config_findings(submission, config))
    return found or config


def _config_findings(submission: Submission, config: SweepConfig) -> Iterator[Found]:
    # A key that is not there has its default: configs are older than keys that were added since.
    for field in _unresolved(submission.config, config.to_dict(), "config"):
        yield Found(field, "expected the value as a sweep resolves it, found it otherwise")
        return
    known = set(relation_names())
    for field in ("relations", "contrast_relations"):
        for name in getattr(config, field) or ():
            if name not in known:
                yield Found(f"config.{field}", f"expected installed relations, found {quoted(name)}")
                return
    for name in config.relations:
        there = languages_of(load_relation(name))
        for code in config.languages:
            if code not in there:
                yield Found("config.languages", f"expected languages that {name} has, found {code!r}")
    for template in config.templates:
        if template not in TEMPLATES:
            yield Found("config.templates", f"expected {', '.join(TEMPLATES)}, found {quoted(template)}")
    if config.model != submission.model.source:
        yield Found("config.model", f"expected {submission.model.source!r}, found {quoted(config.model)}")
    if config.dtype != submission.model.dtype:
        yield Found("config.dtype", f"expected {submission.model.dtype!r}, found {config.dtype!r}")


def _unresolved(given: Any, resolved: Any, field: str) -> Iterator[str]:
    """Fields of a config that reading it changes."""
    if isinstance(given, dict) and isinstance(resolved, dict):
        for key in given:
            yield from _unresolved(given[key], resolved.get(key), f"{field}.{key}")
    elif isinstance(given, list) and isinstance(resolved, list) and len(given) == len(resolved):
        for number, (one, other) in enumerate(zip(given, resolved, strict=True)):
            yield from _unresolved(one, other, f"{field}[{number}]")
    elif _differ(given, resolved):
        yield field


def _differ(one: Any, other: Any) -> bool:
    return canonical_json(one) != canonical_json(other)


def data_findings(submission: Submission, config: SweepConfig, past: Past) -> Iterator[Found]:
    """Whether the tasks are those of the config, and what they say that of the installed ones."""
    names = task_names(config)
    for name in sorted(names.keys() - submission.tasks.keys()):
        yield Found("data.tasks", f"expected {name}, which the config evaluates, found no such task")
    for name in sorted(submission.tasks.keys() - names.keys()):
        yield Found("data.tasks", f"expected only tasks that the config evaluates, found {name}")
    for name, task in sorted(submission.tasks.items()):
        if name not in names:
            continue
        installed = task_hash(*names[name])
        if task.hash == installed:
            settings = len(config.templates) * len(config.shots)
            n = len(questions_of(config, name)) // settings
            if task.n != n:
                yield Found(f"data.tasks.{name}.n", f"expected {n}, found {task.n}")
        elif task.hash not in past.get(name, ()):
            expected = f"expected {installed}, the hash of the installed task"
            yield Found(f"data.tasks.{name}.hash", f"{expected}, found {task.hash}")
    version = data_version({name: task.hash for name, task in submission.tasks.items()})
    if submission.data_version != version:
        found = f"expected {version!r}, the hash of the tasks, found {submission.data_version!r}"
        yield Found("data.version", found)


def method_findings(submission: Submission, config: SweepConfig) -> Iterator[Found]:
    """Whether the methods are those of the config, with what they were tuned on and contrasted with."""
    entries: tuple[MethodConfig | ScoresConfig, ...] = (*config.methods, *config.scores)
    given = [method.id for method in submission.methods]
    expected = [entry.id for entry in entries]
    if given != expected:
        found = f"expected those of the config, {', '.join(expected) or 'none'}, found {', '.join(given) or 'none'}"
        yield Found("methods", found)
        return
    broken = False
    for number, (method, entry) in enumerate(zip(submission.methods, entries, strict=True)):
        if isinstance(entry, MethodConfig):
            for one in _own_method(method, entry, config, number):
                broken = True
                yield one
    if broken:
        return
    contrasted = Sweep(config, (), {}, (), {}).contrasted
    for number, method in enumerate(submission.methods):
        wanted = sorted(contrasted[method.id])
        if sorted(method.contrast_relations) != wanted:
            stated = ", ".join(sorted(method.contrast_relations)) or "none"
            found = f"expected {', '.join(wanted) or 'none'}, as the config says, found {stated}"
            yield Found(f"methods[{number}].contrast_relations", found)


def _own_method(method: Method, entry: MethodConfig, config: SweepConfig, number: int) -> Iterator[Found]:
    """A method that the sweep ran, beside its entry in the config."""
    from interventions.methods import get_method
    from relbench.scoring import check_options

    field = f"methods[{number}]"
    negatives = entry.options.get("negatives", {})
    lists = negatives.values() if isinstance(negatives, dict) else (negatives,)
    if not all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists):
        yield Found(f"{field}.options.negatives", "expected lists of concepts, found something else")
        return
    try:
        known = get_method(entry.name)
        check_options(config.scoring_plans()[number])
    except UserError as error:
        yield Found(
            f"{field}.name", f"expected an installed method with options of its own, found that {error}"
        )
        return
    expected = {
        "name": entry.name,
        "preset": entry.preset,
        "template": entry.template or known.template,
        "shots": known.shots if entry.shots is None else entry.shots,
        "kinds": tuple(entry.kinds or config.kinds),
        "options": entry.options,
    }
    for key, value in expected.items():
        if _differ(getattr(method, key), value):
            yield Found(
                f"{field}.{key}",
                f"expected {quoted(value)}, as the config has it, found {quoted(getattr(method, key))}",
            )
    preset = PRESETS.get(entry.preset or "")
    if preset is not None and preset.tuned_on != "nothing" and method.tuned_on != preset.tuned_on:
        expected_split = f"expected {preset.tuned_on!r}, on which preset {entry.preset} was chosen"
        yield Found(f"{field}.tuned_on", f"{expected_split}, found {method.tuned_on!r}")


FEW = 5


def treatment_findings(submission: Submission, config: SweepConfig) -> Iterator[Found]:
    """Whether the treatments can come from the config, and their masks are listed."""
    from interventions.selection import budget

    layout = submission.model.id.layout
    assert layout is not None
    treatments = submission.treatments
    if treatments[0] != Treatment(BASELINE, BASELINE):
        yield Found("treatments[0]", f"expected the baseline, found {treatments[0].id!r}")
    for name, times in Counter(one.id for one in treatments).items():
        if times > 1:
            yield Found("treatments", f"expected each id once, found {name!r} {times} times")
    methods = {method.id for method in submission.methods}
    concepts = set(config.tested_concepts)
    modes = {mode.label for mode in config.modes}
    by_id = {one.id: one for one in treatments}
    listed = {mask.path for mask in submission.masks}

    every = task_names(config).keys()

    def _meets_its_own(one: Treatment) -> bool:
        # A control matched to a mask meets what that one does.
        of = by_id.get(one.matched_to or "", one)
        return set(one.tasks or every) == set(placed(config, replace(of, tasks=None)).tasks or every)

    alike: dict[tuple[Any, ...], str] = {}
    for number, one in enumerate(treatments[1:], start=1):
        control = one.method == RANDOM
        same = (one.digest, one.mode, one.positions, one.matched_to)
        # Of very few units two draws can be the same.
        if control and (one.k or 0) >= FEW and (first := alike.setdefault(same, one.id)) != one.id:
            yield Found(
                f"treatments[{number}].digest", f"expected random masks that differ, found that of {first}"
            )
        size = None if one.fraction is None else budget(layout, one.fraction)
        upto = one.band[1] if one.band else one.k
        rules: dict[str, tuple[bool, str]] = {
            "method": (control or one.method in methods, "a method of the submission, or random"),
            "concept": (
                one.concept is None if control else one.concept in concepts,
                "null of a random mask" if control else "a concept that the config masks",
            ),
            "fraction": (
                (upto if one.fraction is None else one.fraction) in config.sizes,
                f"a size of the config, {', '.join(map(str, config.sizes))}",
            ),
            "k": (
                one.k is not None and (size is None or upto == size),
                f"{size} units, which that share of the model's is",
            ),
            "seed": ((one.seed is not None) == control, "a seed of random masks alone"),
            "band": ((one.band is not None) == (one.selection == BAND), "ranks of bands alone"),
            "mode": (one.mode in modes, f"a mode of the config, {', '.join(sorted(modes))}"),
            "positions": (
                one.positions in config.positions,
                f"positions of the config, {', '.join(config.positions)}",
            ),
            "matched_to": (
                one.matched_to is None or one.matched_to in by_id,
                "a treatment of the submission",
            ),
            "tasks": (_meets_its_own(one), "the tasks that the config has it meet"),
            "mask": (one.mask in listed, "a path that stands under masks"),
            "digest": (one.digest is not None, "the digest of the mask's content"),
        }
        for key, (kept, expected) in rules.items():
            if not kept:
                yield Found(
                    f"treatments[{number}].{key}", f"expected {expected}, found {quoted(getattr(one, key))}"
                )
    used = {one.mask for one in treatments}
    for number, mask in enumerate(submission.masks):
        if mask.path not in used:
            yield Found(f"masks[{number}].path", f"expected the mask of a treatment, found {mask.path!r}")
    for path, times in Counter(mask.path for mask in submission.masks).items():
        if times > 1:
            yield Found("masks", f"expected each path once, found {path!r} {times} times")


def board_findings(submission: Submission, config: SweepConfig, rules: Rules) -> Iterator[Found]:
    """Whether the submission keeps the rules of its boards.

    One of an earlier protocol kept the rules of then; boards set it apart.
    """
    if submission.protocol > rules.protocol:
        yield Found("board.protocol", f"expected at most {rules.protocol}, found {submission.protocol}")
    if submission.protocol != rules.protocol:
        return
    for broken in rules.broken(config):
        yield Found(f"config.{broken.field}", broken.what)
    for name in submission.boards:
        board = rules.boards[name]
        missing = [Found(f"config.{broken.field}", broken.what) for broken in board.broken(config)]
        yield from missing or _missing_masks(submission, config, board)


def _missing_masks(submission: Submission, config: SweepConfig, board: Board) -> Iterator[Found]:
    """Masks and controls that a board counts on."""
    sizes = board.fractions or ((board.transfer_fraction,) if board.transfer_fraction else ())
    asked = [
        one
        for one in submission.treatments
        if one.selection == TOP_K and one.mode == board.mode and one.positions == board.positions
    ]
    everywhere = board.transfer_fraction is not None
    for size in sizes:
        own = {(one.method, one.concept): one for one in asked if one.fraction == size and one.concept}
        for method in submission.methods:
            for name in config.tested_concepts:
                one = own.get((method.id, name))
                wanted = f"{method.id} for {name} at {size} on the {board.name} board"
                if one is None:
                    yield Found("treatments", f"expected a mask of {wanted}, found none")
                elif not _meets(one, _compared(config, None if everywhere else name)):
                    found = f"expected the tasks that are compared for {wanted}, found fewer"
                    yield Found(f"treatments[{submission.treatments.index(one)}].tasks", found)
        yield from _missing_controls(own.values(), asked, size, board, config)


def _compared(config: SweepConfig, name: str | None) -> list[str]:
    """Tasks that are compared under masks: of a concept those of its language, else all."""
    return [
        task_name(relation_of(one), language_of(one))
        for one in config.tested_concepts
        if name is None or language_of(one) == language_of(name)
    ]


def _meets(treatment: Treatment, tasks: Iterable[str]) -> bool:
    return treatment.tasks is None or set(tasks) <= set(treatment.tasks)


def _missing_controls(
    masks: Iterable[Treatment], asked: Iterable[Treatment], size: float, board: Board, config: SweepConfig
) -> Iterator[Found]:
    random = [one for one in asked if one.method == RANDOM and one.fraction == size]
    everything = _compared(config, None)
    pooled = {one.seed for one in random if one.matched_to is None and _meets(one, everything)}
    if config.controls.match == "pooled":
        if len(pooled) < board.control_seeds:
            expected = f"expected {board.control_seeds} random masks at {size} on the {board.name} board"
            yield Found("treatments", f"{expected}, found {len(pooled)}")
        return
    for mask in masks:
        own = (one for one in random if one.matched_to == mask.id)
        n = len({one.seed for one in own if _meets(one, mask.tasks or everything)})
        if n < board.control_seeds:
            expected = (
                f"expected {board.control_seeds} random masks beside {mask.id} on the {board.name} board"
            )
            yield Found("treatments", f"{expected}, found {n}")
