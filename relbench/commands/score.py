"""`relbench score`: score every unit of a model for relations with one method."""

from __future__ import annotations

import click


@click.command()
@click.argument("method", required=False)
@click.option(
    "--preset", help="A method with all its settings: relspec, default; other options override them."
)
@click.option("--model", required=True, help="Embedded model, hub id or local path.")
@click.option("--relations", default="all", show_default=True, help="Names, comma-separated.")
@click.option("--languages", default="en", show_default=True, help="Language codes, comma-separated.")
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="Scores file to write.")
@click.option(
    "--contrast",
    type=click.Choice(["others", "same-answer-type", "none"]),
    help="What attribution subtracts: other relations, those with answers of the same type, nothing.",
)
@click.option(
    "--contrast-relations",
    help="Relations used as negatives and in the contrast, comma-separated  [default: the scored ones]",
)
@click.option("--template", help="Prompt template, or several, comma-separated  [default: the method's own]")
@click.option("--shots", type=click.IntRange(0), help="Few-shot examples  [default: the method's own number]")
@click.option("--shots-seed", default=0, show_default=True, help="Seed of their choice.")
@click.option(
    "--split", default="detect", show_default=True, type=click.Choice(["detect", "tune"]), help="Facts."
)
@click.option("--limit", type=click.IntRange(1), help="At most so many prompts a relation and language.")
@click.option("--kinds", help="Unit kinds, comma-separated  [default: act]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the method.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the method's own; repeat."
)
@click.option("--dtype", default="float32", show_default=True, help="Of the weights.")
@click.option("--device", help="cpu, cuda:0, …  [default: the first accelerator, else the processor]")
def score(
    method: str | None,
    preset: str | None,
    model: str,
    relations: str,
    languages: str,
    out: str,
    contrast: str | None,
    contrast_relations: str | None,
    template: str | None,
    shots: int | None,
    shots_seed: int,
    split: str,
    limit: int | None,
    kinds: str | None,
    seed: int,
    options: tuple[str, ...],
    dtype: str,
    device: str | None,
) -> None:
    """Score units with METHOD, such as average-precision or log-probability-increase, or with a preset."""
    import yaml

    from interventions.errors import UserError
    from relbench.presets import Preset, get_preset
    from relbench.relations import relation_names
    from relbench.scoring import ScoringPlan, check_plan, scoring_prompts
    from relbench.scoring import score as run_score

    given = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"--option takes KEY=VALUE, not {option!r}")
        given[key] = yaml.safe_load(value)
    if (method is None) == (preset is None):
        raise UserError("give a method or --preset, one of the two")
    chosen = get_preset(preset) if preset is not None else Preset(str(method), "", 0, ("act",))
    if preset is not None:
        given = {**chosen.options, **given}
        template, shots = template or chosen.template, chosen.shots if shots is None else shots
    if contrast is not None:
        given["contrast"] = contrast
    plan = ScoringPlan(
        method=chosen.method,
        relations=relation_names() if relations == "all" else tuple(relations.split(",")),
        languages=tuple(languages.split(",")),
        contrast_relations=tuple(contrast_relations.split(",")) if contrast_relations else None,
        template=template,
        shots=shots,
        shots_seed=shots_seed,
        split=split,
        limit=limit,
        kinds=tuple(kinds.split(",")) if kinds else chosen.kinds,
        seed=seed,
        options=given,
    )
    check_plan(plan)

    from relbench.lm import load_lm

    lm = load_lm(model, dtype=dtype, device=device)
    scores = run_score(plan, lm.model, lm.tokenizer, lm.model_id)
    scores.save(out)
    click.echo(f"{len(scores.concepts)} concepts × {len(scoring_prompts(plan))} prompts → {out}")
