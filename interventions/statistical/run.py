"""One statistic over one set of responses: scores, their stability, and the reference statistics of masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interventions import parallel, stability
from interventions.errors import UserError
from interventions.memory import parse_memory
from interventions.responses import Responses
from interventions.statistical.contrasts import Contrast, seeded
from interventions.statistical.options import Options
from interventions.statistics import Statistic
from interventions.units import Site

if TYPE_CHECKING:
    from interventions.prompts import Prompt

Floats = NDArray[np.float32]
# Site -> float32 [concepts, units], or a reference statistic's shape.
Values = dict[Site, Floats]

# Poolings whose values are means of responses, and the positions that they stand for in names of references.
REFERENCE_SUFFIX = {"mean": "", "mean-no-bos": "", "last": "@last_context"}
# The pooling whose values are no responses at all.
SHARES = "positive-share"
# Bytes that are made of each response while it is scored: a selection of rows; or for references: the value in
# float32, its magnitude, and two copies on the way to its rank.
SCORING_BYTES, REFERENCE_BYTES = 4, 16


def flat(values: Values, concept: int) -> Floats:
    """One concept's scores of all units, site after site."""
    return np.concatenate([array[concept] for array in values.values()])


class Run:
    """One statistic on one set of responses."""

    def __init__(
        self,
        statistic: Statistic,
        responses: Responses,
        n_concepts: int,
        options: Options,
        device: torch.device,
    ) -> None:
        self.statistic = statistic
        self.responses = responses
        self.n_concepts = n_concepts
        self.options = options
        # Row of each prompt.
        self.row_of = np.empty(responses.n_prompts, np.int64)
        self.row_of[responses.order] = np.arange(responses.n_prompts)
        self.device = device if device.type == "cuda" and not statistic.whole else torch.device("cpu")
        # The rest is for responses that are kept in memory.
        self.budget = parse_memory(options.memory) // 2
        self.constant = True

    def scores(self, contrasts: Sequence[Contrast]) -> Values:
        """Scores of all units."""
        return self._scores([contrasts])[0]

    def _scores(self, replicates: Sequence[Sequence[Contrast]]) -> list[Values]:
        """Scores of all units in several replicates, from one pass over the responses."""
        found: list[Values] = [self._empty(self.n_concepts) for _ in replicates]
        # What a statistic that compares concepts makes of each contrast, companions included, until the end.
        parts: list[list[Values]] = []
        if self.statistic.finish is not None:
            parts = [[self._empty(contrast.n_labels) for contrast in contrasts] for contrasts in replicates]
        for site, columns, block in self._blocks(SCORING_BYTES):
            for number, contrasts in enumerate(replicates):
                for index, contrast in enumerate(contrasts):
                    scores = self._block(block, contrast)
                    if parts:
                        parts[number][index][site][:, columns] = scores
                    else:
                        found[number][site][list(contrast.concepts), columns] = scores
        for values in [part for contrast_parts in parts for part in contrast_parts] if parts else found:
            self._exchange(values)
        for values, contrast_parts, contrasts in zip(found, parts, replicates, strict=bool(parts)):
            self._finish(values, contrast_parts, contrasts)
        return found

    def _empty(self, n: int) -> Values:
        return {site: np.zeros((n, self.responses.size(site)), np.float32) for site in self.responses.sites}

    def _block(self, block: Tensor, contrast: Contrast) -> Floats:
        rows = torch.from_numpy(self.row_of[contrast.rows])
        # The rows of the store are in the order of batches: reading them in that order is the fastest.
        rows, order = rows.sort()
        labels = torch.from_numpy(contrast.labels)[order]
        everything = len(rows) == len(block) and bool((rows == torch.arange(len(rows))).all())
        part = block if everything else block[rows.to(block.device)]
        options = self.statistic.options if self.statistic.finish is None else {}
        given = {name: self.options.statistic[name] for name in options}
        scores = self.statistic.function(part, labels.to(block.device), contrast.n_labels, **given)
        array: Floats = scores.cpu().numpy()
        return array

    def _blocks(self, made: int) -> Iterator[tuple[Site, slice, Tensor]]:
        """This process's blocks, on the device that scores; `made` bytes are made of each response in them."""
        rank, size = parallel.world()
        own = self.responses.sites[rank::size]
        itemsize = self.responses.itemsize
        # The same whatever the number of processes: the last digits of a product depend on its width.
        budget = self.budget * itemsize // (itemsize + made)
        for site, columns, block in self.responses.blocks(budget, whole=self.statistic.whole, sites=own):
            if self.constant and bool((block != block[0]).any()):
                self.constant = False
            yield site, columns, block.to(self.device)

    def _exchange(self, values: Mapping[Site, Floats]) -> None:
        """Hand every process the sites of all."""
        size = parallel.world().size
        if size == 1:
            return
        for index, site in enumerate(self.responses.sites):
            values[site][...] = parallel.broadcast(torch.from_numpy(values[site]), index % size).numpy()
        flags = torch.tensor([float(not self.constant)])
        self.constant = not any(bool(parallel.broadcast(flags.clone(), source)) for source in range(size))

    def _finish(self, values: Values, parts: Sequence[Values], contrasts: Sequence[Contrast]) -> None:
        """Fill in what the statistic makes of each contrast's scores of all units together."""
        assert self.statistic.finish is not None
        for part, contrast in zip(parts, contrasts, strict=True):
            if contrast.n_labels < 2:
                raise UserError("this method compares concepts with one another; score at least two")
            bounds = np.cumsum([array.shape[1] for array in part.values()])[:-1]
            whole = torch.from_numpy(np.concatenate(list(part.values()), axis=1))
            finished = self.statistic.finish(whole, **self.options.statistic).numpy()
            for site, columns in zip(part, np.split(finished, bounds, axis=1), strict=True):
                values[site][list(contrast.concepts)] = columns[: len(contrast.concepts)]

    def stability(
        self, contrasts: Sequence[Contrast], prompts: Sequence[Prompt], k: int, seed: int
    ) -> tuple[Values, list[float]]:
        """How often each unit is in the top k of resampled prompts, and the overlap of two such sets."""
        numbers = {subject: n for n, subject in enumerate(dict.fromkeys(p.subject_id for p in prompts))}
        subjects = np.array([numbers[prompt.subject_id] for prompt in prompts])
        generator = seeded(seed, "bootstrap")
        replicates = self.options.bootstrap
        drawn = [[c.resampled(subjects, generator) for c in contrasts] for _ in range(replicates)]
        total = sum(self.responses.size(site) for site in self.responses.sites)
        counts = np.zeros((self.n_concepts, total), np.int64)
        together = max(1, self.budget // (4 * self.n_concepts * total))
        for start in range(0, replicates, together):
            for values in self._scores(drawn[start : start + together]):
                for number in range(self.n_concepts):
                    counts[number, stability.top_k(flat(values, number), k)] += 1
        results = [stability.stability(row, replicates, min(k, total)) for row in counts]
        bounds = np.cumsum([self.responses.size(site) for site in self.responses.sites])[:-1]
        frequency = np.stack([result.frequency for result in results])
        by_site = dict(zip(self.responses.sites, np.split(frequency, bounds, axis=1), strict=True))
        return by_site, [round(result.overlap, 6) for result in results]

    def references(
        self, prompts: Sequence[Prompt], concepts: Sequence[str], contrasts: Sequence[Contrast], seed: int
    ) -> dict[str, Values]:
        """Reference statistics of masks, as far as the pooling has them.

        `mean_abs` is the mean magnitude of the pooled responses; of a mean over tokens, it is at most the mean
        over tokens of the magnitude.
        """
        if self.options.pooling == SHARES:
            return {}
        if self.options.pooling not in REFERENCE_SUFFIX:
            return {"mean_abs": self._mean_abs()}
        suffix = REFERENCE_SUFFIX[self.options.pooling]
        weights, positives, samples = self._reference_rows(prompts, contrasts, concepts, seed)
        shapes = {"mean": (self.n_concepts,), "mean_abs": ()}
        shapes |= {f"percentile-{p:g}": (self.n_concepts,) for p in self.options.percentiles}
        if samples.size:
            shapes["samples"] = samples.shape
        found: dict[str, Values] = {
            name if name == "mean_abs" else name + suffix: {
                site: np.empty((*shape, self.responses.size(site)), np.float32)
                for site in self.responses.sites
            }
            for name, shape in shapes.items()
        }
        for site, columns, block in self._blocks(REFERENCE_BYTES):
            block = block.float()
            found["mean" + suffix][site][:, columns] = (weights.to(block.device) @ block).cpu().numpy()
            found["mean_abs"][site][columns] = block.abs().mean(dim=0).cpu().numpy()
            if samples.size:
                found["samples" + suffix][site][..., columns] = block[torch.from_numpy(samples)].cpu().numpy()
            for number, rows in enumerate(positives if self.options.percentiles else ()):
                ordered = _sorted_rows(block[torch.from_numpy(rows).to(block.device)])
                for percentile in self.options.percentiles:
                    found[f"percentile-{percentile:g}{suffix}"][site][number, columns] = _percentile(
                        ordered, percentile
                    )
        for by_site in found.values():
            self._exchange(by_site)
        return found

    def _mean_abs(self) -> Values:
        found: Values = {
            site: np.empty(self.responses.size(site), np.float32) for site in self.responses.sites
        }
        for site, columns, block in self._blocks(REFERENCE_BYTES):
            found[site][columns] = block.float().abs().mean(dim=0).cpu().numpy()
        self._exchange(found)
        return found

    def _reference_rows(
        self, prompts: Sequence[Prompt], contrasts: Sequence[Contrast], concepts: Sequence[str], seed: int
    ) -> tuple[Tensor, list[NDArray[np.int64]], NDArray[np.int64]]:
        """Rows behind the references.

        Returns:
            Weights [concepts, rows] of the mean over negatives, every concept among them counting the same;
            the rows of each concept's positives; and rows [concepts, samples] drawn from its negatives.
        """
        _, concept_of = np.unique([prompt.concept for prompt in prompts], return_inverse=True)
        weights = np.zeros((self.n_concepts, self.responses.n_prompts), np.float32)
        positives: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * self.n_concepts
        samples = np.empty((self.n_concepts, self.options.samples), np.int64)
        for contrast in contrasts:
            for label, number in enumerate(contrast.concepts):
                positives[number] = self.row_of[contrast.rows[contrast.labels == label]]
                negative = contrast.rows[contrast.labels != label]
                sizes = np.bincount(concept_of[negative])
                share = 1 / (np.count_nonzero(sizes) * sizes[concept_of[negative]])
                np.add.at(weights[number], self.row_of[negative], share)
                if self.options.samples:
                    drawn = seeded(seed, f"samples:{concepts[number]}").choice(
                        negative, self.options.samples, replace=len(negative) < self.options.samples
                    )
                    samples[number] = self.row_of[drawn]
        return torch.from_numpy(weights), positives, samples


def _sorted_rows(block: Tensor) -> Tensor:
    """Each unit's responses in order, [rows, units]."""
    if block.device.type == "cpu":  # NumPy sorts many times faster than torch does here
        ordered = block.T.contiguous().numpy()
        ordered.sort(axis=1)
        return torch.from_numpy(ordered).T
    return block.sort(dim=0).values


def _percentile(ordered: Tensor, percentile: float) -> Floats:
    """Linear interpolation between the two nearest of the sorted rows, as `numpy.percentile` does."""
    position = percentile / 100 * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    value: Floats = torch.lerp(ordered[low], ordered[high], position - low).cpu().numpy()
    return value
