"""`relbench attribution-table`: the attribution paper's experiment on any model."""

from __future__ import annotations

import click


@click.command("attribution-table")
@click.option(
    "--model", default="smollm2-135m", show_default=True, help="Embedded model, hub id or local path."
)
@click.option("--relations", help="Names, comma-separated  [default: all of the six knowledge types]")
@click.option("--language", default="en", show_default=True, help="Language code.")
@click.option("--shots", default=0, show_default=True, type=click.IntRange(0), help="Few-shot examples.")
@click.option("--per-type", default=40, show_default=True, type=click.IntRange(2), help="Prompts of a type.")
@click.option(
    "--top", default=10, show_default=True, type=click.IntRange(1), help="Units a score switches off."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the prompts and random units."
)
@click.option("-o", "--out", type=click.Path(file_okay=False), help="Write table.json and table.md there.")
@click.option("--dtype", default="float32", show_default=True, help="Of the weights.")
@click.option("--device", help="cpu, cuda:0, …  [default: the first accelerator, else the processor]")
def attribution_table(
    model: str,
    relations: str | None,
    language: str,
    shots: int,
    per_type: int,
    top: int,
    seed: int,
    out: str | None,
    dtype: str,
    device: str | None,
) -> None:
    """Switch off what each score finds, prompt by prompt, and compare with random units."""
    from rich.markup import escape
    from rich.table import Table

    from relbench.attribution_bench import Config
    from relbench.attribution_prompts import typed_relations
    from relbench.attribution_table import attribution_table as run
    from relbench.attribution_table import cell_text, write_table
    from relbench.console import console
    from relbench.lm import load_lm

    names = tuple(relations.split(",")) if relations else None
    typed_relations(names)
    config = Config(relations=names, language=language, shots=shots, per_type=per_type, top=top, seed=seed)
    lm = load_lm(model, dtype=dtype, device=device)
    found = run(lm.model, lm.tokenizer, config, name=model)
    terminal = console()
    for section in found.sections:
        table = Table(title=escape(section.title), caption=escape(section.note) or None)
        for index, column in enumerate(section.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in section.rows:
            table.add_row(*(escape(cell_text(cell)) for cell in row))
        terminal.print(table)
    if out is not None:
        for path in write_table(out, found):
            click.echo(f"wrote {path}")
