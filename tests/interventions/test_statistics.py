"""Statistics against scikit-learn, SciPy and hand-made cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, mutual_info_score, roc_auc_score
from torch import Tensor

from interventions import ranking, statistics

Case = tuple[Tensor, Tensor, int]


def make_case(kind: str, n_prompts: int = 83, n_units: int = 21, n_concepts: int = 4, seed: int = 0) -> Case:
    """Responses of one kind and labels with every concept and some prompts of none."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((n_prompts, n_units))
    if kind == "relu":
        values = np.maximum(values, 0)
    elif kind == "few-values":
        values = np.round(values)
    elif kind == "half":
        values = values.astype(np.float16)
    elif kind == "signed-zeros":
        values = np.where(random.random(values.shape) < 0.5, -0.0, 0.0) + (values > 1)
    elif kind == "constant":
        values = np.zeros_like(values)
    elif kind == "huge":
        values = values * 1e30
    labels = random.integers(-1, n_concepts, n_prompts)
    labels[: n_concepts * 2] = np.arange(n_concepts * 2) % n_concepts
    return torch.from_numpy(values.astype(np.float32)), torch.from_numpy(labels), n_concepts


KINDS = ("continuous", "relu", "few-values", "half", "signed-zeros", "constant", "huge")


def reference(function: object, case: Case) -> np.ndarray:
    """One library call a unit and concept."""
    responses, labels, n_concepts = case
    values, truth = responses.double().numpy(), labels.numpy()
    return np.array(
        [[function(truth == c, values[:, u]) for u in range(values.shape[1])] for c in range(n_concepts)]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_average_precision_is_scikit_learns(kind: str) -> None:
    case = make_case(kind)
    np.testing.assert_allclose(
        statistics.average_precision(*case), reference(average_precision_score, case), atol=1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
def test_auroc_is_scikit_learns(kind: str) -> None:
    case = make_case(kind)
    np.testing.assert_allclose(statistics.auroc(*case), reference(roc_auc_score, case), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 40).flatmap(
        lambda n: st.tuples(
            st.lists(st.sampled_from([-2.0, -0.0, 0.0, 1.0, 3.5]), min_size=n, max_size=n),
            st.lists(st.integers(-1, 2), min_size=n, max_size=n),
        )
    )
)
def test_rank_statistics_on_any_ties(drawn: tuple[list[float], list[int]]) -> None:
    values, labels = torch.tensor(drawn[0])[:, None], torch.tensor(drawn[1])
    present = [c for c in range(3) if 0 < int((labels == c).sum()) < len(labels)]
    if not present:
        return
    numbers = torch.full_like(labels, -1)
    for number, concept in enumerate(present):
        numbers[labels == concept] = number
    case = (values, numbers, len(present))
    np.testing.assert_allclose(
        statistics.average_precision(*case), reference(average_precision_score, case), atol=1e-6
    )
    np.testing.assert_allclose(statistics.auroc(*case), reference(roc_auc_score, case), atol=1e-6)


def test_many_concepts_and_many_prompts() -> None:
    # More concepts than a byte counts, and more prompts than 16 bits would.
    case = make_case("half", n_prompts=70_000, n_units=2, n_concepts=3)
    np.testing.assert_allclose(
        statistics.average_precision(*case), reference(average_precision_score, case), atol=1e-6
    )
    case = make_case("half", n_prompts=900, n_units=2, n_concepts=300)
    np.testing.assert_allclose(
        statistics.average_precision(*case), reference(average_precision_score, case), atol=1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
def test_accelerator_ranks_equal_the_processors(kind: str) -> None:
    responses, labels, n_concepts = make_case(kind)
    numbers = torch.where(labels < 0, n_concepts, labels)
    groups = ranking._groups(torch.bincount(numbers)[:n_concepts].tolist())
    block = responses.T.contiguous()
    processor = ranking.rank_numpy(block.numpy(), numbers.numpy().astype(np.uint8), groups)
    accelerator = ranking.rank_torch(block, numbers, groups)
    for name in ("first", "last", "within"):
        expected = np.broadcast_to(getattr(processor, name), block.shape)
        found = np.broadcast_to(getattr(accelerator, name).numpy(), block.shape)
        np.testing.assert_array_equal(found, expected)


def test_accelerator_scores_equal_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("half")
    names = ("average-precision", "auroc", "mutual-information")
    expected = [statistics.STATISTICS[name].function(*case) for name in names]
    monkeypatch.setattr(ranking, "_on_cpu", ranking._on_device)
    for name, scores in zip(names, expected, strict=True):
        torch.testing.assert_close(statistics.STATISTICS[name].function(*case), scores, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["average-precision", "auroc", "mutual-information", "welch-t", "cohens-d"])
def test_a_units_score_does_not_depend_on_tiles_threads_or_other_units(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = statistics.STATISTICS[name].function
    responses, labels, n_concepts = make_case("relu", n_units=40)
    whole = function(responses, labels, n_concepts)
    monkeypatch.setattr(ranking, "CPU_TILE_BYTES", 1)
    monkeypatch.setattr(statistics, "CHUNK_BYTES", 1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        tiled = function(responses, labels, n_concepts)
    finally:
        torch.set_num_threads(threads)
    alone = torch.cat([function(responses[:, u : u + 1], labels, n_concepts) for u in range(40)], dim=1)
    if name in ("welch-t", "cohens-d"):  # a matrix product's last bits depend on its shape
        torch.testing.assert_close(tiled, whole, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(alone, whole, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(tiled, whole) and torch.equal(alone, whole)


@pytest.mark.parametrize("kind", ["continuous", "relu", "few-values", "half"])
def test_moment_statistics_are_scipys(kind: str) -> None:
    case = make_case(kind)
    np.testing.assert_allclose(
        statistics.mean_difference(*case),
        reference(lambda y, x: x[y].mean() - x[~y].mean(), case),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        statistics.welch_t(*case),
        reference(lambda y, x: stats.ttest_ind(x[y], x[~y], equal_var=False).statistic, case),
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        statistics.point_biserial(*case),
        reference(lambda y, x: stats.pointbiserialr(y, x).statistic, case),
        rtol=1e-5,
        atol=1e-6,
    )

    def cohen(y: np.ndarray, x: np.ndarray) -> float:
        a, b = x[y], x[~y]
        pooled = ((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / (len(x) - 2)
        return float((a.mean() - b.mean()) / math.sqrt(pooled))

    np.testing.assert_allclose(statistics.cohens_d(*case), reference(cohen, case), rtol=1e-5, atol=1e-6)


def test_moments_survive_a_large_offset() -> None:
    responses, labels, n = make_case("continuous")
    shifted = (responses.double() + 4096).float()
    expected = reference(
        lambda y, x: stats.ttest_ind(x[y], x[~y], equal_var=False).statistic, (shifted, labels, n)
    )
    np.testing.assert_allclose(statistics.welch_t(shifted, labels, n), expected, rtol=1e-4, atol=1e-5)


def test_constant_units_are_at_chance() -> None:
    responses, labels, n = make_case("constant")
    share = torch.bincount(labels + 1)[1:, None] / len(labels)
    scores = statistics.average_precision(responses, labels, n)
    torch.testing.assert_close(scores, share.expand_as(scores))
    assert torch.equal(statistics.auroc(responses, labels, n), torch.full((n, responses.shape[1]), 0.5))
    for name in ("mean-difference", "cohens-d", "welch-t", "point-biserial", "mutual-information"):
        scores = statistics.STATISTICS[name].function(responses, labels, n)
        torch.testing.assert_close(scores, torch.zeros_like(scores))


@pytest.mark.parametrize("kind", ["continuous", "relu", "few-values"])
@pytest.mark.parametrize("bins", [2, 7])
def test_mutual_information_is_scikit_learns_on_the_same_bins(kind: str, bins: int) -> None:
    responses, labels, n = make_case(kind)
    middle = stats.rankdata(-responses.numpy(), axis=0)  # average ranks, the strongest first
    binned = np.ceil((middle - 0.5) / len(labels) * bins)
    expected = reference(lambda y, x: mutual_info_score(y, x), (torch.from_numpy(binned), labels, n))
    np.testing.assert_allclose(
        statistics.mutual_information(responses, labels, n, bins=bins), expected, atol=1e-6
    )


def test_lape_finds_the_specific_unit_of_each_concept() -> None:
    # Units: on for concept 0 alone; on for all alike; on for concept 1 but rarely; never on.
    rates = torch.tensor([[0.8, 0.6, 0.001, 0.0], [0.0, 0.6, 0.01, 0.0], [0.0, 0.6, 0.0, 0.0]])
    labels = torch.arange(3).repeat_interleave(5)
    scores = statistics.lape(rates[labels], labels, 3, activity_quantile=0.5)
    torch.testing.assert_close(scores[0, 0], torch.tensor(math.log(3)))
    torch.testing.assert_close(scores[:, 1], torch.zeros(3))
    assert scores[0].argmax() == 0
    # The activity filter drops what is hardly ever on.
    assert statistics.lape(rates[labels], labels, 3, activity_quantile=0.95)[1, 2] == 0
    # Zeros that were averaged to a hair below zero are still never on.
    below = torch.tensor([[-1e-18, 0.5], [-1e-18, 0.0]], dtype=torch.float64)
    assert torch.isfinite(statistics.lape_scores(below)).all()
    with pytest.raises(ValueError, match="at least 2 concepts"):
        statistics.lape(rates[labels][:, :1], torch.where(labels > 0, -1, 0), 1)


def test_probe_puts_its_weight_on_the_informative_unit() -> None:
    responses, labels, n = make_case("continuous", n_prompts=120)
    responses[labels == 2, 5] += 4
    responses[labels == 3, 6] -= 4
    weights = statistics.probe(responses, labels, n)
    assert weights[2].argmax() == 5 and weights[3].argmin() == 6
    # L1 leaves most units out.
    assert (weights[2] == 0).float().mean() > 0.2


def test_random_is_seeded() -> None:
    first, second = (statistics.random(3, 10, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second) and first.unique().numel() == 30


@pytest.mark.parametrize("name", sorted(statistics.STATISTICS))
def test_statistics_refuse_what_they_cannot_score(name: str) -> None:
    statistic = statistics.STATISTICS[name]
    responses = torch.randn(6, 3)
    for labels, n in (
        (torch.tensor([0, 0, 0, 1, 1, 1]), 3),  # a concept without positives
        (torch.zeros(6, dtype=torch.long), 1),  # no negatives
        (torch.tensor([0, 1]), 2),  # another length
        (torch.tensor([0, 0, 0, 1, 1, 2]), 2),  # an unknown label
    ):
        with pytest.raises(ValueError):
            statistic.function(responses, labels, n)
