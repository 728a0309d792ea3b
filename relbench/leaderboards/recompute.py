"""`relbench leaderboard recompute`: results made again from samples, after the statistics have changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from interventions.errors import UserError
from relbench.leaderboards.aggregates import differences
from relbench.leaderboards.names import RESULTS
from relbench.leaderboards.problems import Problem, limited
from relbench.leaderboards.rules import Rules, load_rules
from relbench.leaderboards.submission import Submission, read_submission
from relbench.leaderboards.tree import submission_files
from relbench.leaderboards.verify import judge, past_tasks
from relbench.leaderboards.writing import write_json


@dataclass(frozen=True)
class Recomputed:
    """What `recompute` did.

    Attributes:
        changed: Submissions whose results were written again.
        problems: Those that no computing mends; the submissions that have them are left as they are.
    """

    changed: tuple[Path, ...]
    problems: tuple[Problem, ...]


def recompute(
    root: Path, *, rules: Rules | None = None, progress: Callable[[str], None] = lambda _: None
) -> Recomputed:
    """Write again the results of the submissions whose only fault is that this version computes others.

    A statistic that changes changes the numbers of everyone's submissions: the samples stay, and so does all
    else that a submission says.

    Args:
        root: The leaderboards folder.
        rules: Of the boards; those of this version when not given.
        progress: Told each file before it is checked.

    Raises:
        UserError: There is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"{root} is no folder; give the one that holds {RESULTS}/")
    rules = rules or load_rules()
    problems: list[Problem] = []
    past = past_tasks(root, problems)
    changed = []
    for path in submission_files(root):
        file = path.relative_to(root).as_posix()
        progress(file)
        read = read_submission(path, file)
        if not isinstance(read, Submission):
            problems += limited(file, read)
            continue
        judged = judge(read, root, rules, past)
        problems += limited(file, judged.problems)
        if judged.problems or judged.expected is None:
            continue
        if any(differences(file, read.results, judged.expected)):
            write_json(path, replace(read, results=judged.expected).to_dict())
            changed.append(path)
    return Recomputed(tuple(changed), tuple(problems))
