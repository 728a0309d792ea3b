"""The lm-eval YAML files of the probes: what they hold, writing them, and finding stale ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from interventions.files import atomic_write
from relbench.languages import LANGUAGES
from relbench.paths import tasks_dir
from relbench.probes import DEFAULT_SHOTS, DEFAULT_TEMPLATE, FEWSHOT_DELIMITER
from relbench.prompts import prompts
from relbench.relations import Relation, load_facts, load_relation, relation_names

# A prompt of every relation and language, for reading.
RENDERED = "prompts.txt"
HEADER = "# Written by `relbench tasks build`; change relation.yaml or facts.jsonl instead.\n"
# form -> (suffix of the task name, base file, metrics that groups average)
FORM_FILES = {
    "recall": ("", "_base.yaml", ("recall", "answer_logprob")),
    "mc": ("_mc", "_mc.yaml", ("acc", "mrr")),
    "gen": ("_gen", "_gen.yaml", ("recall", "prefix2")),
}


def task_name(relation: str, language: str, form: str = "recall") -> str:
    """The lm-eval task of a relation in one language: `relbench_<relation>_<lang>[_mc|_gen]`."""
    return f"relbench_{relation}_{language}{FORM_FILES[form][0]}"


def languages_of(relation: Relation) -> tuple[str, ...]:
    """Languages in which a relation can be a task: templates, few-shot examples and eval facts are there."""
    facts = load_facts(relation.name)
    return tuple(
        language
        for language in relation.languages
        if all(
            any(fact.split == split and fact.has_language(language) for fact in facts)
            for split in ("shots", "detect", "eval")
        )
    )


def task_files() -> dict[Path, str]:
    """Every generated file below the tasks folder, path → content."""
    files = {tasks_dir() / path: HEADER + _dump(content) for path, content in _contents()}
    return {**files, tasks_dir() / RENDERED: _rendered()}


def build() -> tuple[int, int]:
    """Bring the generated files up to date.

    Returns:
        How many files were written and how many stale ones were removed.
    """
    wanted = task_files()
    written = 0
    for path, text in wanted.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            with atomic_write(path) as file:
                file.write(text)
            written += 1
    extra = sorted(_generated() - wanted.keys())
    for path in extra:
        path.unlink()
    return written, len(extra)


def stale() -> list[Path]:
    """Generated files that are missing, differ from what `build` would write, or should not be there."""
    wanted = task_files()
    changed = {
        path
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    return sorted(changed | (_generated() - wanted.keys()))


def _generated() -> set[Path]:
    tasks = set(tasks_dir().glob("*/relbench_*.yaml")) | set(tasks_dir().glob("_*.yaml"))
    return tasks | set(tasks_dir().glob(RENDERED))


def _rendered() -> str:
    """Two-shot completion, paraphrase and question of one eval fact of every relation and language."""
    blocks = []
    for name in relation_names():
        relation = load_relation(name)
        for language in languages_of(relation):
            lines = [f"== {name}@{language}"]
            for template in relation.templates[language]:
                shots = 2 if template == DEFAULT_TEMPLATE else 0
                prompt = prompts([name], [language], "eval", template, shots=shots, limit=1)[0]
                lines.append(f"{prompt.text}[{' | '.join(prompt.accepted)}]")
            blocks.append("\n".join(lines))
    return HEADER + "\n\n".join(blocks) + "\n"


def _dump(content: dict[str, Any]) -> str:
    """YAML in which `!function` values of the form "!function a.b" are tags."""
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110)
    return "\n".join(
        line.replace("'!function ", "!function ").rstrip("'") if "'!function " in line else line
        for line in text.split("\n")
    )


def _contents() -> Iterator[tuple[Path, dict[str, Any]]]:
    yield from _bases()
    relations = [load_relation(name) for name in relation_names()]
    by_language: dict[str, list[Relation]] = {code: [] for code in LANGUAGES}
    languages = {relation.name: languages_of(relation) for relation in relations}
    for relation in relations:
        for language in languages[relation.name]:
            by_language[language].append(relation)
            for form in FORM_FILES:
                yield _task(relation, language, form)
        if languages[relation.name]:
            for form in FORM_FILES:
                members = [task_name(relation.name, language, form) for language in languages[relation.name]]
                yield _group(Path(relation.name), f"relbench_{relation.name}", members, form)
    for form, (suffix, _, _) in FORM_FILES.items():
        paper_groups = []
        language_groups = []
        for language, present in by_language.items():
            if not present:
                continue
            names = [task_name(relation.name, language, form) for relation in present]
            yield _group(Path("_groups"), f"relbench_{language}", names, form)
            language_groups.append(f"relbench_{language}{suffix}")
            paper = [task_name(relation.name, language, form) for relation in present if relation.paper12]
            if paper:
                yield _group(Path("_groups"), f"relbench_paper12_{language}", paper, form)
                paper_groups.append(f"relbench_paper12_{language}{suffix}")
        yield _group(Path("_groups"), "relbench", language_groups, form)
        if paper_groups:
            yield _group(Path("_groups"), "relbench_paper12", paper_groups, form)


def _bases() -> Iterator[tuple[Path, dict[str, Any]]]:
    yield (
        Path("_base.yaml"),
        {
            "custom_dataset": "!function relbench.taskhooks.documents",
            "test_split": "test",
            "fewshot_split": "shots",
            "fewshot_config": {"sampler": "first_n", "doc_to_target": "answer"},
            "num_fewshot": DEFAULT_SHOTS,
            "output_type": "multiple_choice",
            # Column names, not Jinja, which would turn the answer "4" into a choice index.
            "doc_to_text": "prompt",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "target_delimiter": " ",
            "fewshot_delimiter": FEWSHOT_DELIMITER,
            "process_results": "!function relbench.taskhooks.recall_metrics",
            "metric_list": _metrics("recall", "answer_logprob", "answer_prob", "first_token_mrr"),
        },
    )
    yield (
        Path("_mc.yaml"),
        {
            "include": "_base.yaml",
            "process_results": "!function relbench.taskhooks.mc_metrics",
            "metric_list": _metrics("acc", "mrr"),
        },
    )
    yield (
        Path("_gen.yaml"),
        {
            "include": "_base.yaml",
            "output_type": "generate_until",
            "doc_to_choice": None,
            "doc_to_target": "answer",
            # A line is an answer; 24 tokens hold the longest one under byte-heavy tokenizers.
            "generation_kwargs": {"until": [FEWSHOT_DELIMITER], "max_gen_toks": 24, "do_sample": False},
            "process_results": "!function relbench.taskhooks.gen_metrics",
            "metric_list": _metrics("recall", "prefix2"),
        },
    )


def _metrics(*names: str) -> list[dict[str, Any]]:
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


def _task(relation: Relation, language: str, form: str) -> tuple[Path, dict[str, Any]]:
    name = task_name(relation.name, language, form)
    content: dict[str, Any] = {"include": f"../{FORM_FILES[form][1]}", "task": name}
    if form == "recall":
        content["tag"] = [f"relbench_lang_{language}", f"relbench_domain_{relation.domain}"]
    content["dataset_kwargs"] = {"relation": relation.name, "language": language, "form": form}
    if LANGUAGES[language].delimiter != " ":
        content["target_delimiter"] = LANGUAGES[language].delimiter
    content["metadata"] = {"version": relation.version}
    return Path(relation.name, f"{name}.yaml"), content


def _group(folder: Path, name: str, members: list[str], form: str) -> tuple[Path, dict[str, Any]]:
    suffix, _, metrics = FORM_FILES[form]
    return folder / f"{name}{suffix}.yaml", {
        "group": f"{name}{suffix}",
        "task": members,
        "aggregate_metric_list": [
            # Every relation and language counts the same, whatever its number of facts.
            {"metric": metric, "aggregation": "mean", "weight_by_size": False}
            for metric in metrics
        ],
        "metadata": {"version": 1},
    }
