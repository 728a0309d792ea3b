"""Scoring methods: the registry, and statistical methods against scikit-learn and NumPy."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from interventions import methods, stability
from interventions.errors import UserError
from interventions.methods import MethodResult, ScoringMethod, get_method, method_names
from interventions.prompts import Prompt
from interventions.responses import collect
from interventions.statistical.contrasts import Contrast, make_contrasts
from interventions.units import Site, layout_of
from tests.tiny import tiny_model, tiny_tokenizer

STATISTICAL = (
    "average-precision",
    "auroc",
    "mean-difference",
    "cohens-d",
    "welch-t",
    "point-biserial",
    "mutual-information",
    "lape",
    "probe",
    "random",
)
CONCEPTS = ("capital@x", "money@x", "speech@x")


def make_prompts(n: int = 12) -> list[Prompt]:
    """`n` prompts of each concept that share their words, so that no unit tells concepts apart perfectly."""
    random = np.random.default_rng(0)
    words = "abcdefgh"
    prompts = []
    for number, concept in enumerate(CONCEPTS):
        for index in range(n):
            text = "".join(random.choice(list(words), 6 + index % 3 + number))
            prompts.append(
                Prompt(text, " y", (" y",), concept, f"{concept}:{index}", f"s{index}", f"a{index % 4}")
            )
    return prompts


def run(
    name: str, prompts: list[Prompt] | None = None, concepts: Any = CONCEPTS, **options: Any
) -> MethodResult:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*units tie at rank")
        return get_method(name).score(
            tiny_model(),
            tiny_tokenizer(),
            make_prompts() if prompts is None else prompts,
            concepts,
            kinds=("act", "down"),
            seed=options.pop("seed", 0),
            options=options,
            progress=False,
        )


def pooled(site: Site, prompts: list[Prompt]) -> np.ndarray:
    return collect(tiny_model(), tiny_tokenizer(), prompts, [site]).site(site).double().numpy()


# --- registry


def test_every_built_in_method_keeps_the_protocol() -> None:
    for name in methods.METHODS:
        method = get_method(name)
        assert isinstance(method, ScoringMethod) and method.name == name
        assert method.template in ("question", "completion") and method.shots >= 0
    assert set(STATISTICAL) <= set(method_names())
    assert (
        get_method("average-precision").shots == 0 and get_method("average-precision").template == "question"
    )


class Foreign:
    """A third-party method."""

    name = "length-of-name"
    template = "completion"
    shots = 0

    def score(self, model: Any, tokenizer: Any, prompts: Any, concepts: Any, **_: Any) -> MethodResult:
        """Each concept's row is the length of its name."""
        site = Site(0, "act")
        size = layout_of(model).size("act")
        return MethodResult({site: np.array([[len(c)] * size for c in concepts], np.float32)})


def install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    def found(*, group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "relbench.methods"
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(methods, "entry_points", found)


def test_installed_methods_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "relbench.methods"
    # The test module under the name it was imported by.
    monkeypatch.setitem(
        __import__("sys").modules,
        "foreign_package",
        __import__("types").SimpleNamespace(Foreign=Foreign, nothing=3),
    )
    install(
        monkeypatch,
        EntryPoint("length-of-name", "foreign_package:Foreign", group),
        EntryPoint("broken", "no_such_package:Method", group),
        EntryPoint("nonsense", "foreign_package:nothing", group),
        EntryPoint("random", "foreign_package:nothing", group),
    )
    assert {"length-of-name", "broken", "auroc"} <= set(method_names())
    result = run("length-of-name")
    assert result.values[Site(0, "act")][:, 0].tolist() == [9, 7, 8]
    with pytest.raises(
        UserError, match=r"'broken' .no_such_package:Method. cannot be loaded: ModuleNotFound"
    ):
        get_method("broken")
    with pytest.raises(UserError, match="'nonsense' is no scoring method"):
        get_method("nonsense")
    assert get_method("random").name == "random"  # built-in names cannot be taken
    with pytest.raises(UserError, match=r"unknown scoring method 'best'; there are .*average-precision"):
        get_method("best")


# --- scores


def test_average_precision_of_a_model_is_scikit_learns() -> None:
    prompts, site = make_prompts(), Site(1, "act")
    values = run("average-precision", prompts).values
    assert list(values) == layout_of(tiny_model()).sites(("act", "down"))
    responses = pooled(site, prompts)
    truth = np.array([prompt.concept for prompt in prompts])
    expected = [
        [average_precision_score(truth == c, responses[:, u]) for u in range(responses.shape[1])]
        for c in CONCEPTS
    ]
    np.testing.assert_allclose(values[site], expected, atol=1e-6)


@pytest.mark.parametrize("name", STATISTICAL)
def test_scores_depend_on_neither_order_nor_memory(name: str) -> None:
    prompts = make_prompts()
    first = run(name, prompts)
    second = run(name, prompts[::-1], CONCEPTS[::-1], memory="64M")
    for site, values in first.values.items():
        assert values.shape == (3, layout_of(tiny_model()).size(site.kind)) and values.dtype == np.float32
        tolerance = 1e-3 if name == "probe" else 1e-5
        np.testing.assert_allclose(second.values[site][::-1], values, rtol=tolerance, atol=tolerance)


def test_random_differs_by_seed_and_concept_only() -> None:
    first, again, other = run("random"), run("random", make_prompts(3)), run("random", seed=1)
    site = Site(0, "down")
    assert np.array_equal(first.values[site], again.values[site])
    assert not np.array_equal(first.values[site], other.values[site])
    assert not np.array_equal(first.values[site][0], first.values[site][1])


def test_named_negatives_are_the_only_ones() -> None:
    prompts = make_prompts()
    found = run("auroc", prompts, CONCEPTS[:1], negatives={"capital@x": ["money@x"]})
    two = [prompt for prompt in prompts if prompt.concept != "speech@x"]
    expected = run("auroc", two, CONCEPTS[:1])
    for site in found.values:
        np.testing.assert_allclose(found.values[site], expected.values[site], atol=1e-6)
    assert found.parameters["positives_negatives"] == {"capital@x": [12, 12]}
    assert found.parameters["negatives"] == {"capital@x": ["money@x"]}


def test_drawn_negatives_are_seeded() -> None:
    draws = [run("auroc", seed=seed, negatives_per_positive=0.5) for seed in (0, 0, 1)]
    site = Site(1, "act")
    assert draws[0].parameters["positives_negatives"]["money@x"] == [12, 6]
    assert np.array_equal(draws[0].values[site], draws[1].values[site])
    assert not np.array_equal(draws[0].values[site], draws[2].values[site])


def test_correct_only_keeps_what_the_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def first_nine(
        model: Any, tokenizer: Any, ps: list[Prompt], *, first_tokens: int | None, **_: Any
    ) -> list[bool]:
        asked.append(first_tokens)
        return [int(p.id.split(":")[1]) < 9 for p in ps]

    prompts = make_prompts()
    monkeypatch.setattr("interventions.statistical.methods.answered_correctly", first_nine)
    result = run("mean-difference", prompts, correct_only="true", correct_tokens="2")
    assert asked == [2]
    expected = run("mean-difference", [p for p in prompts if int(p.id.split(":")[1]) < 9])
    for site in result.values:
        np.testing.assert_allclose(result.values[site], expected.values[site], atol=1e-5)
    assert result.parameters["prompts"]["money@x"] == 9
    assert result.parameters["prompts_before_correct_only"]["money@x"] == 12
    monkeypatch.setattr(
        "interventions.statistical.methods.answered_correctly",
        lambda m, t, ps, **_: [p.concept != "money@x" for p in ps],
    )
    with pytest.raises(UserError, match="answers none of the 12 prompts of money@x"):
        run("mean-difference", prompts, correct_only=True)


def test_references_are_numpys() -> None:
    prompts, site = make_prompts(), Site(2, "act")
    # Unequal numbers, so that a mean over prompts differs from one over concepts.
    prompts = [p for p in prompts if p.concept != "speech@x" or p.id.endswith(("1", "2"))]
    references = run("cohens-d", prompts, percentiles="10,99.5", samples=5).references
    responses = pooled(site, prompts)
    concept = np.array([p.concept for p in prompts])
    means = {c: responses[concept == c].mean(0) for c in CONCEPTS}
    np.testing.assert_allclose(
        references["mean"][site][0], (means["money@x"] + means["speech@x"]) / 2, atol=1e-5
    )
    np.testing.assert_allclose(references["mean_abs"][site], np.abs(responses).mean(0), atol=1e-5)
    for q in (10, 99.5):
        expected = [np.percentile(responses[concept == c], q, axis=0) for c in CONCEPTS]
        np.testing.assert_allclose(references[f"percentile-{q:g}"][site], expected, atol=1e-5)
    samples = references["samples"][site]
    assert samples.shape == (3, 5, responses.shape[1])
    others = responses[concept != CONCEPTS[1]]
    for sample in samples[1]:
        assert np.abs(others - sample).max(axis=1).min() < 1e-5
    # Responses at the last position are references of that position only; shares are no responses.
    assert "mean@last_context" in run("cohens-d", pooling="last").references
    assert run("cohens-d", references=False).references == {}


# --- prompts


def prompt(concept: str, number: int, answer: str = "a") -> Prompt:
    return Prompt("t", " y", (" y",), concept, f"{concept}{number}", f"s{number}", answer)


def test_concepts_of_one_set_of_prompts_share_a_contrast() -> None:
    prompts = [prompt(c, i) for i in range(4) for c in ("a@en", "b@en", "a@de", "b@de")]
    concepts = ["a@en", "b@en", "a@de", "b@de"]
    (all_others,) = make_contrasts(prompts, concepts)
    assert all_others.concepts == (0, 1, 2, 3) and len(all_others.rows) == 16
    same_language = {"a@en": ["b@en"], "b@en": ["a@en"], "a@de": ["b@de"], "b@de": ["a@de"]}
    first, second = make_contrasts(prompts, concepts, negatives=same_language)
    assert first.concepts == (0, 1) and second.concepts == (2, 3)
    assert {prompts[row].concept for row in second.rows} == {"a@de", "b@de"}
    # A concept that is nobody's positive here is a negative only.
    (one,) = make_contrasts(prompts, ["a@en"], negatives=same_language)
    assert Counter(one.labels.tolist()) == {0: 4, -1: 4}


def test_balanced_answers_are_no_more_frequent_than_the_mean() -> None:
    answers = ["x"] * 8 + ["y", "z"]
    prompts = [prompt(c, i, a) for c in ("a", "b") for i, a in enumerate(answers)]
    (contrast,) = make_contrasts(prompts, ["a"], balance="answers")
    positives = Counter(prompts[row].answer_id for row in contrast.rows[contrast.labels == 0])
    assert positives == {"x": 4, "y": 1, "z": 1}  # ten prompts of three answers: at most four


@pytest.mark.parametrize("ratio", [None, 1.0])
def test_balanced_lengths_are_distributed_alike(ratio: float | None) -> None:
    random = np.random.default_rng(0)
    prompts = [prompt(c, i) for c in ("a", "b", "c") for i in range(60)]
    lengths = [int(random.integers(4, 9)) + 2 * (p.concept == "a") for p in prompts]
    (contrast,) = make_contrasts(prompts, ["a"], balance="length", ratio=ratio, lengths=lengths)
    side = [Counter(lengths[row] for row in contrast.rows[contrast.labels == label]) for label in (0, -1)]
    assert side[0].keys() == side[1].keys() == {6, 7, 8}
    shares = [side[1][length] / side[0][length] for length in side[0]]
    assert max(shares) - min(shares) < 0.2 and min(shares) >= 1


def test_lape_compares_a_concept_with_its_own_negatives_only() -> None:
    prompts = make_prompts()
    first, second, third = CONCEPTS
    negatives = {first: [second], second: [third], third: [first, second]}
    result = run("lape", prompts, negatives=negatives)
    for number, (concept, others) in enumerate(negatives.items()):
        universe = [name for name in CONCEPTS if name in (concept, *others)]
        alone = run("lape", [p for p in prompts if p.concept in universe], tuple(universe))
        for site, values in result.values.items():
            np.testing.assert_array_equal(values[number], alone.values[site][universe.index(concept)])


# --- stability


def test_stability_is_the_mean_over_pairs() -> None:
    random = np.random.default_rng(0)
    scores = random.standard_normal((6, 40)).astype(np.float32)
    sets = [set(stability.top_k(row, 7).tolist()) for row in scores]
    counts = np.array([sum(unit in chosen for chosen in sets) for unit in range(40)])
    found = stability.stability(counts, 6, 7)
    pairs = [len(a & b) / 7 for i, a in enumerate(sets) for b in sets[:i]]
    assert found.overlap == pytest.approx(np.mean(pairs))
    np.testing.assert_allclose(found.frequency, counts / 6)


def test_resampling_keeps_subjects_together_and_labels_apart() -> None:
    subjects = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2])
    contrast = Contrast((0,), np.arange(9), np.array([0] * 6 + [-1] * 3))
    drawn = contrast.resampled(subjects, np.random.default_rng(4))
    assert Counter(drawn.labels.tolist()) == {0: 6, -1: 3}
    counts = Counter(drawn.rows.tolist())
    assert all(counts[2 * s] == counts[2 * s + 1] for s in range(3))
    assert set(drawn.rows[drawn.labels == 0]) <= set(range(6))


def test_bootstrap_tells_a_sure_unit_from_noise() -> None:
    prompts = make_prompts(30)
    # One letter marks a concept: some units always see it.
    marked = [replace(p, text=p.text + ("ZZZZ" if p.concept == "money@x" else "ffff")) for p in prompts]
    clear = run("cohens-d", marked, bootstrap=10, k=5)
    vague = run("cohens-d", prompts, bootstrap=10, k=5)
    overlap = clear.parameters["stability"]["overlap"]["money@x"]
    assert overlap > vague.parameters["stability"]["overlap"]["money@x"]
    frequency = clear.references["selection_frequency"]
    total = sum(float(array[1].sum()) for array in frequency.values())
    assert total == pytest.approx(5) and max(float(a.max()) for a in frequency.values()) == 1
    again = run("cohens-d", marked, bootstrap=10, k=5, memory="64M")
    assert again.parameters["stability"] == clear.parameters["stability"]


def test_many_ties_at_rank_k_warn() -> None:
    marked = [replace(p, text=p.concept) for p in make_prompts(4)]
    with pytest.warns(UserWarning, match="units tie at rank 20 for .*arbitrary"):
        get_method("average-precision").score(
            tiny_model(),
            tiny_tokenizer(),
            marked,
            CONCEPTS,
            kinds=("act",),
            seed=0,
            options={"k": 20},
            progress=False,
        )


# --- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "mean"}, "unknown option 'pool'; this method takes pooling"),
        ({"pooling": "sum"}, "pooling is 'sum'; choose one of mean"),
        ({"dtype": "int8"}, "dtype is 'int8'; choose one of"),
        ({"memory": "lots"}, "memory is 'lots'"),
        ({"balance": "size"}, "balance is 'size'; choose one of"),
        ({"bootstrap": 1}, "at least 2 replicates"),
        ({"correct_tokens": 2}, "goes with correct_only=true"),
        ({"bootstrap": "many"}, "bootstrap is 'many'; it must be a number"),
        ({"percentiles": "101"}, "percentiles lie in 0 … 100"),
        ({"correct_only": "maybe"}, "write true or false"),
        ({"negatives": {"money@x": ["speech@x"]}}, "negatives does not name capital@x"),
        ({"negatives": {c: list(CONCEPTS) for c in CONCEPTS}}, "cannot be among its own negatives"),
        ({"negatives": {c: ["nothing@x"] for c in CONCEPTS}}, "has no negative prompts"),
    ],
)
def test_mistakes_in_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run("average-precision", **options)
    assert "\n" not in str(caught.value)


def test_mistakes_in_prompts_are_one_line() -> None:
    prompts = make_prompts()
    with pytest.raises(UserError, match="no prompts of planet@x"):
        run("auroc", prompts, ("planet@x",))
    with pytest.raises(UserError, match="money@x has no negative prompts"):
        run("auroc", [p for p in prompts if p.concept == "money@x"], ("money@x",))
    with pytest.raises(UserError, match="capital@x has 1 positive prompts; at least 2"):
        run("welch-t", prompts[11:], CONCEPTS)
    with pytest.raises(UserError, match="every unit responds the same"):
        run("auroc", [replace(p, text="same") for p in prompts])
    for drawn in ({"negatives_per_positive": 1}, {"balance": "answers"}):
        with pytest.raises(UserError, match="compares all concepts with one another"):
            run("lape", prompts, **drawn)
    with pytest.raises(UserError, match="no unit kind 'neuron'"):
        get_method("auroc").score(
            tiny_model(),
            tiny_tokenizer(),
            prompts,
            CONCEPTS,
            kinds=("neuron",),
            seed=0,
            options={},
            progress=False,
        )


def test_float16_responses_give_nearly_the_same_scores() -> None:
    exact, short = run("auroc"), run("auroc", dtype="float16")
    for site in exact.values:
        np.testing.assert_allclose(short.values[site], exact.values[site], atol=0.02)


def test_the_model_is_left_as_it_was() -> None:
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    get_method("auroc").score(
        model, tiny_tokenizer(), make_prompts(), CONCEPTS, kinds=("act",), seed=0, options={}, progress=False
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
