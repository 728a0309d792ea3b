"""What findings are computed from: the files of a sweep directory, and the probes that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jsonlines

from interventions.errors import UserError
from relbench.analysis.continuations import Question
from relbench.analysis.offtarget import Scheme
from relbench.analysis.overlap import Chosen
from relbench.analysis.perplexity import Document
from relbench.analysis.runs import Setting, by_setting
from relbench.analysis.testability import Testability
from relbench.probes import probes
from relbench.relations import load_facts, load_relation, relation_names
from relbench.samples import Sample, read_samples
from relbench.sweep_config import MethodConfig, ScoresConfig, SweepConfig
from relbench.sweep_state import read_config, read_treatments
from relbench.treatments import RANDOM, TOP_K, Treatment


@dataclass(frozen=True)
class Sweep:
    """A finished sweep, as its directory holds it.

    Attributes:
        config: What was asked for.
        treatments: What was done.
        settings: Samples by template and number of shots, the config's first of both first.
        documents: Log probabilities of documents, when perplexity was measured.
        chosen: Top-k mask (treatment) → its units; without those whose file is missing.
    """

    config: SweepConfig
    treatments: tuple[Treatment, ...]
    settings: Mapping[Setting, Sequence[Sample]]
    documents: tuple[Document, ...]
    chosen: Mapping[str, Chosen]

    @property
    def main(self) -> Sequence[Sample]:
        """Samples of the first setting, on which everything but template transfer rests."""
        return next(iter(self.settings.values()))

    @cached_property
    def contrasted(self) -> dict[str, frozenset[str]]:
        """Scoring method → the relations that it read as negatives or contrasted with.

        Of scores that were made elsewhere only the config's word is known.
        """
        named = self.config.contrast_relations or self.config.tested_relations
        entries: tuple[MethodConfig | ScoresConfig, ...] = (*self.config.methods, *self.config.scores)
        found = {
            entry.id: frozenset(_negatives(entry, named) if isinstance(entry, MethodConfig) else named)
            for entry in entries
        }
        # Random masks are judged beside the others, so not as held out from what one of these was contrasted with.
        found[RANDOM] = frozenset(name for names in found.values() for name in names)
        return found

    def scheme(self, judged: Iterable[Testability]) -> Scheme:
        """What off-target numbers rest on."""
        known = set(relation_names())
        return Scheme(
            testable=frozenset(one.concept for one in judged if one.testable),
            ranges={name: load_relation(name).range for name in self.config.relations if name in known},
            contrasted=self.contrasted,
        )


def _negatives(method: MethodConfig, named: Sequence[str]) -> Iterable[str]:
    if method.name == "random" or method.options.get("contrast") == "none":
        return ()
    given = method.options.get("negatives")
    if isinstance(given, Mapping):
        return {str(concept).rpartition("@")[0] for others in given.values() for concept in others}
    return named


def read_sweep(directory: str | Path) -> Sweep:
    """Read a sweep directory.

    Raises:
        UserError: It is no finished sweep, or a file of it is damaged.
    """
    directory = Path(directory)
    config, treatments = read_config(directory), read_treatments(directory)
    found = by_setting(read_samples(directory / "samples.jsonl"))
    order = [Setting(template, shots) for shots in config.shots for template in config.templates]
    missing = [setting for setting in order if setting not in found]
    if missing:
        raise UserError(
            f"{directory} has no samples of template {missing[0].template}; finish the sweep first"
        )
    return Sweep(
        config=config,
        treatments=tuple(treatments),
        settings={setting: found[setting] for setting in order},
        documents=tuple(_documents(directory / "perplexity.jsonl")),
        chosen=_chosen(directory, treatments),
    )


def _documents(path: Path) -> list[Document]:
    if not path.is_file():
        return []
    try:
        with jsonlines.open(path) as lines:
            return [_document(raw) for raw in lines]
    except (jsonlines.Error, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a sweep's perplexity file: {error}") from error


def _document(raw: Mapping[str, Any]) -> Document:
    kind, name = str(raw["kind"]), str(raw["document"])
    # A sentence of a relation is named relation.<language>.<relation>.<fact>.
    relation = name.split(".")[2] if kind == "relation" else None
    return Document(
        treatment=str(raw["treatment"]),
        name=name,
        language=str(raw["language"]),
        relation=relation,
        tokens=int(raw["n_tokens"]),
        logprob=float(raw["logprob"]),
    )


def _chosen(directory: Path, treatments: Iterable[Treatment]) -> dict[str, Chosen]:
    read = lru_cache(maxsize=None)(_read_mask)
    return {
        treatment.id: read(directory / treatment.mask)
        for treatment in treatments
        if treatment.concept is not None
        and treatment.selection == TOP_K
        and treatment.mask is not None
        and (directory / treatment.mask).is_file()
    }


def _read_mask(path: Path) -> Chosen:
    from interventions.mask import Mask, layout_for

    mask = Mask.load(path)
    layout = layout_for(mask)
    kinds = mask.provenance.get("kinds") or list(mask.kinds())
    return Chosen(mask.units, {site: layout.size(site.kind) for site in layout.sites(kinds)})


def questions(samples: Iterable[Sample], split: str) -> dict[tuple[str, str, str], Question]:
    """(fact id, language, template) → what the continuations among `samples` are read against."""
    asked = {(s.relation, s.language, s.template) for s in samples if s.continuation is not None}
    found = {}
    for relation, language, template in sorted(asked):
        objects = tuple(
            dict.fromkeys(
                label
                for fact in load_facts(relation)
                for object_ in fact.objects
                for label in object_.labels.get(language, ())
            )
        )
        for probe in probes(relation, language, split, template):
            found[probe.fact_id, language, template] = Question(
                language, probe.prompt, probe.subject, probe.accepted, objects
            )
    return found
