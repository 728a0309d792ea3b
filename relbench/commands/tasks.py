"""`relbench tasks`: list, show, check, build, split, start and import relation probes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from relbench.taskcheck import Finding, Summary


@click.group()
def tasks() -> None:
    """The relation probes: what there is, whether it is right, and the lm-eval files made from it."""


@tasks.command("path")
def path() -> None:
    """Print the folder that holds the probes (for `lm_eval --include_path`)."""
    from relbench.paths import tasks_dir

    click.echo(tasks_dir())


@tasks.command("list")
def list_() -> None:
    """List relations with their languages and numbers of facts."""
    from rich.table import Table

    from relbench.console import console
    from relbench.relations import load_facts, load_relation, relation_names
    from relbench.taskfiles import languages_of

    table = Table(title="Relations")
    for column in ("relation", "domain → range", "facts", "eval", "languages"):
        table.add_column(column, justify="right" if column in ("facts", "eval") else "left")
    for name in relation_names():
        relation, facts = load_relation(name), load_facts(name)
        table.add_row(
            name,
            f"{relation.domain} → {relation.range}",
            str(len(facts)),
            str(sum(fact.split == "eval" for fact in facts)),
            " ".join(languages_of(relation)) or "none: assign splits with `relbench tasks split`",
        )
    console().print(table)


@tasks.command("show")
@click.argument("relation")
@click.option("--language", default="en", show_default=True, help="Language code.")
@click.option("--template", default="completion", show_default=True, help="Template name.")
@click.option("--shots", default=5, show_default=True, type=click.IntRange(0), help="Few-shot examples.")
@click.option(
    "--facts", "number", default=3, show_default=True, type=click.IntRange(1), help="Prompts to show."
)
def show(relation: str, language: str, template: str, shots: int, number: int) -> None:
    """Print prompts of RELATION as a model sees them, with the accepted answers."""
    from relbench.prompts import prompts

    for prompt in prompts([relation], [language], "eval", template, shots=shots, limit=number):
        click.echo(f"--- {prompt.id}")
        click.echo(prompt.text)
        click.echo(f"    → {' | '.join(answer.strip() for answer in prompt.accepted)}")


@tasks.command("check")
@click.argument("relations", nargs=-1)
@click.option("--tokenizer", help="Also check token boundaries with this model's tokenizer.")
@click.option("--quiet", is_flag=True, help="Only print findings.")
def check(relations: tuple[str, ...], tokenizer: str | None, quiet: bool) -> None:
    """Check RELATIONS (default: all). Errors exit with status 2, warnings do not."""
    from relbench.relations import load_relation, relation_names
    from relbench.taskcheck import check as run_check
    from relbench.taskcheck import summaries

    names = relations or relation_names()
    for name in names:
        load_relation(name)
    findings = run_check(names)
    if tokenizer:
        findings += _token_findings(names, tokenizer)
    errors = [finding for finding in findings if finding.level == "error"]
    if not quiet and not errors:
        _print_summaries(summaries(names))
    for finding in findings:
        click.echo(f"{finding.level}: {finding}", err=finding.level == "error")
    click.echo(f"{len(names)} relations: {len(errors)} errors, {len(findings) - len(errors)} warnings")
    if errors:
        sys.exit(2)


def _token_findings(names: tuple[str, ...], tokenizer: str) -> list[Finding]:
    from transformers import AutoTokenizer

    from interventions.errors import UserError
    from relbench.languages import LANGUAGES
    from relbench.models import resolve
    from relbench.taskcheck import check_tokens

    try:
        encoder = AutoTokenizer.from_pretrained(resolve(tokenizer))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0].rstrip(": ")
        raise UserError(f"cannot load the tokenizer {tokenizer!r}: {first}") from error
    return check_tokens(names, tuple(LANGUAGES), encoder.encode)


def _print_summaries(rows: list[Summary]) -> None:
    from rich.table import Table

    from relbench.console import console

    table = Table(title="Facts per split; shares are of the eval facts")
    for column in (
        "relation",
        "lang",
        "shots",
        "detect",
        "tune",
        "eval",
        "answers",
        "majority",
        "unseen",
        "copyable",
    ):
        table.add_column(column, justify="left" if column in ("relation", "lang") else "right")
    for row in rows:
        table.add_row(
            row.relation,
            row.language,
            *(str(row.per_split[split]) for split in ("shots", "detect", "tune", "eval")),
            str(row.answers),
            f"{row.majority:.2f}",
            f"{row.unseen:.2f}",
            f"{row.copyable:.2f}",
        )
    console().print(table)


@tasks.command("new")
@click.argument("relation")
def new(relation: str) -> None:
    """Make the folder of a new RELATION, with templates to fill in."""
    from relbench.new_relation import new_relation

    folder = new_relation(relation)
    click.echo(f"fill in {folder / 'relation.yaml'} and {folder / 'facts.jsonl'}, then run")
    click.echo(f"  relbench tasks split && relbench tasks check {relation} && relbench tasks build")


@tasks.command("import")
@click.argument("format_", metavar="FORMAT", type=click.Choice(["csv", "lre", "bear", "lama", "pararel"]))
@click.argument("file", type=click.Path())
@click.option("--relation", required=True, help="Name of the new relation.")
@click.option("--language", default="en", show_default=True, help="Language of its labels and templates.")
@click.option("--domain", default="thing", show_default=True, help="Type of the subjects.")
@click.option("--range", "range_", default="thing", show_default=True, help="Type of the objects.")
@click.option("--licence", default="unknown", show_default=True, help="Licence of the data.")
@click.option(
    "--template", "templates", multiple=True, help="csv, lama, pararel: '[X] … [Y]'; repeat for more."
)
def import_(
    format_: str,
    file: str,
    relation: str,
    language: str,
    domain: str,
    range_: str,
    licence: str,
    templates: tuple[str, ...],
) -> None:
    """Turn a table or a FILE of another data set into a relation folder, and say what was dropped."""
    from pathlib import Path

    from interventions.errors import UserError
    from relbench.importing import READERS, import_relation
    from relbench.languages import LANGUAGES

    if language not in LANGUAGES:
        raise UserError(f"unknown language {language!r}; languages are {', '.join(LANGUAGES)}")
    if templates and format_ in ("lre", "bear"):
        raise UserError(f"--template is for the other formats; {format_} files bring their own")
    source = READERS[format_](Path(file), *([templates] if templates else []))
    made = import_relation(
        source,
        relation,
        language=language,
        domain=domain,
        range_=range_,
        licence=licence,
        origin=f"{format_}: {Path(file).name}",
    )
    for remark in made.remarks:
        click.echo(f"note: {remark}")
    click.echo(f"{made.facts} facts with {made.answers} answers in {made.folder}")
    click.echo(f"next: relbench tasks check {relation} && relbench tasks build")


@tasks.command("split")
def split() -> None:
    """Assign a split to every new subject and write it into the facts; splits already given stay."""
    from relbench.relations import load_facts, relation_names
    from relbench.splits import assign, read_registry, write_registry, write_splits

    names = relation_names()
    registry = read_registry()
    extended = assign({name: load_facts(name) for name in names}, registry)
    write_registry(extended)
    changed = {name: write_splits(name, extended) for name in names}
    click.echo(f"{len(extended) - len(registry)} subjects are new in the registry")
    for name, number in changed.items():
        if number:
            click.echo(f"{name}: {number} facts got a split")


@tasks.command("build")
@click.option(
    "--check", "check_only", is_flag=True, help="Only report stale files; exit 2 when there are any."
)
def build(check_only: bool) -> None:
    """Write the lm-eval YAML files of every relation, language and group."""
    from relbench.paths import tasks_dir
    from relbench.taskfiles import build as write
    from relbench.taskfiles import stale

    if check_only:
        changed = stale()
        for file in changed:
            click.echo(f"stale: {file.relative_to(tasks_dir())}", err=True)
        if changed:
            click.echo("relbench: error: run `relbench tasks build`", err=True)
            sys.exit(2)
        click.echo("every generated file is up to date")
        return
    written, removed = write()
    click.echo(f"{written} files written, {removed} removed")
