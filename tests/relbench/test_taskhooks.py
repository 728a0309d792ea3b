"""The metrics of the three forms, and that they agree where they should."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from relbench.answers import GeneratedText
from relbench.lm import RelbenchLM
from relbench.paths import tasks_dir
from relbench.taskhooks import gen_metrics, recall_metrics
from tests.tiny import tiny_model, tiny_tokenizer


def _doc(*accepted: str) -> dict[str, Any]:
    return {"choices": [*accepted, "Rome"], "gold": list(range(len(accepted)))}


@pytest.mark.parametrize(
    ("first_two", "expected"),
    [
        (" Paris", 1),
        (" PAR", 1),
        ("  paris \n", 1),
        (" Lutetia", 1),
        (" New  Y", 1),
        (" Paris, F", 0),
        (" London", 0),
        (" Rome", 0),
        ("", 0),
        ("\n", 0),
        ("\ufffd", 0),
        ("東\ufffd", 1),
    ],
)
def test_two_tokens_must_begin_an_accepted_answer(first_two: str, expected: int) -> None:
    doc = _doc("Paris", "Lutetia", "New York", "東京")
    assert gen_metrics(doc, [GeneratedText("whatever follows", first_two)])["prefix2"] == expected


def test_two_tokens_are_not_guessed_from_text() -> None:
    assert gen_metrics(_doc("Paris"), [" Paris"]) == {"recall": 1.0}


def test_recalled_answers_are_generated() -> None:
    """recall = 1 implies that the generated form is right; the other way round, letter case may differ."""
    model = tiny_model("llama", max_position_embeddings=2048)
    tokenizer = tiny_tokenizer()
    letters = tokenizer.encode(string.ascii_letters, add_special_tokens=False)
    with torch.no_grad():
        # It says letters only: every token shows in the text.
        model.lm_head.weight[np.setdiff1d(np.arange(model.config.vocab_size), letters)] = 0
    lm = RelbenchLM(model, tokenizer=tokenizer, batch_size=8)
    disagree, agree = set(), set()
    for number in range(12):
        prompt = f"question {number}"
        options = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
        (said,) = lm.generate_until([Instance("generate_until", {}, (prompt, options), 0)], disable_tqdm=True)
        for length in (1, 3, 6):
            start = said[:length]
            answers = {
                "same": start,
                "case": start.swapcase(),
                "wrong": start[:-1] + "é",
                "longer": start + "é",
            }
            for kind, answer in answers.items():
                scores = lm.loglikelihood(
                    [Instance("loglikelihood", {}, (prompt, answer), 0)], disable_tqdm=True
                )
                doc = {"choices": [answer], "gold": [0]}
                recall = recall_metrics(doc, scores)["recall"]
                generated = gen_metrics(doc, [said])["recall"]
                assert generated >= recall
                (agree if generated == recall else disagree).add((kind, recall))
    assert ("same", 1.0) in agree and ("wrong", 0.0) in agree and ("longer", 0.0) in agree
    assert disagree == {("case", 0.0)}


def test_the_generated_form_reports_two_tokens_on_our_model_alone() -> None:
    manager = TaskManager(include_path=str(tasks_dir()), include_defaults=False)
    model = tiny_model("llama", max_position_embeddings=2048)
    found = {}
    for kind in (RelbenchLM, HFLM):
        lm = kind(model, tokenizer=tiny_tokenizer(), batch_size=8)
        found[kind] = simple_evaluate(
            model=lm, tasks=["relbench_country_capital_gen"], task_manager=manager, limit=1, num_fewshot=1,
            bootstrap_iters=0,
        )  # fmt: skip
    assert found[RelbenchLM]["samples"].keys() == found[HFLM]["samples"].keys()
    for task in found[HFLM]["samples"]:
        ours, theirs = found[RelbenchLM]["results"][task], found[HFLM]["results"][task]
        assert ours["recall,none"] == theirs["recall,none"]
        assert "prefix2,none" in ours and "prefix2,none" not in theirs
    (group,) = found[RelbenchLM]["groups"].values()
    assert "prefix2,none" in group
    (group,) = found[HFLM]["groups"].values()
    assert "recall,none" in group and "prefix2,none" not in group
