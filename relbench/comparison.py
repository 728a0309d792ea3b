"""Two logged lm-eval runs compared metric by metric, ours or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from relbench.analysis.intervals import paired_interval, percentile_interval, proportion_interval
from relbench.analysis.pairing import Pair, pair
from relbench.analysis.resampling import ratio_draws
from relbench.analysis.significance import mcnemar_p, sign_flip_p
from relbench.logged import LoggedSample, read_logged
from relbench.tables import Interval


@dataclass(frozen=True)
class Change:
    """One metric of one task in both runs.

    Documents of the probes are clustered by their subject, other documents stand for themselves.

    Attributes:
        task, filter, metric: Which.
        n: Number of paired samples.
        before, after: Means.
        delta: `after - before`.
        interval: Newcombe's for metrics of 0 and 1 whose subjects occur once, otherwise a bootstrap over
            subjects; None for a single one.
        p: Two-sided, of no net change: McNemar's exact test, or the sign-flip test where Newcombe's interval
            does not apply.
        loss, gain: Shares of the right that became wrong and of the wrong that became right; None for
            metrics that are not 0 or 1, or without any such sample.
        loss_interval, gain_interval: Their Clopper–Pearson intervals.
    """

    task: str
    filter: str
    metric: str
    n: int
    before: float
    after: float
    delta: float
    interval: Interval | None
    p: float
    loss: float | None
    loss_interval: Interval | None
    gain: float | None
    gain_interval: Interval | None


def compare_runs(base: str | Path, masked: str | Path) -> tuple[list[Change], list[str]]:
    """Changes of every metric that both runs report, and what only one of them does.

    Raises:
        UserError: A folder has no logged samples, or samples do not pair.
    """
    by_task: dict[tuple[str, str], list[Pair[LoggedSample]]] = {}
    for one in pair(read_logged(base), read_logged(masked)):
        by_task.setdefault((one.before.task, one.before.filter), []).append(one)
    changes: list[Change] = []
    remarks: list[str] = []
    for (task, filter_name), pairs in sorted(by_task.items()):
        first = [set(one.before.metrics) for one in pairs]
        second = [set(one.after.metrics) for one in pairs]
        shared = set.intersection(*first, *second)
        alone = set.union(*first, *second) - shared
        if alone:
            remarks.append(f"{task}: not in every sample of both runs, left out: {', '.join(sorted(alone))}")
        for metric in sorted(shared):
            values = [one.metrics[metric] for both in pairs for one in (both.before, both.after)]
            if np.isfinite(values).all():
                changes.append(_change(task, filter_name, metric, pairs))
            else:
                remarks.append(f"{task}: {metric} is not a finite number in every sample, left out")
    return changes, remarks


def _change(task: str, filter_name: str, metric: str, pairs: Sequence[Pair[LoggedSample]]) -> Change:
    before = np.array([one.before.metrics[metric] for one in pairs])
    after = np.array([one.after.metrics[metric] for one in pairs])
    clusters = [one.before.subject or str(number) for number, one in enumerate(pairs)]
    binary = bool(np.isin([before, after], (0, 1)).all())
    right, lost, gained = (int(np.sum(which)) for which in (before == 1, before > after, before < after))
    wrong = len(pairs) - right
    if binary and len(set(clusters)) == len(pairs):
        interval = paired_interval(right - lost, lost, gained, wrong - gained)
        p = float(mcnemar_p(lost, gained))
    else:
        interval = _mean_interval(after - before, clusters)
        p = sign_flip_p(after - before, clusters)
    return Change(
        task=task,
        filter=filter_name,
        metric=metric,
        n=len(pairs),
        before=mean(before.tolist()),
        after=mean(after.tolist()),
        delta=mean((after - before).tolist()),
        interval=interval,
        p=p,
        loss=lost / right if binary and right else None,
        loss_interval=proportion_interval(lost, right) if binary else None,
        gain=gained / wrong if binary and wrong else None,
        gain_interval=proportion_interval(gained, wrong) if binary else None,
    )


def _mean_interval(values: NDArray[np.float64], clusters: Sequence[str]) -> Interval | None:
    """Bootstrap interval of a mean, whole clusters drawn."""
    _, place = np.unique(np.array(clusters), return_inverse=True)
    sums, sizes = np.bincount(place, values), np.bincount(place)
    return percentile_interval(ratio_draws(sums, sizes, np.random.default_rng(0)), units=len(sums))
