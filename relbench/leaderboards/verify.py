"""`relbench leaderboard verify`: every problem of a leaderboards folder, one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from interventions.errors import UserError
from interventions.files import sha256_json
from relbench.leaderboards.aggregates import Results, differences, results_of, sweep_of
from relbench.leaderboards.check_samples import read_checked
from relbench.leaderboards.checks import (
    Found,
    Past,
    board_findings,
    data_findings,
    meta_problems,
    method_findings,
    parsed_config,
    place_findings,
    treatment_findings,
)
from relbench.leaderboards.limits import META_BYTES
from relbench.leaderboards.names import RESULTS
from relbench.leaderboards.problems import Problem, Refused, limited
from relbench.leaderboards.questions import task_names
from relbench.leaderboards.reading import read_json
from relbench.leaderboards.rules import Rules, load_rules
from relbench.leaderboards.schema import schema_problems
from relbench.leaderboards.submission import Submission, read_submission
from relbench.leaderboards.tree import entries, layout_problems, submission_files

# Hashes that tasks had before their data changed: task → hashes. Kept by whoever changes a task.
PAST = "past_tasks.json"
_PAST_SCHEMA = {
    "type": "object",
    "additionalProperties": {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
}


@dataclass(frozen=True)
class Verified:
    """What a leaderboards folder holds.

    Attributes:
        submissions: Those of the right form, sorted by path.
        problems: All problems, sorted; none when everything is right.
    """

    submissions: tuple[Submission, ...]
    problems: tuple[Problem, ...]


def verify(
    root: Path,
    *,
    rules: Rules | None = None,
    only: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verified:
    """Check every submission of a leaderboards folder against its own samples and the installed tasks.

    Args:
        root: The folder; `results/` lies in it.
        rules: Of the boards; those of this version when not given.
        only: Check this submission's file alone; the others count for duplicates.
        progress: Told each file before it is checked.

    Raises:
        UserError: There is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"{root} is no folder; give the one that holds {RESULTS}/")
    rules = rules or load_rules()
    problems = layout_problems(root)
    past = past_tasks(root, problems)
    submissions = []
    for path in submission_files(root):
        file = path.relative_to(root).as_posix()
        read = read_submission(path, file)
        if isinstance(read, Submission):
            submissions.append(read)
        else:
            problems += limited(file, read)
    problems += _orphans(root, submissions)
    # Of two that are the same, the one that is asked about is the later.
    problems += duplicates(root, sorted(submissions, key=lambda one: one.path == only))
    for submission in submissions:
        if only is None or submission.path == only:
            assert submission.path is not None
            file = submission.path.relative_to(root).as_posix()
            progress(file)
            problems += limited(file, _problems(submission, file, root, rules, past))
    return Verified(tuple(submissions), tuple(sorted(set(problems), key=lambda one: one.place)))


def _problems(submission: Submission, file: str, root: Path, rules: Rules, past: Past) -> list[Problem]:
    """All problems of a submission; one that the checks fail on is refused, and does not keep others from being
    verified."""
    try:
        judged = judge(submission, root, rules, past)
        if judged.expected is None:
            return [*judged.problems]
        return [*judged.problems, *differences(file, submission.results, judged.expected)]
    except Exception as error:
        what = (
            f"expected a submission that can be judged, found one that raises {type(error).__name__}: {error}"
        )
        return [Problem(file, "", what)]


@dataclass(frozen=True)
class Judged:
    """What is to be said of one submission.

    Attributes:
        problems: Everything that is wrong with it but for its results.
        expected: The results that its samples give; None when what it rests on is wrong.
    """

    problems: tuple[Problem, ...]
    expected: Results | None


def judge(submission: Submission, root: Path, rules: Rules, past: Past) -> Judged:
    """Check one submission of the right form, and compute its results from its samples."""
    assert submission.path is not None
    file = submission.path.relative_to(root).as_posix()

    def named(found: Iterable[Found], where: str = file) -> list[Problem]:
        return [Problem(where, one.field, one.what) for one in found]

    problems = named(place_findings(submission, root)) + meta_problems(submission, root)
    config = parsed_config(submission)
    if isinstance(config, list):
        return Judged((*problems, *named(config)), None)
    try:
        basis = [
            *data_findings(submission, config, past),
            *method_findings(submission, config),
            *treatment_findings(submission, config),
        ]
        problems += named([*basis, *board_findings(submission, config, rules)])
    except UserError as error:
        said = f"expected one that the installed tasks allow, found that {error}"
        return Judged((*problems, Problem(file, "config", said)), None)
    if submission.tasks.keys() != task_names(config).keys():
        return Judged(tuple(problems), None)
    samples = read_checked(submission, config)
    where = f"{Path(file).parent.as_posix()}/{submission.samples.path}"
    problems += named(samples.found, where)
    if basis or samples.found:
        # What cannot be right has no results to compare.
        return Judged(tuple(problems), None)
    try:
        return Judged(tuple(problems), results_of(sweep_of(config, submission.treatments, samples.samples)))
    except UserError as error:
        said = f"expected samples that pair with the baseline's, found that {error}"
        return Judged((*problems, Problem(where, "", said)), None)


def past_tasks(root: Path, problems: list[Problem]) -> Past:
    """The hashes that tasks had before; what is wrong with their file is added to `problems`."""
    path = root / PAST
    if not path.exists() and not path.is_symlink():
        return {}
    try:
        raw = read_json(path, most=META_BYTES)
    except Refused as refusal:
        problems.append(Problem(PAST, refusal.field, refusal.what))
        return {}
    found = schema_problems(PAST, raw, _PAST_SCHEMA)
    problems += found
    return {} if found else {task: frozenset(hashes) for task, hashes in raw.items()}


def _orphans(root: Path, submissions: Sequence[Submission]) -> Iterator[Problem]:
    """Samples that belong to no submission."""
    owned = {
        (one.path.parent / one.samples.path).relative_to(root).as_posix() for one in submissions if one.path
    }
    readable = {path.relative_to(root).as_posix() for path in submission_files(root)}
    for entry in entries(root):
        path = Path(entry.path).relative_to(root)
        if entry.is_file(follow_symlinks=False) and path.name.endswith(".jsonl.gz"):
            owner = path.parent.parent / f"{path.name.removesuffix('.jsonl.gz')}.json"
            if path.as_posix() not in owned and owner.as_posix() not in readable:
                yield Problem(path.as_posix(), "", f"expected {owner.name} of these samples, found none")


def duplicates(root: Path, submissions: Sequence[Submission]) -> Iterator[Problem]:
    """Submissions that say what an earlier one (by path) has said already."""
    seen: dict[tuple[str, str], str] = {}
    for submission in submissions:
        assert submission.path is not None
        file = submission.path.relative_to(root).as_posix()
        for field, value in identities(submission).items():
            first = seen.setdefault((field, value), file)
            if first != file:
                yield Problem(file, field, f"expected no duplicate, found the same in {first}")


def identities(submission: Submission) -> Mapping[str, str]:
    """What no two submissions share: field → value.

    The same weights under the same config, tasks and version of the code are the same run, whoever did it and on
    whatever machine; and so are the same weights, tasks and outcomes, whatever they are called.
    """
    resolved = parsed_config(submission)
    whole = submission.config if isinstance(resolved, list) else resolved.to_dict()
    config = {
        key: value
        for key, value in whole.items()
        if key not in ("model", "device", "batch_size", "log_samples")
    }
    run = [submission.model.id.fingerprint, submission.data_version, config]
    code = sorted({str(method.code["relbench"]) for method in submission.methods})
    masks = [treatment.digest for treatment in submission.treatments]
    outcomes = sorted(
        [str(row.get(key)) for key in ("relation", "language", "n", "right", "recall", "lost", "gained")]
        for name in ("recall", "counts")
        for row in submission.table(name)
    )
    return {
        "id": submission.id,
        "samples.sha256": submission.samples.sha256,
        "config": sha256_json([run, code, masks]),
        "results": sha256_json([submission.model.id.fingerprint, submission.data_version, outcomes]),
    }
