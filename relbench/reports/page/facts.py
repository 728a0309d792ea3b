"""Every answer of a sweep, small enough for a page: what the numbers in it are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from interventions.errors import UserError
from relbench.analysis.runs import Pairs, Runs, language_of, paired_runs, relation_of
from relbench.findings.reading import Sweep
from relbench.probes import Probe, probes
from relbench.prompts import concept
from relbench.reports.page.packing import pack_bits, pack_changes
from relbench.samples import Sample
from relbench.treatments import RANDOM, Treatment

# Most that is embedded. An answer is a bit, or with its change of log probability two bytes more.
ANSWERS, CHANGES, QUESTIONS, CONTINUATIONS = 40_000_000, 1_500_000, 20_000, 100_000

Asked = Mapping[str, Sequence[Sample]]


def page_facts(sweep: Sweep) -> dict[str, Any]:
    """Facts, and what every mask did to each, asked by the sweep's first template and number of shots.

    Returns:
        `concepts`: the facts of each, and their answers without a mask; `masks`: the answers under each;
        `strings`: what the model said; `notes`: in words, what is embedded and what is not.

    Raises:
        UserError: Samples do not pair.
    """
    runs = paired_runs(sweep.treatments, sweep.main)
    asked: dict[str, list[Sample]] = {}
    # In the order of pairs, so that one position is one fact in every list.
    for sample in sorted(runs.baseline, key=lambda sample: sample.key):
        asked.setdefault(concept(sample.relation, sample.language), []).append(sample)
    facts = sum(map(len, asked.values()))
    treatments, notes = _kept(runs)
    answers = sum(_answers(runs, treatment) for treatment in treatments)
    changes = answers <= CHANGES
    if not changes:
        notes.append("changes of log probability are left out")
    said = _said(runs, treatments)
    strings = {text: number for number, text in enumerate(sorted(said))} if said is not None else None
    if strings is None:
        notes.append("what the model said is left out")
    elif not strings:
        notes.append("what the model said was not recorded")
    texts = facts <= QUESTIONS
    if not texts:
        notes.append("prompts are left out")
    numbers = {name: number for number, name in enumerate(asked)}
    return {
        "concepts": [
            _concept(name, samples, sweep.config.split, texts, strings) for name, samples in asked.items()
        ],
        "masks": {
            treatment.id: _mask(runs.pairs[treatment.id], numbers, changes, strings)
            for treatment in treatments
        },
        "strings": list(strings or ()),
        "notes": [f"{facts:,} facts, and {answers:,} answers under {len(treatments):,} masks", *notes],
    }


def _answers(runs: Runs, treatment: Treatment) -> int:
    return sum(map(len, runs.pairs[treatment.id].values()))


def _kept(runs: Runs) -> tuple[list[Treatment], list[str]]:
    """The treatments whose answers are embedded, and in words what is not."""
    kept, notes = list(runs.treatments), []
    if sum(_answers(runs, one) for one in kept) > ANSWERS:
        kept = [one for one in kept if one.method != RANDOM]
        notes.append("answers under random masks are left out")
    fit: list[Treatment] = []
    answers = 0
    for one in kept:
        answers += _answers(runs, one)
        if answers > ANSWERS:
            notes.append(f"answers under all masks after the first {len(fit):,} are left out")
            break
        fit.append(one)
    return fit, notes


def _said(runs: Runs, treatments: Iterable[Treatment]) -> set[str] | None:
    """Everything that the model said; None where that is too much."""
    found: set[str] = set()
    number = 0
    for treatment in treatments:
        for pairs in runs.pairs[treatment.id].values():
            for one in pairs:
                texts = [
                    text for text in (one.before.continuation, one.after.continuation) if text is not None
                ]
                found.update(texts)
                number += len(texts)
        if number > CONTINUATIONS:
            return None
    return found


def _concept(
    name: str, samples: Sequence[Sample], split: str, texts: bool, strings: Mapping[str, int] | None
) -> dict[str, Any]:
    asked = _questions(samples, split) if texts else {}
    found = [asked.get(sample.fact_id) for sample in samples]
    strings = strings or {}
    return {
        "relation": relation_of(name),
        "language": language_of(name),
        "fact": [sample.fact_id for sample in samples],
        "subject": [
            probe.subject if probe else sample.subject_id
            for sample, probe in zip(samples, found, strict=True)
        ],
        "prompt": [probe and probe.prompt for probe in found],
        "answer": [
            probe.answer if probe else sample.answer_id for sample, probe in zip(samples, found, strict=True)
        ],
        "copyable": pack_bits([[int(sample.copyable) for sample in samples]]),
        "seen": pack_bits([[int(sample.answer_seen) for sample in samples]]),
        "right": pack_bits([[sample.recall for sample in samples]]),
        "logprob": pack_changes(sample.answer_logprob for sample in samples),
        "said": [strings.get(sample.continuation or "", -1) for sample in samples],
    }


def _questions(samples: Sequence[Sample], split: str) -> dict[str, Probe]:
    """Fact id → its probe; without those that are no longer what was asked."""
    first = samples[0]
    try:
        known = {
            probe.fact_id: probe for probe in probes(first.relation, first.language, split, first.template)
        }
    except UserError:
        # The sweep was run on relations that are not here.
        return {}
    identities = {(sample.fact_id, sample.subject_id, sample.answer_id) for sample in samples}
    return {
        name: probe
        for name, probe in known.items()
        if (name, probe.subject_id, probe.answer_id) in identities
    }


def _mask(
    pairs: Mapping[str, Pairs], numbers: Mapping[str, int], changes: bool, strings: Mapping[str, int] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "concepts": [numbers[name] for name in pairs],
        "right": pack_bits([one.after.recall for one in members] for members in pairs.values()),
    }
    if changes:
        found["change"] = pack_changes(
            one.after.answer_logprob - one.before.answer_logprob
            for members in pairs.values()
            for one in members
        )
    said = [
        [numbers[name], number, strings[one.after.continuation]]
        for name, members in pairs.items()
        for number, one in enumerate(members)
        if one.after.continuation is not None and strings
    ]
    return {**found, "said": said} if said else found
