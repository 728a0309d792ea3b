"""The attribution paper's experiment (arXiv 2312.12141) on any model and any knowledge types.

For each prompt the units that a score ranks highest are switched off at all positions, and the answer token's
reciprocal rank, probability and log probability are compared with those of the whole model and with random
units off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from interventions.attribution.lens import lens_of
from interventions.files import atomic_write
from interventions.units import UnitLayout
from relbench.attribution_bench import GROUPS, INCREASE, Bench, Config, Outcome, PromptResult
from relbench.attribution_prompts import Selection, select_prompts, typed_relations

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RESAMPLES = 2000


class Value(NamedTuple):
    """A mean over prompts with its 95 % interval (percentile bootstrap)."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Section:
    """One table of the result: rows of text and values under named columns."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | Value, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class AttributionTable:
    """The whole result.

    Attributes:
        model: Name of the model.
        config: What was run.
        sections: The tables.
        prompts: One record a prompt: id, type, answer and every outcome.
    """

    model: str
    config: Config
    sections: tuple[Section, ...]
    prompts: tuple[dict[str, Any], ...] = field(repr=False)


def attribution_table(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    *,
    name: str,
    progress: bool = True,
) -> AttributionTable:
    """Run the experiment.

    Args:
        model: A causal language model of a family with a lens.
        tokenizer: Its tokenizer.
        config: Sizes.
        name: The model's name, for the result.
        progress: Show progress bars when stderr is a terminal.

    Raises:
        UserError: Unknown relations, no prompts that the model knows, or a family without a lens.
    """
    lens = lens_of(model)
    selection = select_prompts(
        model,
        tokenizer,
        lens,
        typed_relations(config.relations),
        language=config.language,
        shots=config.shots,
        per_type=config.per_type,
        seed=config.seed,
        progress=progress,
    )
    bench = Bench(model, lens, config, selection)
    results = [
        bench.measure(item)
        for item in tqdm(selection.prompts, desc="prompts", disable=None if progress else True)
    ]
    head_outcomes = bench.heads(results, progress=progress)
    sections = (
        _scores_section(results, config),
        _groups_section(results, config),
        _heads_section(results, head_outcomes, config, bench.layout),
        _types_section(results, selection, config),
    )
    return AttributionTable(name, config, sections, tuple(_record(result) for result in results))


def mean_value(values: Iterable[float], seed: int = 0) -> Value:
    """Mean with a 95 % percentile bootstrap interval over prompts."""
    array = np.asarray(list(values), dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = array[rng.integers(0, len(array), (RESAMPLES, len(array)))].mean(1)
    return Value(float(array.mean()), *(float(x) for x in np.quantile(means, (0.025, 0.975))))


def ratio_value(after: Sequence[float], before: Sequence[float], seed: int = 0) -> Value:
    """Relative change of a mean, with a 95 % percentile bootstrap interval over (paired) prompts."""
    new, old = np.asarray(after, dtype=np.float64), np.asarray(before, dtype=np.float64)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(new), (RESAMPLES, len(new)))
    changes = new[drawn].mean(1) / old[drawn].mean(1) - 1
    return Value(
        float(new.mean() / old.mean() - 1), *(float(x) for x in np.quantile(changes, (0.025, 0.975)))
    )


_METRICS = ("MRR", "probability", "log probability")


def _outcome_row(results: Sequence[PromptResult], name: str, seed: int) -> tuple[str | Value, ...]:
    columns = zip(*(result.outcomes[name] for result in results), strict=True)
    return name, *(mean_value(column, seed) for column in columns)


def _scores_section(results: Sequence[PromptResult], config: Config) -> Section:
    names = [name for name in results[0].outcomes if name not in GROUPS]
    return Section(
        "scores",
        f"Top {config.top} act units of each score off",
        ("score", *_METRICS),
        tuple(_outcome_row(results, name, config.seed) for name in names),
        f"{len(results)} prompts; the answer's first token; lower is better. "
        f"Random: {config.random_draws} draws a prompt. "
        f"The exact top {config.shared_top} needed "
        f"{np.mean([r.evaluated for r in results]):.0f} full evaluations on average.",
    )


def _groups_section(results: Sequence[PromptResult], config: Config) -> Section:
    titles = {
        "original": "none",
        "value neurons": f"{config.value_attention} attention and {config.value_ffn} FFN value neurons",
        "random for value neurons": "as many random ones",
        "query neurons": f"{config.query_neurons} FFN query neurons",
        "random for query neurons": "as many random ones ",
    }
    rows = []
    before = [result.outcomes["original"].reciprocal_rank for result in results]
    for name, title in titles.items():
        change = ratio_value([r.outcomes[name].reciprocal_rank for r in results], before, config.seed)
        rows.append((title, *_outcome_row(results, name, config.seed)[1:], change))
    return Section(
        "groups", "Value and query neurons off", ("units off", *_METRICS, "MRR change"), tuple(rows)
    )


def _heads_section(
    results: Sequence[PromptResult],
    outcomes_of: Sequence[tuple[PromptResult, dict[str, Outcome]]],
    config: Config,
    layout: UnitLayout,
) -> Section:
    k = max(1, round(config.head_share * layout.n_layers * layout.n_heads))
    types = [name for name in outcomes_of[0][1] if name not in ("original", "random")]

    def change(pairs: Sequence[tuple[str, int]], metric: str) -> Value:
        """Relative change over (set of heads, prompt) pairs."""
        after = [getattr(outcomes_of[index][1][name], metric) for name, index in pairs]
        before = [getattr(outcomes_of[index][1]["original"], metric) for _, index in pairs]
        return ratio_value(after, before, config.seed)

    def row(
        title: str, on: Sequence[tuple[str, int]], off: Sequence[tuple[str, int]]
    ) -> tuple[str | int | Value, ...]:
        cells: list[str | int | Value] = [title, len(on)]
        for pairs in (on, off):
            cells += [change(pairs, metric) if pairs else "" for metric in ("reciprocal_rank", "probability")]
        return tuple(cells)

    indices = range(len(outcomes_of))
    kind_of = [result.item.knowledge_type for result, _ in outcomes_of]
    own = {name: [(name, i) for i in indices if kind_of[i] == name] for name in types}
    other = {name: [(name, i) for i in indices if kind_of[i] != name] for name in types}
    rows = [row(name, own[name], other[name]) for name in types if own[name]]
    every_own, every_other = ([pair for name in types for pair in side[name]] for side in (own, other))
    rows.append(row("all types", every_own, every_other))
    rows.append(row("random heads", [("random", i) for i in indices], []))
    return Section(
        "heads",
        f"Top {k} heads ({config.head_share:.0%}) of a type off: relative change",
        ("heads of", "prompts", "MRR on it", "probability on it", "MRR elsewhere", "probability elsewhere"),
        tuple(rows),
        "Chosen by mean log-probability increase on every other prompt of the type, measured on the rest.",
    )


def _types_section(results: Sequence[PromptResult], selection: Selection, config: Config) -> Section:
    rows: list[tuple[str | int | float | Value, ...]] = []
    for kind, looked_at in selection.looked_at.items():
        own = [result for result in results if result.item.knowledge_type == kind]
        known = f"{selection.known[kind]} of {looked_at}"
        if not own:
            rows.append((kind, 0, known, "", "", "", ""))
            continue
        counts = np.unique(np.concatenate([result.shared for result in own]), return_counts=True)[1]
        shared = int((counts > len(own) / 2).sum())
        attention, ffn = (
            mean_value([getattr(result, part) for result in own], config.seed)
            for part in ("attention", "ffn")
        )
        rows.append((kind, len(own), known, attention, ffn, shared, shared / len(own[0].shared)))
    return Section(
        "types",
        "Knowledge types",
        ("type", "prompts", "known", "attention", "FFN", "shared units", "share of a prompt's"),
        tuple(rows),
        "Known: the answer's first token among the ten most probable and above its rivals. "
        f"Attention, FFN: sums over layers of the sublayers' {INCREASE}s. "
        f"Shared units: among the top {config.shared_top} of over half of the type's prompts.",
    )


def _record(result: PromptResult) -> dict[str, Any]:
    prompt = result.item.prompt
    return {
        "id": prompt.id,
        "concept": prompt.concept,
        "knowledge_type": result.item.knowledge_type,
        "prompt": prompt.text,
        "answer": prompt.answer,
        "answer_id": prompt.answer_id,
        "attention": result.attention,
        "ffn": result.ffn,
        "evaluated": result.evaluated,
        "outcomes": {name: outcome._asdict() for name, outcome in result.outcomes.items()},
    }


def cell_text(cell: str | int | float | Value) -> str:
    """A cell as text: values with their interval."""
    if isinstance(cell, Value):
        return f"{cell.mean:.3f} [{cell.low:.3f}, {cell.high:.3f}]"
    return f"{cell:.0%}" if isinstance(cell, float) else str(cell)


def markdown(table: AttributionTable) -> str:
    """All sections as Markdown."""
    config = table.config
    parts = [f"Model {table.model}, language {config.language}, {config.shots} shots, seed {config.seed}."]
    for section in table.sections:
        lines = [
            f"**{section.title}**",
            "",
            "| " + " | ".join(section.columns) + " |",
            "|" + " --- |" * len(section.columns),
            *(
                "| " + " | ".join(cell_text(cell).replace("|", "\\|") for cell in row) + " |"
                for row in section.rows
            ),
        ]
        parts.append("\n".join([*lines, *(["", section.note] if section.note else [])]))
    return "\n\n".join(parts) + "\n"


def write_table(directory: str | Path, table: AttributionTable) -> list[Path]:
    """Write `table.json` (every number and every prompt), and `table.md`.

    Returns:
        The files written.
    """
    directory = Path(directory)
    content = asdict(table)
    for section, plain in zip(table.sections, content["sections"], strict=True):
        plain["rows"] = [
            [cell._asdict() if isinstance(cell, Value) else cell for cell in row] for row in section.rows
        ]
    numbers, text = directory / "table.json", directory / "table.md"
    with atomic_write(numbers) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    with atomic_write(text) as file:
        file.write(markdown(table))
    return [numbers, text]
