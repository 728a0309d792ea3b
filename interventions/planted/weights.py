"""The planted model's weights, and which of its units carry what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.planted.facts import (
    FILLER,
    INTERFERING,
    N_ANSWERS,
    N_CODES,
    N_FAMILIES,
    RELATIONS,
    SHARED,
    WORDS,
    Facts,
    Floats,
    Ints,
)
from interventions.units import Site

N_LAYERS, D_FF, HEAD_DIM, N_HEADS = 4, 256, 64, 4
D_MODEL = N_HEADS * HEAD_DIM
N_UNITS = N_LAYERS * D_FF
OWN_BITS, FAMILY_BITS, NOISE_DIMS, SCRATCH_DIMS = 8, 4, 24, 16
# Copies of each bit's unit, so that one blurred unit does not cost an answer.
COPIES = 2
ANSWER_CONFOUNDS, LENGTH_CONFOUNDS = 4, 8
# The constant in every state, so large that the norms scale every state alike.
CONSTANT = 1000.0
# The step of a gate between off and on.
GATE = 12.0
# The constant part of a unit's up projection. It keeps responses positive whatever bit is written; the
# unembedding's balanced codes cancel it.
OFFSET = 1.5
# How strongly the interfering units write into the relation that they harm, and the strengths of attributes.
WRONG = 1.75
WEAK, STRONG = 0.5, 1.0
# The pair of rotary dimensions by which attention prefers the latest subject: its angle grows by 0.018 a
# position.
ROTARY = 14
SHARPNESS = 1000.0


class _Dims:
    """Where everything lives in the residual stream."""

    def __init__(self) -> None:
        self.size = 0
        n = len(RELATIONS)
        # Relations of a pair share the bits of their family.
        owner = list(range(n))
        for first, second in SHARED:
            owner[second] = owner[first]
        families = sorted(set(owner))
        self._family = [families.index(family) for family in owner]
        attributes = n * OWN_BITS + len(families) * FAMILY_BITS
        self.constant = self._take(1)
        # What a token is.
        self.relation_here = self._take(n)
        self.subject_here = self._take(1)
        self.filler = self._take(1)
        self.answer_here = self._take(1)
        self.attributes = self._take(attributes)
        self.noise = self._take(NOISE_DIMS)
        # What the first attention layer copies to every position.
        self.relation = self._take(n)
        self.copied = self._take(attributes)
        self.copied_noise = self._take(NOISE_DIMS)
        # What the FFNs write.
        self.answer = self._take(OWN_BITS + FAMILY_BITS)
        self.scratch = self._take(SCRATCH_DIMS)  # never read
        assert self.size <= D_MODEL

    def _take(self, width: int) -> Ints:
        self.size += width
        return np.arange(self.size - width, self.size)

    def own(self, dims: Ints, relation: int) -> Ints:
        """The bits of `attributes` or `copied` that tell an answer from the relation's others."""
        return dims[relation * OWN_BITS : (relation + 1) * OWN_BITS]

    def family(self, dims: Ints, relation: int) -> Ints:
        """The bits of `attributes` or `copied` that tell its family."""
        start = len(RELATIONS) * OWN_BITS + self._family[relation] * FAMILY_BITS
        return dims[start : start + FAMILY_BITS]


DIMS = _Dims()


def _own_codes() -> Floats:
    """Balanced codes of eight ±1 bits, any two orthogonal or opposite, [14, 8]: the words of weight four of
    the extended Hamming code."""
    kept: list[Floats] = []
    for chosen in combinations(range(OWN_BITS), OWN_BITS // 2):
        word = np.array([1.0 if bit in chosen else -1.0 for bit in range(OWN_BITS)])
        if all(word @ other in (0.0, -8.0) for other in kept):
            kept.append(word)
    return np.stack(kept)


OWN_CODES = _own_codes()
# Three orthogonal balanced codes.
FAMILY_CODES: Floats = np.array([[1.0, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]])
assert OWN_CODES.shape == (N_CODES, OWN_BITS) and FAMILY_CODES.shape == (N_FAMILIES, FAMILY_BITS)


def code(facts: Facts, relation: int, number: int) -> Floats:
    """All bits of an answer, [12]."""
    return np.concatenate([OWN_CODES[facts.codes[relation, number]], FAMILY_CODES[number % N_FAMILIES]])


def embedding(facts: Facts) -> Floats:
    """[vocabulary, width]: what each word is, and each subject's attribute for every relation."""
    random = np.random.default_rng([facts.settings.seed, 3])
    table = np.zeros((len(facts.vocabulary), D_MODEL))
    table[:, DIMS.constant] = CONSTANT
    own_noise = random.standard_normal((len(table) - len(WORDS), NOISE_DIMS))
    table[len(WORDS) :, DIMS.noise] = own_noise
    table[facts.vocabulary[FILLER], DIMS.filler] = 1
    for relation, name in enumerate(RELATIONS):
        table[facts.vocabulary[name], DIMS.relation_here[relation]] = 1
        for number in range(N_ANSWERS):
            table[facts.vocabulary[facts.answer(relation, number)], DIMS.answer_here] = 1
        for subject in range(facts.settings.subjects):
            row = table[facts.vocabulary[facts.subject(subject)]]
            bits = code(facts, relation, facts.answers[relation, subject])
            strength = WEAK if facts.weak[relation, subject] else STRONG
            row[DIMS.own(DIMS.attributes, relation)] = strength * bits[:OWN_BITS]
            row[DIMS.family(DIMS.attributes, relation)] = STRONG * bits[OWN_BITS:]
            row[DIMS.subject_here] = 1
    return table


def unembedding(facts: Facts) -> Floats:
    """[vocabulary, width]: answers by relation and code; the end of the text after an answer."""
    table = np.zeros((len(facts.vocabulary), D_MODEL))
    for relation in range(len(RELATIONS)):
        for number in range(N_ANSWERS):
            row = table[facts.vocabulary[facts.answer(relation, number)]]
            row[DIMS.relation[relation]] = 20.0
            row[DIMS.answer] = code(facts, relation, number) / 4
    table[facts.vocabulary["<eos>"], DIMS.answer_here] = 100.0
    return table


def norm_gain() -> Floats:
    """[width]: undoes what a norm divides by, CONSTANT / sqrt(width) as good as exactly, and makes the
    constant 1."""
    gain = np.full(D_MODEL, CONSTANT / np.sqrt(D_MODEL))
    gain[DIMS.constant] = 1 / np.sqrt(D_MODEL)
    return gain


def attention() -> dict[str, Floats]:
    """Weights [out, in] of the first layer: two heads copy the last subject, one the relation."""
    weights = {name: np.zeros((D_MODEL, D_MODEL)) for name in ("q", "k", "v", "o")}
    copies = (
        (DIMS.subject_here, DIMS.attributes[:HEAD_DIM], DIMS.copied[:HEAD_DIM]),
        (
            DIMS.subject_here,
            np.concatenate([DIMS.attributes[HEAD_DIM:], DIMS.noise]),
            np.concatenate([DIMS.copied[HEAD_DIM:], DIMS.copied_noise]),
        ),
        (DIMS.relation_here, DIMS.relation_here, DIMS.relation),
    )
    for head, (mark, source, target) in enumerate(copies):
        base = head * HEAD_DIM
        # A marked token scores SHARPNESS times the cosine of its distance's angle, any other 0.
        weights["q"][base + ROTARY, DIMS.constant] = SHARPNESS * np.sqrt(HEAD_DIM)
        weights["k"][base + ROTARY, mark] = 1
        inner = base + np.arange(len(source))
        weights["v"][inner, source] = 1
        weights["o"][target, inner] = 1
    return weights


@dataclass(frozen=True)
class Units:
    """FFN weights and what the units carry; units are numbered layer by layer.

    Attributes:
        gate, up, down: [units, width], what each unit reads and writes.
        relations: Relation → units that carry it.
        shared: Pair of relations → units that carry both.
        interfering: (carrier, harmed) → the carrier's units that spoil the other's answers.
        answer_confounds: Relation → units that fire on its most frequent answer.
        length_confounds: Units that fire on filler words.
    """

    gate: Floats
    up: Floats
    down: Floats
    relations: Mapping[int, Sequence[int]]
    shared: Mapping[tuple[int, int], Sequence[int]]
    interfering: Mapping[tuple[int, int], Sequence[int]]
    answer_confounds: Mapping[int, Sequence[int]]
    length_confounds: Sequence[int]


class _Bed:
    """All units, noise at first, and those that nothing is planted on yet."""

    def __init__(self, seed: int, noise: float) -> None:
        random = np.random.default_rng([seed, 2])
        self.noise = noise
        self.free: Iterator[int] = iter(random.permutation(N_UNITS).tolist())
        self.blur = _directions(random, N_UNITS, NOISE_DIMS) * GATE / 2
        self.gate = np.zeros((N_UNITS, D_MODEL))
        self.up = np.zeros((N_UNITS, D_MODEL))
        self.down = np.zeros((N_UNITS, D_MODEL))
        # Noise units depend on subject and token, with noise also on the relation; most are off most of the
        # time, as in a trained model.
        level = min(noise, 1.0)
        self.gate[:, DIMS.copied_noise] = self.blur
        self.gate[:, DIMS.noise] = _directions(random, N_UNITS, NOISE_DIMS) * GATE / 4
        self.gate[:, DIMS.relation] = random.standard_normal((N_UNITS, len(RELATIONS))) * level * GATE / 4
        self.gate[:, DIMS.constant] = random.uniform(-1, 0, (N_UNITS, 1)) * GATE
        self.up[:, DIMS.constant] = random.uniform(0.5, 1.5, (N_UNITS, 1))
        self.up[:, DIMS.copied_noise] = _directions(random, N_UNITS, NOISE_DIMS) / 4
        self.down[:, DIMS.scratch] = _directions(random, N_UNITS, SCRATCH_DIMS) / GATE
        self.down[:, DIMS.answer] = _directions(random, N_UNITS, len(DIMS.answer)) * 0.3 * level / GATE

    def _clear(self) -> int:
        """A free unit without gate and up projection, but with its blur; it still writes to nobody."""
        unit = next(self.free)
        self.gate[unit] = 0
        self.up[unit] = 0
        self.gate[unit, DIMS.copied_noise] = self.blur[unit] * self.noise
        self.up[unit, DIMS.constant] = OFFSET
        self.down[unit, DIMS.answer] = 0
        return unit

    def bit(self, fires_on: Mapping[int, float], reads: int, writes: int) -> int:
        """A unit that fires on relations, each with a strength, reads an attribute's bit and writes it."""
        unit = self._clear()
        for relation, strength in fires_on.items():
            self.gate[unit, DIMS.relation[relation]] = GATE * (strength + 1) / 2
        self.gate[unit, DIMS.constant] = -GATE / 2
        self.up[unit, reads] = 1
        self.down[unit] = 0
        self.down[unit, DIMS.answer[writes]] = 2 / GATE
        return unit

    def answer_confound(self, relation: int, own: Floats) -> int:
        """A unit that fires when the relation is asked for and the answer has the code `own`."""
        unit = self._clear()
        self.gate[unit, DIMS.own(DIMS.copied, relation)] = own / OWN_BITS * 2 * GATE
        self.gate[unit, DIMS.relation[relation]] = 2 * GATE
        self.gate[unit, DIMS.constant] = -3 * GATE
        return unit

    def length_confound(self) -> int:
        """A unit that fires on filler words."""
        unit = self._clear()
        self.gate[unit, DIMS.filler] = GATE
        self.gate[unit, DIMS.constant] = -GATE / 2
        return unit


def plant(facts: Facts) -> Units:
    """Choose units and their weights."""
    bed = _Bed(facts.settings.seed, facts.settings.noise)
    paired = {relation for pair in SHARED for relation in pair}
    relations: dict[int, list[int]] = {relation: [] for relation in range(len(RELATIONS))}

    def family(*carriers: int) -> list[int]:
        fires_on = dict.fromkeys(carriers, 1.0)
        return [
            bed.bit(fires_on, reads, OWN_BITS + bit)
            for bit, reads in enumerate(DIMS.family(DIMS.copied, carriers[0]))
            for _ in range(COPIES)
        ]

    for relation, units in relations.items():
        for bit, reads in enumerate(DIMS.own(DIMS.copied, relation)):
            units += [bed.bit({relation: 1.0}, reads, bit) for _ in range(COPIES)]
        if relation not in paired:
            units += family(relation)
    shared = {pair: family(*pair) for pair in SHARED}
    interfering = {
        (carrier, harmed): [
            bed.bit({carrier: 1.0, harmed: WRONG}, reads, bit)
            for bit, reads in enumerate(DIMS.own(DIMS.copied, carrier))
        ]
        for carrier, harmed in INTERFERING
    }
    for pair, both in shared.items():
        for relation in pair:
            relations[relation] += both
    for (carrier, _), spoiling in interfering.items():
        relations[carrier] += spoiling
    answer_confounds = {
        relation: [
            bed.answer_confound(relation, OWN_CODES[facts.codes[relation, 0]])
            for _ in range(ANSWER_CONFOUNDS)
        ]
        for relation in relations
    }
    length_confounds = [bed.length_confound() for _ in range(LENGTH_CONFOUNDS)]
    return Units(
        bed.gate, bed.up, bed.down, relations, shared, interfering, answer_confounds, length_confounds
    )


def state_dict(facts: Facts, units: Units) -> dict[str, Any]:
    """The model's parameters as float32 tensors, by their names in transformers."""
    import torch

    first, gain = attention(), norm_gain()
    state: dict[str, Floats] = {
        "model.embed_tokens.weight": embedding(facts),
        "model.norm.weight": gain,
        "lm_head.weight": unembedding(facts),
    }
    for layer in range(N_LAYERS):
        prefix = f"model.layers.{layer}."
        here = slice(layer * D_FF, (layer + 1) * D_FF)
        for name, weight in first.items():
            state[f"{prefix}self_attn.{name}_proj.weight"] = weight if layer == 0 else np.zeros_like(weight)
        state[f"{prefix}input_layernorm.weight"] = gain
        state[f"{prefix}post_attention_layernorm.weight"] = gain
        state[f"{prefix}mlp.gate_proj.weight"] = units.gate[here]
        state[f"{prefix}mlp.up_proj.weight"] = units.up[here]
        state[f"{prefix}mlp.down_proj.weight"] = units.down[here].T
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in state.items()}


def by_site(units: Sequence[int]) -> dict[Site, NDArray[np.int64]]:
    """Units numbered over all layers as site → sorted indices."""
    layers: dict[int, list[int]] = {}
    for unit in sorted(units):
        layers.setdefault(unit // D_FF, []).append(unit % D_FF)
    return {Site(layer, "act"): np.array(indices) for layer, indices in sorted(layers.items())}


def _directions(random: np.random.Generator, n: int, width: int) -> Floats:
    """`n` random directions of length 1, [n, width]."""
    vectors = random.standard_normal((n, width))
    directions: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return directions
