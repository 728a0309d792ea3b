"""Two logged lm-eval runs compared metric by metric, ours or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import mean

import numpy as np
from scipy.stats import bootstrap

from relbench.deltas import (
    BOOTSTRAP_DRAWS,
    CONFIDENCE,
    Interval,
    Pair,
    pair,
    paired_interval,
)
from relbench.logged import LoggedSample, read_logged


@dataclass(frozen=True)
class Change:
    """One metric of one task in both runs.

    Attributes:
        task, metric: Which.
        n: Number of paired samples.
        before, after: Means.
        delta: `after - before`.
        interval: Newcombe's for metrics of 0 and 1; otherwise a bootstrap over samples.
        loss, gain: Shares of the right that became wrong and of the wrong that became right; None for
            metrics that are not 0 or 1, NaN without any such sample.
    """

    task: str
    metric: str
    n: int
    before: float
    after: float
    delta: float
    interval: Interval
    loss: float | None
    gain: float | None


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
    for (task, _), pairs in sorted(by_task.items()):
        first = [set(one.before.metrics) for one in pairs]
        second = [set(one.after.metrics) for one in pairs]
        shared = set.intersection(*first, *second)
        alone = set.union(*first, *second) - shared
        if alone:
            remarks.append(f"{task}: not in every sample of both runs, left out: {', '.join(sorted(alone))}")
        changes.extend(_change(task, metric, pairs) for metric in sorted(shared))
    return changes, remarks


def _change(task: str, metric: str, pairs: Sequence[Pair[LoggedSample]]) -> Change:
    values = [(one.before.metrics[metric], one.after.metrics[metric]) for one in pairs]
    differences = [after - before for before, after in values]
    binary = all(value in (0, 1) for row in values for value in row)
    loss = gain = None
    if binary:
        both = sum(row == (1, 1) for row in values)
        lost = sum(row == (1, 0) for row in values)
        gained = sum(row == (0, 1) for row in values)
        neither = sum(row == (0, 0) for row in values)
        interval = paired_interval(both, lost, gained, neither)
        loss = lost / (both + lost) if both + lost else nan
        gain = gained / (gained + neither) if gained + neither else nan
    else:
        interval = _bootstrap_mean(differences)
    return Change(
        task=task,
        metric=metric,
        n=len(values),
        before=mean(before for before, _ in values),
        after=mean(after for _, after in values),
        delta=mean(differences),
        interval=interval,
        loss=loss,
        gain=gain,
    )


def _bootstrap_mean(values: Sequence[float]) -> Interval:
    if len(values) < 2:
        return Interval(nan, nan)
    if max(values) == min(values):
        return Interval(values[0], values[0])
    found = bootstrap(
        (values,),
        np.mean,
        n_resamples=BOOTSTRAP_DRAWS,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=0,
    ).confidence_interval
    return Interval(float(found.low), float(found.high))
