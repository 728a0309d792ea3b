"""An explanation of one prediction as rich tables, as one self-contained HTML page, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from interventions.files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from interventions.attribution.explanation import Explanation, LayerRow, QueryTable, TokenScore, UnitRow

# Half the width of a layer's bar in the terminal, in characters.
_BAR = 12
# Longest token that is shown whole.
_TOKEN = 24
QUERY_TITLES = {
    "attention": "through attention value neurons",
    "gate": "through the gates of FFN value neurons",
    "up": "through the up rows of FFN value neurons",
}


def visible(token: str) -> str:
    """A token with its spaces and control characters made visible, as in "␣Paris"; long ones are cut
    short."""
    marks = {" ": "␣", "\n": "↵", "\t": "⇥"}
    short = token if len(token) <= _TOKEN else token[: _TOKEN - 1] + "…"
    return "".join(marks.get(char, char if char.isprintable() else f"\\x{ord(char):02x}") for char in short)


def words(tokens: Iterable[TokenScore], limit: int | None = None) -> str:
    """Tokens in a row."""
    return " ".join(visible(token.token) for token in list(tokens)[:limit])


def unit_name(row: UnitRow) -> str:
    """The name under which masks know the unit: `<layer>.<kind>[<unit>]`."""
    return f"{row.layer}.{row.kind}[{row.unit}]"


def as_json(explanation: Explanation, model: str) -> str:
    """Every number in full precision."""
    content = {"model": model, **asdict(explanation)}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | Path, explanation: Explanation, model: str) -> None:
    """Write `as_json` to a file."""
    with atomic_write(path) as file:
        file.write(as_json(explanation, model))


def print_terminal(console: Console, explanation: Explanation, model: str, *, tokens: int = 5) -> None:
    """The explanation as tables."""
    console.print(_summary(explanation, model))
    console.print(_layer_table(explanation.layers))
    console.print(_head_table(explanation))
    title = "FFN value neurons by log-probability increase"
    console.print(_unit_table(title, explanation.ffn_values, tokens))
    title = "Attention value neurons, by position"
    console.print(_unit_table(title, explanation.attention_values, tokens, position=True))
    for queries in explanation.queries:
        console.print(_unit_table(query_title(queries), queries.rows, tokens, position=True))


def query_title(queries: QueryTable) -> str:
    """Heading of a table of query neurons."""
    title = f"Query neurons {QUERY_TITLES[queries.through]}"
    if queries.shares is None:
        return title
    return f"{title}, as shares (floor {queries.shares.floor:g} used for {queries.shares.floored})"


def _summary(explanation: Explanation, model: str) -> Group:
    target = explanation.target
    lines = [
        Text.assemble((model, "bold"), "  ", explanation.prompt, (target.token, "bold green")),
        Text(
            f"explained: {visible(target.token)}  probability {target.probability:.3f}, "
            f"log probability {target.log_prob:.3f}, rank {target.rank}"
        ),
        Text(
            "predicted: "
            + "  ".join(f"{visible(t.token)} {t.probability or 0:.3f}" for t in explanation.predictions[:6])
        ),
        Text(f"tokens: {' | '.join(visible(token) for token in explanation.tokens)}", style="dim"),
    ]
    return Group(*lines)


def bar_scale(layers: Sequence[LayerRow]) -> float:
    """Largest size of a sublayer's increase, the length of the longest bar."""
    return max(max(abs(row.attention), abs(row.ffn)) for row in layers) or 1.0


def _bar(value: float, scale: float) -> Text:
    length = round(abs(value) / scale * _BAR)
    bar = "█" * length
    left, right = (bar, "") if value < 0 else ("", bar)
    return Text.assemble((left.rjust(_BAR), "red"), "│", (right.ljust(_BAR), "green"))


def _layer_table(layers: Sequence[LayerRow]) -> Table:
    table = Table(title="Layers: log-probability increase of the explained token")
    for column in ("layer", "log p before", "attention", "", "FFN", ""):
        table.add_column(column, justify="right", no_wrap=True)
    scale = bar_scale(layers)
    for row in layers:
        table.add_row(
            str(row.layer),
            f"{row.before:.2f}",
            f"{row.attention:+.3f}",
            _bar(row.attention, scale),
            f"{row.ffn:+.3f}",
            _bar(row.ffn, scale),
        )
    return table


def _head_table(explanation: Explanation) -> Table:
    table = Table(title="Attention heads by log-probability increase")
    for column in ("head", "increase", "most from", "of it"):
        table.add_column(column, justify="left" if column in ("head", "most from") else "right", no_wrap=True)
    for head in explanation.heads:
        where = f"{visible(head.position_token)} ({head.position})"
        increases = (f"{head.increase:+.4f}", f"{head.position_increase:+.4f}")
        table.add_row(f"layer {head.layer} head {head.head}", increases[0], escape(where), increases[1])
    return table


def _unit_table(title: str, rows: Sequence[UnitRow], tokens: int, *, position: bool = False) -> Table:
    table = Table(title=title, expand=True)
    # The numbers keep their width; the tokens share what is left.
    table.add_column("unit", no_wrap=True, min_width=max((len(unit_name(row)) for row in rows), default=4))
    table.add_column("score", justify="right", no_wrap=True, min_width=9)
    table.add_column("coefficient", justify="right", no_wrap=True, min_width=11)
    if position:
        table.add_column("at", no_wrap=True, min_width=14, max_width=14)
    table.add_column("promotes", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("demotes", overflow="ellipsis", no_wrap=True, ratio=1)
    for row in rows:
        cells = [unit_name(row), f"{row.score:+.4f}", f"{row.coefficient:+.3f}"]
        if position:
            cells.append(f"{visible(row.position_token)} ({row.position})")
        table.add_row(*map(escape, [*cells, words(row.promotes, tokens), words(row.demotes, tokens)]))
    return table


def as_html(explanation: Explanation, model: str) -> str:
    """The explanation as one page without any outside file."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["visible"] = visible
    source = files("relbench").joinpath("templates/explain.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        e=explanation,
        model=model,
        scale=bar_scale(explanation.layers),
        unit_name=unit_name,
        query_title=query_title,
    )


def write_html(path: str | Path, explanation: Explanation, model: str) -> None:
    """Write `as_html` to a file."""
    with atomic_write(path) as file:
        file.write(as_html(explanation, model))
