"""The boards: which submissions can be compared with each other, and what each says.

Numbers meet on one board only when everything that they depend on besides the method is the same. A changed
task, another model, other unit kinds or another way of asking makes another section, never another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import mean
from typing import Any, NamedTuple

from relbench.analysis.curve import ALL_LANGUAGES
from relbench.analysis.runs import language_of, relation_of
from relbench.leaderboards.ranking import Rank, Score, ranks
from relbench.leaderboards.submission import Method, Row, Submission
from relbench.prompts import concept
from relbench.tables import Interval
from relbench.taskfiles import task_name
from relbench.treatments import RANDOM, TOP_K


class ModelName(NamedTuple):
    """A model as boards tell them apart.

    Attributes:
        name: Of the model.
        revision: "" when there is none.
        fingerprint: Of the weights.
        dtype: In which they were run.
    """

    name: str
    revision: str
    fingerprint: str
    dtype: str

    def __str__(self) -> str:
        return self.name


class Asked(NamedTuple):
    """How questions were put, and under which version of the boards' rules."""

    protocol: int
    template: str
    shots: int
    shots_seed: int
    split: str


class Section(NamedTuple):
    """What entries of the Methods board share: everything that their numbers depend on but the method.

    Attributes:
        model, kinds, data_version: What was masked, and what was asked.
        asked: How.
        concepts: That were masked, and on which masks were evaluated.
        held_out: Relations among them that scores were not made from, on which off-target losses then rest;
            without any, they rest on those that scores were contrasted with.
        sizes: Mask sizes, shares of the FFN neurons or numbers of units.
        mode, positions: What masks did.
    """

    model: ModelName
    kinds: tuple[str, ...]
    data_version: str
    asked: Asked
    concepts: tuple[str, ...]
    held_out: tuple[str, ...]
    sizes: tuple[float, ...]
    mode: str
    positions: str

    @property
    def relations(self) -> tuple[str, ...]:
        """Relations that were masked."""
        return tuple(sorted({relation_of(concept) for concept in self.concepts}))

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages in which they were."""
        return tuple(sorted({language_of(concept) for concept in self.concepts}))


class Point(NamedTuple):
    """One mask size on a loss–loss curve."""

    k: int
    target: float
    off_target: float


@dataclass(frozen=True)
class MethodEntry:
    """A method of a submission, in one language or in all.

    Attributes:
        submission: Where it is from.
        method: None for the submission's random controls.
        language: Whose masks; "all" for all together.
        rank: Among the entries of its section and language; random controls have none.
        off_target_at_half, off_target_at_half_interval: Off-target loss at 50 % target loss; None where that
            is not reached.
        reached: Share of the bootstrap draws that reach it.
        k_at_half: Units there.
        mean_selectivity, mean_selectivity_interval: Target − off-target loss, mean over sizes.
        random_loss: What the submission's random masks take of the targets, mean over sizes.
        basis: Which relations count as off-target.
        targets: Number of masked relations.
        points: The curve, smallest size first.
    """

    submission: Submission
    method: Method | None
    language: str
    rank: Rank
    off_target_at_half: float | None
    off_target_at_half_interval: Interval | None
    reached: float | None
    k_at_half: float | None
    mean_selectivity: float | None
    mean_selectivity_interval: Interval | None
    random_loss: float | None
    basis: str
    targets: int | None
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """The method's id, or "random"."""
        return RANDOM if self.method is None else self.method.id


@dataclass(frozen=True)
class RelationEntry:
    """A method's mask of one relation.

    Attributes:
        submission, method: Where it is from.
        relation, language: That was masked.
        k, fraction: Size of the mask.
        target_loss, off_target_loss, selectivity: With their intervals.
        random_selectivity: Of random masks of the same size.
    """

    submission: Submission
    method: Method
    relation: str
    language: str
    k: int | None
    fraction: float | None
    target_loss: float | None
    target_loss_interval: Interval | None
    off_target_loss: float | None
    off_target_loss_interval: Interval | None
    selectivity: float | None
    selectivity_interval: Interval | None
    random_selectivity: float | None


class TaskKey(NamedTuple):
    """One task as it was asked: what recalls must share to be compared.

    Attributes:
        relation, language: Of the task.
        hash: Of its templates and facts.
        n: Facts asked.
        asked: How.
    """

    relation: str
    language: str
    hash: str
    n: int
    asked: Asked


@dataclass(frozen=True)
class ModelEntry:
    """Recall of one model on one task.

    Attributes:
        submissions: Those that say so; the first is shown.
        model: What was evaluated.
        task: What was asked.
        rank: Among models on this task.
        recall, interval, majority: Recall, and the share of the most common answer.
        testable: Whether a loss could be seen.
    """

    submissions: tuple[Submission, ...]
    model: ModelName
    task: TaskKey
    rank: Rank
    recall: float | None
    interval: Interval | None
    majority: float | None
    testable: bool | None


@dataclass(frozen=True)
class TransferEntry:
    """A relation's mask found in one language, evaluated in another.

    Attributes:
        submission, method: Where it is from.
        mode, positions: What the mask did.
        relation, found, tested: The relation, the language of its mask, and the one that was asked in.
        k, fraction: Size of the mask.
        loss, loss_interval: Loss there.
        own_loss: Loss in the mask's own language.
        native_loss: Loss there under the mask that was found there.
    """

    submission: Submission
    method: Method
    mode: str
    positions: str
    relation: str
    found: str
    tested: str
    k: int | None
    fraction: float | None
    loss: float | None
    loss_interval: Interval | None
    own_loss: float | None
    native_loss: float | None


class Cell(NamedTuple):
    """Mean loss over relations, and over how many."""

    loss: float
    relations: int


@dataclass(frozen=True)
class TransferMatrix:
    """Mean losses over relations, language found by language tested.

    Attributes:
        first: One of its entries, for what they share: submission, method, size, mode and positions.
        languages: Of rows (found) and columns (tested).
        cells: (found, tested) → mean loss; on the diagonal that of masks in their own language.
    """

    first: TransferEntry
    languages: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]


@dataclass(frozen=True)
class Boards:
    """All boards.

    Attributes:
        submissions: All submissions, by path.
        methods: Section → its entries: language by language, best first, random controls last.
        relations: Section → masks, relation by relation.
        models: By language, relation and rank.
        transfer: Submission by submission.
        matrices: Of `transfer`.
    """

    submissions: tuple[Submission, ...]
    methods: Mapping[Section, tuple[MethodEntry, ...]]
    relations: Mapping[Section, tuple[RelationEntry, ...]]
    models: tuple[ModelEntry, ...]
    transfer: tuple[TransferEntry, ...]
    matrices: tuple[TransferMatrix, ...]


def make_boards(submissions: Iterable[Submission]) -> Boards:
    """All boards of some submissions, in an order that depends on nothing but them."""
    known = tuple(sorted(submissions, key=where))
    transfer = [entry for one in known if "transfer" in one.boards for entry in _transfer(one)]
    masking = [one for one in known if "methods" in one.boards]
    return Boards(
        submissions=known,
        methods=_methods(masking),
        relations=_relations(masking),
        models=_models([one for one in known if "models" in one.boards]),
        transfer=tuple(transfer),
        matrices=tuple(_matrices(transfer)),
    )


def where(submission: Submission) -> str:
    """Path of a submission below `results/`, without its ending."""
    if submission.path is None:
        return submission.id
    return "/".join((*submission.path.parts[-3:-1], submission.path.stem))


def model_name(submission: Submission) -> ModelName:
    """The model of a submission."""
    identity = submission.model.id
    return ModelName(identity.name, identity.revision, identity.fingerprint, submission.model.dtype)


def asked(submission: Submission) -> Asked:
    """How a submission's main questions were put: with the config's first template and number of shots."""
    config = submission.config
    return Asked(
        submission.protocol,
        str(_first(config.get("templates"), "completion")),
        _integer(_first(config.get("shots"), 5)) or 0,
        _integer(config.get("shots_seed")) or 0,
        str(config.get("split", "eval")),
    )


def _methods(submissions: Sequence[Submission]) -> dict[Section, tuple[MethodEntry, ...]]:
    found: dict[Section, list[MethodEntry]] = {}
    for submission in submissions:
        kinds = sorted({(method.kinds, method.contrast_relations) for method in submission.methods})
        for row in submission.table("methods"):
            name = _text(row, "method")
            method = submission.method(name)
            if method is None and name != RANDOM:
                continue
            entry = _method_entry(submission, method, row)
            # Random controls stand beside the methods of every kind that they are controls of.
            own = kinds if method is None else [(method.kinds, method.contrast_relations)]
            for section in dict.fromkeys(_section(submission, *one, row) for one in own):
                found.setdefault(section, []).append(entry)
    return {section: _ranked(found[section]) for section in sorted(found)}


def _section(
    submission: Submission, kinds: tuple[str, ...], contrasted: tuple[str, ...], row: Row
) -> Section:
    config = submission.config
    masked = _masked(config)
    sizes = _sequence(config.get("ks")) or _sequence(config.get("fractions"))
    return Section(
        model=model_name(submission),
        kinds=tuple(sorted(kinds)),
        data_version=submission.data_version,
        asked=asked(submission),
        concepts=masked,
        held_out=tuple(sorted({relation_of(concept) for concept in masked} - set(contrasted))),
        sizes=tuple(sorted(size for size in sizes if isinstance(size, int | float))),
        mode=_text(row, "mode"),
        positions=_text(row, "positions"),
    )


def _method_entry(submission: Submission, method: Method | None, row: Row) -> MethodEntry:
    def rows(table: str, name: str) -> Iterator[Row]:
        for other in submission.table(table):
            alike = all(_text(other, key) == _text(row, key) for key in ("mode", "positions", "language"))
            if alike and _text(other, "method") == name:
                yield other

    random = [point.target for point in _points(rows("curves", RANDOM))]
    return MethodEntry(
        submission=submission,
        method=method,
        language=_text(row, "language") or ALL_LANGUAGES,
        rank=Rank(None),
        off_target_at_half=_number(row, "off_target_at_half"),
        off_target_at_half_interval=_loss_interval(row, "off_target_at_half_interval"),
        reached=_number(row, "reached"),
        k_at_half=_number(row, "k_at_half"),
        mean_selectivity=_number(row, "mean_selectivity"),
        mean_selectivity_interval=_interval(row, "mean_selectivity_interval"),
        random_loss=mean(random) if random else None,
        basis=_text(row, "basis"),
        targets=_integer(row.get("targets")),
        points=tuple(sorted(_points(rows("curves", _text(row, "method"))))),
    )


def _points(rows: Iterable[Row]) -> Iterator[Point]:
    for row in rows:
        k, target, off = (
            _integer(row.get("k")),
            _number(row, "target_loss"),
            _number(row, "off_target_loss"),
        )
        if k is not None and target is not None and off is not None:
            yield Point(k, target, off)


def _ranked(entries: Sequence[MethodEntry]) -> tuple[MethodEntry, ...]:
    languages: dict[str, list[MethodEntry]] = {}
    for entry in entries:
        languages.setdefault(entry.language, []).append(entry)
    found: list[MethodEntry] = []
    for language in sorted(languages, key=lambda name: (name != ALL_LANGUAGES, name)):
        competing = [entry for entry in languages[language] if entry.method is not None]
        given = ranks([Score(one.off_target_at_half, one.off_target_at_half_interval) for one in competing])
        placed = [replace(entry, rank=rank) for entry, rank in zip(competing, given, strict=True)]
        found += sorted(placed, key=_best_first)
        found += [entry for entry in languages[language] if entry.method is None]
    return tuple(found)


def _best_first(entry: MethodEntry) -> tuple[Any, ...]:
    half = entry.off_target_at_half
    return (
        inf if half is None else half,
        -(entry.mean_selectivity or 0.0),
        entry.name,
        where(entry.submission),
    )


def _relations(submissions: Sequence[Submission]) -> dict[Section, tuple[RelationEntry, ...]]:
    found: dict[Section, list[RelationEntry]] = {}
    for submission in submissions:
        for row in submission.table("masks"):
            method = submission.method(_text(row, "method"))
            if method is None or _text(row, "selection") != TOP_K or not _text(row, "masked"):
                continue
            entry = RelationEntry(
                submission=submission,
                method=method,
                relation=_text(row, "masked"),
                language=_text(row, "masked_language"),
                k=_integer(row.get("k")),
                fraction=_number(row, "fraction"),
                target_loss=_number(row, "target_loss"),
                target_loss_interval=_interval(row, "target_loss_interval"),
                off_target_loss=_number(row, "off_target_loss"),
                off_target_loss_interval=_interval(row, "off_target_loss_interval"),
                selectivity=_number(row, "selectivity"),
                selectivity_interval=_interval(row, "selectivity_interval"),
                random_selectivity=_number(row, "random_selectivity"),
            )
            section = _section(submission, method.kinds, method.contrast_relations, row)
            found.setdefault(section, []).append(entry)
    return {section: tuple(sorted(found[section], key=_by_relation)) for section in sorted(found)}


def _by_relation(entry: RelationEntry) -> tuple[Any, ...]:
    return (entry.language, entry.relation, entry.method.id, entry.k or 0, where(entry.submission))


def _models(submissions: Sequence[Submission]) -> tuple[ModelEntry, ...]:
    """Recalls that several submissions agree on are one entry; where they differ, each has its own."""
    tasks: dict[TaskKey, dict[tuple[Any, ...], ModelEntry]] = {}
    for submission in submissions:
        for row in submission.table("recall"):
            relation, language = _text(row, "relation"), _text(row, "language")
            task = submission.tasks.get(task_name(relation, language))
            if task is None:
                continue
            entry = ModelEntry(
                submissions=(submission,),
                model=model_name(submission),
                task=TaskKey(relation, language, task.hash, task.n, asked(submission)),
                rank=Rank(None),
                recall=_number(row, "recall"),
                interval=_interval(row, "recall_interval"),
                majority=_number(row, "majority"),
                testable=_flag(row, "testable"),
            )
            known = tasks.setdefault(entry.task, {})
            same = (entry.model, entry.recall, entry.interval, entry.majority)
            earlier = known.get(same, replace(entry, submissions=()))
            known[same] = replace(earlier, submissions=(*earlier.submissions, submission))
    found: list[ModelEntry] = []
    for key in sorted(tasks, key=lambda task: (task.language, task.relation, task)):
        entries = list(tasks[key].values())
        given = ranks([Score(entry.recall, entry.interval) for entry in entries], lower_is_better=False)
        placed = [replace(entry, rank=rank) for entry, rank in zip(entries, given, strict=True)]
        found += sorted(placed, key=lambda one: (-(one.recall or 0.0), one.model, where(one.submissions[0])))
    return tuple(found)


def _transfer(submission: Submission) -> Iterator[TransferEntry]:
    for row in submission.table("transfer"):
        method = submission.method(_text(row, "method"))
        if method is None:
            continue
        yield TransferEntry(
            submission=submission,
            method=method,
            mode=_text(row, "mode"),
            positions=_text(row, "positions"),
            relation=_text(row, "masked"),
            found=_text(row, "masked_language"),
            tested=_text(row, "language"),
            k=_integer(row.get("k")),
            fraction=_number(row, "fraction"),
            loss=_number(row, "loss"),
            loss_interval=_interval(row, "loss_interval"),
            own_loss=_number(row, "own_loss"),
            native_loss=_number(row, "native_loss"),
        )


def _matrices(entries: Iterable[TransferEntry]) -> Iterator[TransferMatrix]:
    groups: dict[tuple[Any, ...], list[TransferEntry]] = {}
    for entry in entries:
        key = (where(entry.submission), entry.method.id, entry.mode, entry.positions, entry.k or 0)
        groups.setdefault(key, []).append(entry)
    for key in sorted(groups):
        members = groups[key]
        losses: dict[tuple[str, str], list[float]] = {}
        for one in members:
            if one.loss is not None:
                losses.setdefault((one.found, one.tested), []).append(one.loss)
        # A mask's loss in its own language stands beside every other language: once is enough.
        own = {(one.relation, one.found): one.own_loss for one in members}
        for (_, language), loss in own.items():
            if loss is not None:
                losses.setdefault((language, language), []).append(loss)
        yield TransferMatrix(
            first=members[0],
            languages=tuple(sorted({name for one in members for name in (one.found, one.tested)})),
            cells={pair: Cell(mean(losses[pair]), len(losses[pair])) for pair in sorted(losses)},
        )


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _number(row: Row, key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _flag(row: Row, key: str) -> bool | None:
    value = row.get(key)
    return value if isinstance(value, bool) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _interval(row: Row, key: str) -> Interval | None:
    value = row.get(key)
    return value if isinstance(value, Interval) else None


def _loss_interval(row: Row, key: str) -> Interval | None:
    """An interval of a loss, which is never below 0: a low bound of −∞ is one that no draw reached."""
    interval = _interval(row, key)
    return Interval(inf, inf) if interval is not None and interval.low == -inf else interval


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _masked(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The concepts that a config masks: those it names, else every relation in every language."""
    named = _sequence(config.get("concepts"))
    every = (
        concept(str(relation), str(language))
        for relation in _sequence(config.get("relations"))
        for language in _sequence(config.get("languages"))
    )
    return tuple(sorted(set(map(str, named) if named else every)))


def _first(value: Any, default: Any) -> Any:
    return next(iter(_sequence(value)), default)
