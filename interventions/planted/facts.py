"""What the planted model knows: relations, subjects, answers, and the words for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RELATIONS = ("capital", "currency", "anthem", "language", "river", "dish")
# Pairs that share units, and (carrier, harmed) of the interfering ones, as indices into RELATIONS.
SHARED = ((0, 1), (2, 3))
INTERFERING = ((4, 5),)
FILLER = "well"
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
WORDS = (*SPECIAL, "the", "of", "is", "has", "what", "?", "answer:", FILLER)

N_ANSWERS = 10
# Own codes to choose from, and families of answers.
N_CODES, N_FAMILIES = 14, 3
# Share of the most frequent answer.
FREQUENT = 0.35
# Few-shot examples.
N_SHOTS = 10


@dataclass(frozen=True)
class Settings:
    """What a planted model is made from.

    Attributes:
        noise: Blur; 0 is exact, 1 makes a gate's noise half as large as the step that it detects.
        seed: Of facts, codes and noise.
        subjects: Number of subjects; every one has an answer for every relation.

    Raises:
        UserError: A value out of range.
    """

    noise: float = 0.5
    seed: int = 0
    subjects: int = 200

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 10:
            raise UserError(f"noise is {self.noise}; it must lie in 0 … 10")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must not be negative")
        if not 60 <= self.subjects <= 2000:
            raise UserError(f"subjects is {self.subjects}; it must lie in 60 … 2000")


class Facts:
    """Facts drawn from the settings' seed.

    Attributes:
        settings: What they are drawn from.
        answers: [relations, subjects], number of the answer. An answer's family is its number modulo three;
            relations that share units have answers of one family for each subject.
        codes: [relations, answers], number of the answer's own code.
        weak: [relations, subjects], whether the subject's attribute is only weakly there.
        fillers: [relations, subjects], filler words of the template that has them.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        random = np.random.default_rng([settings.seed, 1])
        n, subjects = len(RELATIONS), settings.subjects
        self.codes: Ints = np.stack([random.permutation(N_CODES)[:N_ANSWERS] for _ in range(n)])
        share = np.full(N_ANSWERS, (1 - FREQUENT) / (N_ANSWERS - 1))
        share[0] = FREQUENT
        self.answers: Ints = np.stack([random.choice(N_ANSWERS, subjects, p=share) for _ in range(n)])
        for first, second in SHARED:
            for subject in range(subjects):
                family = np.arange(N_ANSWERS) % N_FAMILIES == self.answers[first, subject] % N_FAMILIES
                odds = share * family
                self.answers[second, subject] = random.choice(N_ANSWERS, p=odds / odds.sum())
        self.weak = np.zeros((n, subjects), bool)
        for _, harmed in INTERFERING:
            self.weak[harmed] = random.random(subjects) < 0.5
        # More of them for some relations than for others, and never the same number for all subjects.
        self.fillers: Ints = random.integers(0, 3, (n, subjects)) + np.arange(n)[:, None] % 3

    def answer(self, relation: int, number: int) -> str:
        """An answer as a word."""
        return f"{RELATIONS[relation]}{number}"

    def subject(self, number: int) -> str:
        """A subject as a word."""
        return f"land{number}"

    @cached_property
    def splits(self) -> dict[str, range]:
        """Subjects of each split: ten for few-shot examples, then half to detect and half to evaluate."""
        last = self.settings.subjects
        middle = N_SHOTS + (last - N_SHOTS) // 2
        return {"shots": range(N_SHOTS), "detect": range(N_SHOTS, middle), "eval": range(middle, last)}

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Word → token id."""
        words = [*WORDS, *RELATIONS]
        words += [self.answer(relation, n) for relation in range(len(RELATIONS)) for n in range(N_ANSWERS)]
        words += [self.subject(number) for number in range(self.settings.subjects)]
        return {word: index for index, word in enumerate(words)}

    def tokenizer(self) -> Any:
        """A fast tokenizer with one token a word; adds BOS."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from tokenizers.processors import TemplateProcessing
        from transformers import PreTrainedTokenizerFast

        inner = Tokenizer(models.WordLevel(vocab=self.vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        # Joins words by spaces.
        inner.decoder = decoders.WordPiece(prefix="##", cleanup=False)
        inner.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
        names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
        return PreTrainedTokenizerFast(tokenizer_object=inner, **names)
