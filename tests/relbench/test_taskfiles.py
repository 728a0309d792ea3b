"""The generated lm-eval tasks: fresh, loadable, and the same text as the probes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import yaml
from lm_eval.tasks import TaskManager

from interventions.errors import UserError
from relbench.harness import build_tasks
from relbench.paths import tasks_dir
from relbench.probes import probes
from relbench.prompts import prompts
from relbench.relations import load_relation, relation_names
from relbench.taskfiles import FORM_FILES, languages_of, stale, task_files, task_name
from relbench.taskhooks import gen_metrics, mc_metrics, recall_metrics


@pytest.fixture(scope="module")
def manager() -> TaskManager:
    return TaskManager(include_path=str(tasks_dir()), include_defaults=False)


def test_the_files_in_the_tree_are_what_the_builder_makes() -> None:
    assert stale() == []


def test_every_relation_language_and_form_is_a_task(manager: TaskManager) -> None:
    expected = {
        task_name(name, language, form)
        for name in relation_names()
        for language in languages_of(load_relation(name))
        for form in FORM_FILES
    }
    assert set(manager.all_subtasks) == expected


def test_no_tag_is_named_like_a_group(manager: TaskManager) -> None:
    assert not set(manager.all_tags) & set(manager.all_groups)
    assert {"relbench", "relbench_en", "relbench_en_mc", "relbench_country_capital"} <= set(
        manager.all_groups
    )


def test_relation_files_are_no_tasks() -> None:
    for name in relation_names():
        raw = yaml.safe_load((tasks_dir() / name / "relation.yaml").read_text(encoding="utf-8"))
        assert not {"task", "group", "class"} & raw.keys()


@pytest.mark.parametrize("shots", [0, 5])
@pytest.mark.parametrize("language", ["en", "ja"])
def test_tasks_load_without_a_warning_and_say_what_the_probes_say(
    manager: TaskManager, shots: int, language: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = [task_name(name, language, form) for name in relation_names()[:4] for form in FORM_FILES]
    with caplog.at_level(logging.WARNING):
        loaded = manager.load(names)["tasks"]
    assert [record.getMessage() for record in caplog.records] == []
    for name in relation_names()[:4]:
        asked = prompts([name], [language], "eval", shots=shots, limit=3)
        for form in FORM_FILES:
            task = loaded[task_name(name, language, form)]
            docs = list(task.test_docs())[:3]
            texts = [task.fewshot_context(doc, num_fewshot=shots) for doc in docs]
            assert texts == [prompt.text for prompt in asked]


def test_other_templates_splits_and_seeds_through_metadata() -> None:
    name = task_name("country_capital", "en")
    built = build_tasks([name], shots=2, metadata={"template": "question", "split": "tune", "shots_seed": 3})[
        0
    ]
    expected = prompts(["country_capital"], ["en"], "tune", "question", shots=2, shots_seed=3)
    assert [instance.args[0] for instance in built.instances if instance.idx == 0] == [
        p.text for p in expected
    ]


def test_multiple_choice_never_offers_another_right_answer() -> None:
    built = build_tasks([task_name("country_language", "en", "mc")], shots=0)[0]
    asked = {probe.fact_id: probe for probe in probes("country_language", "en", "eval")}
    for doc in built.docs.values():
        n_gold = len(doc["gold"])
        assert tuple(doc["choices"][:n_gold]) == asked[doc["fact_id"]].accepted
        assert not set(doc["choices"][n_gold:]) & set(asked[doc["fact_id"]].accepted)
        assert len(doc["choices"]) - n_gold == 15


def test_metrics_by_hand() -> None:
    doc = {"gold": [0, 1], "choices": ["Paris", "City of Light", "Rome", "Bonn"]}
    recall = recall_metrics(doc, [(-2.0, False), (-1.0, True)])
    assert recall["recall"] == 1.0
    assert recall["answer_logprob"] == -2.0
    assert recall["answer_prob"] == pytest.approx(0.135335, abs=1e-6)
    assert "first_token_mrr" not in recall
    assert mc_metrics(doc, [(-3.0, False), (-1.0, True), (-2.0, False), (-9.0, False)]) == {
        "acc": 1.0,
        "mrr": 1.0,
    }
    assert mc_metrics(doc, [(-3.0, False), (-2.0, True), (-2.0, False), (-1.0, False)])["acc"] == 0.0
    assert mc_metrics(doc, [(-3.0, False), (-2.0, True), (-2.0, False), (-1.0, False)])["mrr"] == 1 / 3
    assert gen_metrics(doc, ["  paris, of course"]) == {"recall": 1.0}
    assert gen_metrics(doc, ["the Paris"]) == {"recall": 0.0}


def test_unknown_and_overlapping_tasks_are_one_line() -> None:
    with pytest.raises(UserError, match="unknown task"):
        build_tasks(["relbench_nope_en"], shots=0)
    with pytest.raises(UserError, match="overlap"):
        build_tasks(["relbench_country_capital", "relbench_country_capital_en"], shots=0)
    with pytest.raises(UserError, match="few-shot"):
        build_tasks([task_name("country_capital", "en")], shots=50)


def test_generated_paths_lie_in_the_tasks_folder() -> None:
    assert all(isinstance(path, Path) and path.is_relative_to(tasks_dir()) for path in task_files())
