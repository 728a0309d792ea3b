"""`relbench mask`: make, combine, show, compare, import and export masks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from interventions.apply import Intervention
    from interventions.masks import Mask
    from interventions.scores import Floats, Scores
    from interventions.units import Site

_IN = click.Path(dir_okay=False)
_OUT = click.option("-o", "--out", required=True, type=click.Path(), help="File to write.")
_MODEL = "Embedded model, hub id or local path."
BAR_WIDTH = 40


@click.group()
def mask() -> None:
    """Sets of neurons: from scores, from other masks, at random, from and for other tools."""


def _kinds(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text else None


def _load_model(name: str) -> Any:
    import sys

    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from interventions.errors import UserError
    from relbench.models import resolve

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(resolve(name), dtype="auto").eval()
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"cannot load the model {name!r}: {first}") from None


def _save(made: Mask, out: str) -> None:
    made.save(out)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in made.kinds().items()) or "none"
    click.echo(f"{len(made):,} units ({kinds}) → {out}")


@mask.command("top-k")
@click.argument("scores", type=_IN)
@click.option("--concept", required=True, help="One of the scores' concepts, such as country_capital@en.")
@click.option("--k", type=int, help="How many units.")
@click.option("--fraction", type=float, help="Share of the model's distinct act neurons, instead of --k.")
@click.option("--threshold", type=float, help="Every unit with at least this score, instead of --k.")
@click.option("--band", type=(int, int), help="Units of ranks LOW+1 to HIGH, instead of --k.")
@click.option("--per-layer", is_flag=True, help="The k highest in each layer.")
@click.option(
    "--side",
    default="top",
    show_default=True,
    type=click.Choice(["top", "bottom", "both", "absolute"]),
    help="Which end of the scores.",
)
@click.option("--kinds", help="Only these unit kinds, comma-separated.")
@_OUT
def top_k_command(
    scores: str,
    concept: str,
    k: int | None,
    fraction: float | None,
    threshold: float | None,
    band: tuple[int, int] | None,
    per_layer: bool,
    side: Any,
    kinds: str | None,
    out: str,
) -> None:
    """The units of SCORES that score highest for a concept."""
    from interventions import selection
    from interventions.errors import UserError
    from interventions.scores import Scores

    if sum(option is not None for option in (k, fraction, threshold, band)) != 1:
        raise UserError("give exactly one of --k, --fraction, --threshold and --band")
    if per_layer and k is None:
        raise UserError("--per-layer goes with --k")
    if Path(out).resolve() == Path(scores).resolve():
        raise UserError(f"{out} is the scores file that the mask is made from; give another name to -o")
    loaded = Scores.load(scores)
    if fraction is not None:
        if loaded.model.layout is None:
            raise UserError("the scores do not carry the model's layout; use --k instead of --fraction")
        k = selection.budget(loaded.model.layout, fraction)
    options: dict[str, Any] = {"side": side, "kinds": _kinds(kinds)}
    if threshold is not None:
        made = selection.threshold(loaded, concept, threshold, **options)
    elif band is not None:
        made = selection.band(loaded, concept, *band, **options)
    elif per_layer:
        made = selection.per_layer_top_k(loaded, concept, int(k or 0), **options)
    else:
        made = selection.top_k(loaded, concept, int(k or 0), **options)
    ties = made.provenance.get("ties", 0)
    if ties > 0.05 * max(len(made), 1) and ties > 1:
        click.echo(
            f"relbench: warning: {ties} units tie at rank {len(made)}, so which of them are in is arbitrary; "
            "score more prompts, or zero-shot ones",
            err=True,
        )
    _save(made, out)


@mask.command("random")
@click.argument("masks", nargs=-1, required=True, type=_IN)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Equal seeds give equal masks."
)
@click.option("--disjoint", is_flag=True, help="Leave the mask's own units out.")
@click.option(
    "--match",
    default="site",
    show_default=True,
    type=click.Choice(["site", "contribution"]),
    help="As many units in each site; contribution: also in each decile of mean |m|·‖v‖, see --scores.",
)
@click.option("--pooled", is_flag=True, help="Spread the units like all MASKS together, --k of them.")
@click.option("--k", type=int, help="With --pooled: how many units  [default: the first mask's number]")
@click.option("--scores", type=_IN, help="Scores that the mask was made from: statistics of the drawn units.")
@click.option("--concept", help="Whose statistics in --scores  [default: the mask's concept]")
@click.option("--model", help=f"For --match contribution, when the scores hold no norms. {_MODEL}")
@_OUT
def random_command(
    masks: tuple[str, ...],
    seed: int,
    disjoint: bool,
    match: str,
    pooled: bool,
    k: int | None,
    scores: str | None,
    concept: str | None,
    model: str | None,
    out: str,
) -> None:
    """A random control for MASKS: as many units in the same layers and kinds."""
    from interventions.controls import (
        concept_of,
        contribution,
        pooled_histogram,
        random_from_histogram,
        random_like,
    )
    from interventions.errors import UserError
    from interventions.mask import Mask, layout_for
    from interventions.removed import value_norms
    from interventions.scores import Scores

    loaded = [Mask.load(path) for path in masks]
    if pooled:
        if disjoint or match != "site" or scores is not None:
            raise UserError("--pooled goes with --seed and --k only")
        layout = layout_for(loaded[0])
        count = len(loaded[0]) if k is None else k
        drawn = random_from_histogram(pooled_histogram(loaded), count, layout, loaded[0].model, seed=seed)
        _save(drawn, out)
        return
    if len(loaded) != 1 or k is not None:
        raise UserError("give one mask, or --pooled for a control of several masks together")
    statistics = Scores.load(scores) if scores is not None else None
    weights = None
    if match == "contribution":
        if statistics is None:
            raise UserError("--match contribution needs --scores, which hold mean |m| of every unit")
        norms = value_norms(_load_model(model)) if model is not None else None
        weights = contribution(statistics, concept_of(loaded[0], concept), norms=norms)
    drawn = random_like(
        loaded[0], seed=seed, disjoint=disjoint, contribution=weights, scores=statistics, concept=concept
    )
    _save(drawn, out)


@mask.command("combine")
@click.argument("operation", type=click.Choice(["union", "intersection", "difference", "complement"]))
@click.argument("masks", nargs=-1, required=True, type=_IN)
@click.option("--kinds", help="For complement: the unit kinds it is taken in  [default: the mask's]")
@_OUT
def combine_command(operation: str, masks: tuple[str, ...], kinds: str | None, out: str) -> None:
    """OPERATION on MASKS. `complement` of one mask keeps only its units when applied."""
    from interventions import algebra
    from interventions.errors import UserError
    from interventions.mask import Mask

    loaded = [Mask.load(path) for path in masks]
    if operation == "complement":
        if len(loaded) != 1:
            raise UserError("complement takes one mask")
        made = algebra.complement(loaded[0], kinds=_kinds(kinds))
    elif kinds is not None:
        raise UserError("--kinds goes with complement")
    else:
        made = getattr(algebra, operation)(*loaded)
    _save(made, out)


@mask.command("show")
@click.argument("path", metavar="MASK", type=_IN)
@click.option("--model", help=f"For the share of the removed norm. {_MODEL}")
@click.option("--scores", type=_IN, help="Scores with norms, for the same without loading a model.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def show_command(path: str, model: str | None, scores: str | None, as_json: bool) -> None:
    """What is in MASK: where its units are, how many, how chosen, for which model."""
    import json

    from interventions.mask import Mask
    from interventions.scores import Scores

    loaded = Mask.load(path)
    shares = _shares(loaded, model, Scores.load(scores) if scores else None)
    if as_json:
        content = {
            "units": len(loaded),
            "ffn_neurons": loaded.ffn_neurons(),
            "kinds": loaded.kinds(),
            "layers": loaded.layers().tolist(),
            "removed": shares,
            "digest": loaded.digest,
            "model": loaded.model.to_dict(),
            "provenance": loaded.provenance,
            "references": sorted(loaded.references),
        }
        click.echo(json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True))
        return
    _print_summary(loaded, shares)
    _print_layers(loaded)


def _shares(shown: Mask, model: str | None, scores: Scores | None) -> dict[str, dict[str, float]]:
    """What the mask removes: "norm" and "contribution" → kind → share."""
    from interventions.controls import contribution
    from interventions.errors import UserError
    from interventions.model_id import ModelId
    from interventions.removed import removed_share, value_norms

    found: dict[str, dict[str, float]] = {}
    concept = ""
    if scores is not None:
        if not scores.model.fits(shown.model):
            raise UserError(
                f"the scores are of {scores.model.describe()}, the mask of {shown.model.describe()}"
            )
        concept = str(shown.provenance.get("concept") or scores.concepts[0])
    norms: Mapping[Site, Floats] | None = None
    if model is not None:
        loaded = _load_model(model)
        identity = ModelId.of(loaded)
        if not identity.layout_fits(shown.model):
            raise UserError(f"the mask is of {shown.model.describe()}, the model is {identity.describe()}")
        norms = value_norms(loaded)
    elif scores is not None:
        norms = scores.reference("norm", concept)
    if norms is not None:
        found["norm"] = removed_share(shown, norms)
    if scores is not None and "mean_abs" in scores.references:
        found["contribution"] = removed_share(shown, contribution(scores, concept, norms=norms))
    return found


def _print_summary(shown: Mask, shares: dict[str, dict[str, float]]) -> None:
    from relbench.console import console

    layout = shown.model.layout
    lines = [f"model       {shown.model.describe()}", f"made by     {_history(shown.provenance)}"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in shown.kinds().items()) or "none"
    lines.append(f"units       {len(shown):,} ({kinds})")
    neurons = shown.ffn_neurons()
    total = (
        f" of {layout.n_layers * layout.d_ff:,} ({neurons / layout.n_layers / layout.d_ff:.2%})"
        if layout
        else ""
    )
    lines.append(f"FFN neurons {neurons:,} distinct{total}, gate, up and act of one neuron counted once")
    words = {"norm": "share of the value vectors' norm", "contribution": "share of mean |m|·‖v‖"}
    for name, by_kind in shares.items():
        values = ", ".join(f"{kind} {share:.2%}" for kind, share in by_kind.items()) or "no writing units"
        lines.append(f"removed     {values}: {words[name]}")
    if not shares:
        lines.append("removed     (give --model or --scores for the share of the norm)")
    lines.append(
        f"statistics  {', '.join(shown.references) or 'none: modes zero and scale, and constant values'}"
    )
    lines.append(f"sha256      {shown.digest}")
    console().print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _history(provenance: dict[str, Any]) -> str:
    """One line that says how a mask came to be, its inputs in brackets."""
    inner = provenance.get("masks")
    words = [str(provenance.get("operation", "unknown"))]
    words += [
        f"{key}={provenance[key]}"
        for key in ("method", "concept", "k", "side", "value", "band", "seed", "disjoint", "matched", "from")
        if key in provenance
    ]
    nested = f" of [{'; '.join(_history(one) for one in inner if isinstance(one, dict))}]" if inner else ""
    return " ".join(words) + nested


def _print_layers(shown: Mask) -> None:
    from rich.table import Table

    from relbench.console import console

    counts, kinds = shown.layers(), list(shown.kinds())
    table = Table(title="Units in each layer", title_justify="left", box=None, pad_edge=False)
    table.add_column("layer", justify="right")
    for kind in kinds:
        table.add_column(kind, justify="right")
    table.add_column("all", justify="right")
    table.add_column("")
    by_site = {(site.layer, site.kind): units.size for site, units in shown.units.items()}
    longest = max(int(counts.max(initial=0)), 1)
    for layer, count in enumerate(counts):
        bar = "█" * round(BAR_WIDTH * int(count) / longest)
        cells = [f"{by_site.get((layer, kind), 0):,}" for kind in kinds]
        table.add_row(str(layer), *cells, f"{count:,}", bar)
    console().print(table)


@mask.command("compare")
@click.argument("masks", nargs=-1, required=True, type=_IN)
@click.option("--csv", "csv_path", type=_IN, help="Write every pair as CSV as well.")
def compare_command(masks: tuple[str, ...], csv_path: str | None) -> None:
    """Overlap of MASKS: shared units and Jaccard index of each pair, and what random sets would share."""
    from rich.table import Table

    from interventions.controls import expected_overlap
    from interventions.errors import UserError
    from interventions.mask import Mask
    from interventions.masks import jaccard, overlap
    from relbench.console import console

    if len(masks) < 2:
        raise UserError("compare needs at least two masks")
    loaded = [Mask.load(path) for path in masks]
    names = _short_names(masks)
    click.echo("Shared units / Jaccard index of each pair; on the diagonal, units of the mask.")
    table = Table()
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    rows = []
    for i, first in enumerate(loaded):
        cells = []
        for j, second in enumerate(loaded):
            shared, index = overlap(first, second), jaccard(first, second)
            cells.append(f"{len(first):,}" if i == j else f"{shared:,} / {index:.3f}")
            if i < j:
                rows.append(
                    (
                        masks[i],
                        masks[j],
                        len(first),
                        len(second),
                        shared,
                        index,
                        expected_overlap(first, second),
                    )
                )
        table.add_row(names[i], *cells)
    console().print(table)
    _print_pairs(names, loaded, rows)
    if csv_path is not None:
        _write_pairs(csv_path, rows)


def _print_pairs(names: list[str], loaded: list[Mask], rows: list[tuple[Any, ...]]) -> None:
    if all(row[6] is None for row in rows):
        return
    spans = [row[6] for row in rows if row[6] is not None]
    low, high = min(spans), max(spans)
    text = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
    click.echo(f"Random sets with as many units in each site would share {text} units.")


def _write_pairs(path: str, rows: list[tuple[Any, ...]]) -> None:
    import csv

    from interventions.files import atomic_write

    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("first", "second", "first_units", "second_units", "shared", "jaccard", "shared_at_random")
        )
        writer.writerows(rows)


def _short_names(paths: tuple[str, ...]) -> list[str]:
    stems = [Path(path).stem for path in paths]
    return [stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True)]


@mask.command("import")
@click.argument("path", type=click.Path())
@click.option("--model", help=f"The model it belongs to (not needed for our own exports). {_MODEL}")
@click.option(
    "--kind", default="act", show_default=True, help="Kind of the units of a CSV without a kind column."
)
@_OUT
def import_command(path: str, model: str | None, kind: str, out: str) -> None:
    """A mask from PATH: a PEFT (IA)³ adapter folder, or a CSV with layer,unit or layer,kind,unit."""
    from interventions.errors import UserError
    from interventions.imports import import_csv, import_peft
    from interventions.model_id import ModelId

    if not Path(path).exists():
        raise UserError(f"there is no {path}")
    folder = Path(path).is_dir()
    if not folder and model is None:
        raise UserError("a CSV does not say which model its units belong to; add --model")
    identity = ModelId.of(_load_model(model)) if model is not None else None
    if folder:
        imported = import_peft(path, identity)
        if imported.factor != 0:
            click.echo(f"the adapter multiplies: run the mask with mode=scale,factor={imported.factor:g}")
        _save(imported.mask, out)
    else:
        assert identity is not None
        _save(import_csv(path, identity, kind=kind), out)


@mask.command("export")
@click.argument("path", metavar="MASK", type=_IN)
@click.option("--as", "form", required=True, type=click.Choice(["peft", "checkpoint", "csv"]), help="Form.")
@click.option("--mode", default="zero", show_default=True, type=click.Choice(["zero", "scale"]), help="Mode.")
@click.option("--factor", type=float, help="For --mode scale.")
@click.option("--model", help=f"The model to change (checkpoint), or to name (peft). {_MODEL}")
@click.option("--force", is_flag=True, help="Also for other weights of the same layout, a fine-tune say.")
@click.option("--push-to-hub", "repo", metavar="USER/NAME", help="Upload the folder with its model card.")
@click.option("--private", is_flag=True, help="Make that repository private.")
@_OUT
def export_command(
    path: str,
    form: str,
    mode: Any,
    factor: float | None,
    model: str | None,
    force: bool,
    repo: str | None,
    private: bool,
    out: str,
) -> None:
    """MASK for other tools: a PEFT (IA)³ adapter, a folded checkpoint, or a CSV of units."""
    from interventions.apply import Intervention
    from interventions.errors import UserError
    from interventions.export import export_csv, export_peft
    from interventions.hub import push
    from interventions.mask import Mask

    intervention = Intervention(Mask.load(path), mode, factor=factor)
    if form == "csv":
        if repo is not None:
            raise UserError("--push-to-hub goes with --as peft or checkpoint")
        if mode != "zero":
            raise UserError("a CSV lists units only; --mode goes with --as peft or checkpoint")
        export_csv(intervention.mask, out)
    elif form == "peft":
        name = model or intervention.mask.model.name
        export_peft(intervention, out, base=name, card=_card(intervention, "peft", name, repo))
    else:
        _export_checkpoint(intervention, model, out, force=force, repo=repo)
    click.echo(f"{len(intervention.mask):,} units → {out}")
    if repo is not None:
        click.echo(push(out, repo, private=private))


def _export_checkpoint(
    intervention: Intervention, model: str | None, out: str, *, force: bool, repo: str | None
) -> None:
    from transformers import AutoTokenizer

    from interventions.errors import UserError
    from interventions.export import export_checkpoint, refuse_used_folder
    from relbench.models import resolve

    if model is None:
        raise UserError("--as checkpoint needs --model, the model whose weights are written")
    refuse_used_folder(out)
    loaded = _load_model(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(model))
    except (OSError, ValueError):
        tokenizer = None
        click.echo(
            "relbench: warning: the model has no tokenizer beside it, so the export has none", err=True
        )
    card = _card(intervention, "checkpoint", model, repo)
    export_checkpoint(loaded, tokenizer, intervention, out, force=force, card=card)


def _card(intervention: Intervention, form: Any, name: str, repo: str | None) -> str:
    from interventions.hub import model_card
    from relbench import __version__

    provenance = intervention.mask.provenance
    facts = {"relbench": __version__}
    concept = str(provenance.get("concept", ""))
    relation, at, language = concept.partition("@")
    if at:
        facts |= {"Relation": relation, "Language": language}
    if provenance.get("data_hash"):
        facts["Data"] = f"prompts sha256 `{str(provenance['data_hash'])[:16]}`"
    return model_card(intervention, form=form, base_model=name, facts=facts, repo=repo or "DIR")
