"""Overlap of masks, against random sets of the same size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from interventions.units import Site
from relbench.analysis.intervals import TAIL
from relbench.tables import Interval

# Site → sorted indices.
Units = Mapping[Site, NDArray[np.int32]]


class Chosen(NamedTuple):
    """A mask's units, and every site that they were chosen from with its number of units."""

    units: Units
    sites: Mapping[Site, int]


@dataclass(frozen=True)
class Overlap:
    """Units that two masks share.

    Attributes:
        first, second: Sizes of the masks.
        shared: Units in both.
        jaccard: Shared units over units in either; None for two empty masks.
        expected: Mean number of shared units of random sets of these sizes (hypergeometric).
        expected_interval: The middle 95 % of that distribution.
        expected_by_layer: The mean when the random sets have as many units in each site as the masks.
        p: Chance of random sets of these sizes to share as many or more.
    """

    first: int
    second: int
    shared: int
    jaccard: float | None
    expected: float
    expected_interval: Interval
    expected_by_layer: float
    p: float


def overlap_of(first: Chosen, second: Chosen) -> Overlap:
    """Overlap of two masks that were chosen from the same sites.

    Raises:
        ValueError: They were not, or a mask has units in another site.
    """
    sizes = first.sites
    if dict(sizes) != dict(second.sites) or not first.units.keys() | second.units.keys() <= sizes.keys():
        raise ValueError("the masks were not chosen from the same sites")
    return _overlap(first.units, second.units, sizes)


def _overlap(first: Units, second: Units, sizes: Mapping[Site, int]) -> Overlap:
    empty = np.zeros(0, np.int32)
    a = {site: len(first.get(site, empty)) for site in sizes}
    b = {site: len(second.get(site, empty)) for site in sizes}
    shared = sum(
        len(np.intersect1d(first[site], second[site], assume_unique=True))
        for site in first.keys() & second.keys()
    )
    n_first, n_second, n = sum(a.values()), sum(b.values()), sum(sizes.values())
    either = n_first + n_second - shared
    chance = stats.hypergeom(n, n_first, n_second)
    low, high = chance.ppf([TAIL, 1 - TAIL])
    return Overlap(
        first=n_first,
        second=n_second,
        shared=shared,
        jaccard=shared / either if either else None,
        expected=n_first * n_second / n,
        expected_interval=Interval(float(low), float(high)),
        expected_by_layer=sum(a[site] * b[site] / size for site, size in sizes.items()),
        p=float(chance.sf(shared - 1)),
    )
