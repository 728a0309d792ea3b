"""From prompts to concept scores: targets, aggregation, contrast and options, checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interventions.attribution import importance
from interventions.attribution.lens import lens_of
from interventions.attribution.options import Options
from interventions.attribution.readouts import Readouts, batches, encode
from interventions.attribution.stream import read_stream, writes_of
from interventions.correct import answered_correctly
from interventions.errors import UserError
from interventions.methods import get_method
from interventions.prompts import Prompt
from interventions.units import Site
from tests.tiny import tiny_model, tiny_tokenizer

METHOD = "log-probability-increase"


def prompt(concept: str, number: int, answer: str, prefix: str = "") -> Prompt:
    return Prompt(
        text=f"{prefix}{concept} of s{number} is",
        answer=f" {answer}",
        accepted=(f" {answer}",),
        concept=concept,
        id=f"{concept}.{number}",
        subject_id=f"s{number}",
        answer_id=f"{'city' if concept in ('cap', 'hq') else 'lang'}:{answer}",
    )


PROMPTS = [
    prompt("cap", 1, "Oslo"),
    prompt("cap", 22, "Ny"),
    prompt("cap", 3, "Oslo"),
    prompt("hq", 4, "Rio"),
    prompt("lang", 5, "da"),
    prompt("lang", 66, "nb"),
]
CONCEPTS = ("cap", "hq", "lang")


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def run(model, tokenizer, concepts=CONCEPTS, prompts=PROMPTS, kinds=("act",), method=METHOD, **options):
    return get_method(method).score(
        model, tokenizer, prompts, concepts, kinds=kinds, seed=0, options=options, progress=False
    )


def whole(result, name=None) -> np.ndarray:
    """[concepts, all units]."""
    by_site = result.values if name is None else result.references[name]
    return np.concatenate([by_site[site] for site in by_site], axis=-1)


def by_hand(model, tokenizer, item: Prompt, tokens: str = "all") -> np.ndarray:
    """First-order scores of one prompt, one readout and one forward pass at a time."""
    lens, writes = lens_of(model), writes_of(model, "act")
    context, answer = tokenizer.encode(item.text), tokenizer.encode(item.text + item.answer)
    answer = answer[len(context) :][: 1 if tokens == "first" else None]
    total = 0.0
    for step, token in enumerate(answer):
        ids = torch.tensor([context + answer[:step]])
        last = Readouts(torch.tensor([0]), torch.tensor([ids.shape[1] - 1]), torch.tensor([token]))
        stream = read_stream(model, ids, last)
        total = (
            total + importance.first_order(lens, stream, writes, "act", last.targets)[:, 0].flatten().numpy()
        )
    return total


@pytest.mark.parametrize("tokens", ["all", "first"])
def test_scores_are_the_mean_over_prompts_less_the_mean_over_the_other_concepts(model, tokenizer, tokens):
    own = {
        c: np.mean([by_hand(model, tokenizer, p, tokens) for p in PROMPTS if p.concept == c], 0)
        for c in CONCEPTS
    }
    plain = run(model, tokenizer, tokens=tokens, contrast="none")
    contrasted = run(model, tokenizer, tokens=tokens)
    for row, concept in enumerate(CONCEPTS):
        others = np.mean([own[other] for other in CONCEPTS if other != concept], 0)
        np.testing.assert_allclose(whole(plain)[row], own[concept], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(whole(contrasted)[row], own[concept] - others, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2", "gpt_neox", "opt", "bloom", "olmo2"])
def test_batches_and_shared_beginnings_change_nothing(tokenizer, model_type):
    model = tiny_model(model_type)
    prefix = "cap of s7 is Rome\ncap of s8 is Bern\n"
    prompts = [
        prompt(c, n, a, prefix) for c in ("cap", "lang") for n, a in ((1, "Oslo"), (22, "Ny"), (333, "Rio"))
    ]
    shared = list(
        batches(
            [encode(tokenizer, p.text, p.answer) for p in prompts],
            [p.concept for p in prompts],
            batch_size=3,
            device=torch.device("cpu"),
        )
    )
    assert all(len(batch.shared) > len(prefix) for batch in shared)
    found = [
        whole(run(model, tokenizer, ("cap", "lang"), prompts, ("act", "attn"), batch_size=size))
        for size in (1, 2, 16)
    ]
    alone = [
        whole(run(model, tokenizer, ("cap",), [p], ("act", "attn"), contrast="none"))
        for p in prompts
        if p.concept == "cap"
    ]
    together = whole(run(model, tokenizer, ("cap", "lang"), prompts, ("act", "attn"), contrast="none"))
    np.testing.assert_allclose(found[0], found[2], rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(np.mean(alone, 0)[0], together[0], rtol=1e-3, atol=2e-5)


def test_aggregations(model, tokenizer):
    each = np.stack([by_hand(model, tokenizer, p) for p in PROMPTS[:3]])
    size = each.shape[1]
    ranks = np.empty_like(each)
    for row, order in enumerate(np.argsort(-each, axis=1)):
        ranks[row, order] = np.arange(1, size + 1)
    expected = {
        "zscore": ((each - each.mean(1, keepdims=True)) / each.std(1, keepdims=True)).mean(0),
        "mrr": (1 / ranks).mean(0),
        "frequency": (ranks <= 10).mean(0),
    }
    for name, values in expected.items():
        found = run(model, tokenizer, ("cap",), contrast="none", aggregate=name, top=10)
        np.testing.assert_allclose(whole(found)[0], values, rtol=1e-3, atol=1e-4)


def test_same_answer_type_contrasts_with_prompts_of_that_type(model, tokenizer):
    plain = whole(run(model, tokenizer, contrast="none"))
    found = run(model, tokenizer, ("cap", "hq"), contrast="same-answer-type")
    np.testing.assert_allclose(whole(found)[0], plain[0] - plain[1], atol=1e-5)
    with pytest.raises(UserError, match="lang has no other concept with answers of type lang"):
        run(model, tokenizer, ("lang",), contrast="same-answer-type")


def test_negatives_name_what_a_concept_is_contrasted_with(model, tokenizer):
    plain = whole(run(model, tokenizer, contrast="none"))
    found = run(model, tokenizer, ("cap",), negatives={"cap": ["lang"]})
    np.testing.assert_allclose(whole(found)[0], plain[0] - plain[2], atol=1e-5)
    assert found.parameters["negatives"] == {"cap": ["lang"]}
    assert found.parameters["prompts"] == {"cap": 3, "lang": 2}
    with pytest.raises(UserError, match="no other concept"):
        run(model, tokenizer, ("cap",), negatives={"cap": []})
    with pytest.raises(UserError, match="which have no prompts"):
        run(model, tokenizer, ("cap",), negatives={"cap": ["currency"]})


def test_answer_spread_is_over_answers_not_prompts(model, tokenizer):
    found = run(model, tokenizer)
    each = [by_hand(model, tokenizer, p) for p in PROMPTS[:3]]
    oslo, ny = (each[0] + each[2]) / 2, each[1]
    np.testing.assert_allclose(whole(found, "answer_spread")[0], np.std([oslo, ny], 0), rtol=1e-3, atol=1e-5)
    assert not whole(found, "answer_spread")[1].any(), "one answer has no spread"


def test_references_for_matched_random_masks(model, tokenizer):
    found = run(model, tokenizer)
    writes = writes_of(model, "act")
    for layer, write in enumerate(writes):
        np.testing.assert_allclose(
            found.references["norm"][Site(layer, "act")], write.vectors.norm(dim=-1), rtol=1e-5
        )
    assert (whole(found, "mean_abs") > 0).all()


def test_predicted_answers_do_not_depend_on_the_gold_ones(model, tokenizer):
    other = [prompt(p.concept, int(p.subject_id[1:]), "zzz") for p in PROMPTS]
    found = [
        whole(run(model, tokenizer, prompts=p, answer="predicted", contrast="none")) for p in (PROMPTS, other)
    ]
    np.testing.assert_array_equal(*found)


def _answered_by(model, tokenizer, text: str, tokens: int) -> str:
    ids = tokenizer.encode(text)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tokenizer.decode(ids[-tokens:])


def test_correct_only_keeps_prompts_whose_greedy_continuation_is_accepted(model, tokenizer):
    text = "cap of s1 is"
    for start in range(200):
        text = f"cap of s{start} is"
        answer = _answered_by(model, tokenizer, text, 2)
        if tokenizer.encode(text + answer)[-2:] == tokenizer.encode(answer)[-2:] and answer.isascii():
            break
    right = Prompt(text, answer, ("no", answer), "cap", "right", "a", "city:a")
    wrong = Prompt(text, " zq", (" zq",), "cap", "wrong", "b", "city:b")
    assert answered_correctly(model, tokenizer, [right, wrong]) == [True, False]
    kept = run(model, tokenizer, ("cap",), [right, wrong], correct_only=True, contrast="none")
    assert kept.parameters["prompts"] == {"cap": 1}
    assert kept.parameters["prompts_before_correct_only"] == {"cap": 2}
    with pytest.raises(UserError, match="answers correctly"):
        run(model, tokenizer, ("cap",), [wrong], correct_only=True, contrast="none")


def test_first_token_collisions_are_counted(model, tokenizer):
    assert run(model, tokenizer).parameters["first_token_collisions"] == {"cap": 1.0, "hq": 0.0, "lang": 1.0}


def test_exact_top_is_the_top_of_exact(model, tokenizer):
    options = {"contrast": "none", "tokens": "first"}
    one = [PROMPTS[0]]
    exact = whole(run(model, tokenizer, ("cap",), one, form="exact", **options))[0]
    top = whole(run(model, tokenizer, ("cap",), one, form="exact-top", top=12, **options))[0]
    chosen = np.argsort(-exact)[:12]
    assert set(np.flatnonzero(top)) == set(chosen)
    np.testing.assert_allclose(top[chosen], exact[chosen], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": 1}, "unknown option 'colour'"),
        ({"form": "second-order"}, "choose one of first-order"),
        ({"batch_size": 0}, "at least 1"),
        ({"negatives": "lang"}, "list of concepts"),
        ({"negatives": {"cap": "lang"}}, "list of concepts"),
        ({"correct_only": "perhaps"}, "true or false"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        Options.parse(options)


def test_options_read_text():
    parsed = Options.parse({"correct-only": "true", "batch_size": "4", "contrast": "none"})
    assert parsed == Options(correct_only=True, batch_size=4, contrast="none")


def test_kinds_that_do_not_write_and_concepts_without_prompts_are_refused(model, tokenizer):
    with pytest.raises(UserError, match="not 'gate'"):
        run(model, tokenizer, kinds=("gate",))
    with pytest.raises(UserError, match="no prompts of currency"):
        run(model, tokenizer, ("currency",))


def test_answers_without_tokens_are_refused(model, tokenizer):
    empty = Prompt("cap of s1 is", "", ("",), "cap", "x", "s", "city:x")
    with pytest.raises(UserError, match="no tokens of its own"):
        run(model, tokenizer, ("cap",), [empty], contrast="none")
