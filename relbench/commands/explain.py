"""`relbench explain`: one prediction taken apart."""

from __future__ import annotations

import click


@click.command()
@click.option("--prompt", required=True, help="The text; the model's next token is explained.")
@click.option(
    "--model", default="smollm2-135m", show_default=True, help="Embedded model, hub id or local path."
)
@click.option("--answer", help="Explain the first token of this text, with its leading space, instead.")
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), help="Rows of each table.")
@click.option(
    "--tokens", default=8, show_default=True, type=click.IntRange(1), help="Tokens shown for a unit."
)
@click.option(
    "--value-neurons",
    default=30,
    show_default=True,
    type=click.IntRange(1),
    help="Value neurons of each kind that query neurons are scored over.",
)
@click.option(
    "--share-floor",
    type=click.FloatRange(0),
    help="Query scores as shares of h . k, kept above this times |h| |k|  [default: plain inner products]",
)
@click.option("--html", "html_path", type=click.Path(dir_okay=False), help="Write a self-contained page.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), help="Write every number; - for stdout."
)
@click.option("--dtype", default="float32", show_default=True, help="Of the weights.")
@click.option("--device", help="cpu, cuda:0, …  [default: the first accelerator, else the processor]")
def explain(
    prompt: str,
    model: str,
    answer: str | None,
    top: int,
    tokens: int,
    value_neurons: int,
    share_floor: float | None,
    html_path: str | None,
    json_path: str | None,
    dtype: str,
    device: str | None,
) -> None:
    """Explain one prediction: layers, heads, value and query neurons, and the tokens each promotes."""
    from interventions.attribution.explanation import explain as run_explain
    from relbench.console import console
    from relbench.explain import as_json, print_terminal, write_html, write_json
    from relbench.lm import load_lm

    lm = load_lm(model, dtype=dtype, device=device)
    found = run_explain(
        lm.model,
        lm.tokenizer,
        prompt,
        answer=answer,
        top=top,
        tokens_shown=tokens,
        value_neurons=value_neurons,
        share_floor=share_floor,
    )
    if html_path is not None:
        write_html(html_path, found, model)
    if json_path == "-":
        click.echo(as_json(found, model), nl=False)
        return
    if json_path is not None:
        write_json(json_path, found, model)
    print_terminal(console(), found, model, tokens=tokens)
    for path in (html_path, json_path):
        if path is not None:
            click.echo(f"wrote {path}")
