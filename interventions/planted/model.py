"""The planted model: a tiny Llama built by hand, without training, whose relation units are known.

It answers probes such as "the capital of land7 is" from a small vocabulary. The first attention layer copies
the relation that was named and the attributes of the last subject to every later position. FFN neurons
(`act` units) then do what a relation unit is thought to do: the gate detects the relation, the up projection
reads one bit of the subject's attribute for it, and the down projection writes that bit into the answer's
direction; the unembedding reads the answer off all bits. So it is known which units carry a relation, and
what happens to each relation when they are switched off:

- *relation units* of r: all off, recall on r falls to a guess among r's answers; other relations stay;
- *shared units* carry two relations whose answers go together, and belong to both sets;
- *interfering units* carry one relation but also fire, wrongly, on another: off, recall on the other rises;
- *confounds* say nothing to the answer: answer confounds fire on the most frequent answer of one relation,
  length confounds on filler words;
- all other units are noise.

`noise` blurs the gates of all these units by properties of the subject, gives noise units a little to say
about relations, and lets them write into the answer: at 0 the construction is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interventions.errors import UserError
from interventions.planted.facts import FILLER, N_SHOTS, RELATIONS, Facts, Ints, Settings
from interventions.planted.weights import (
    D_FF,
    D_MODEL,
    N_HEADS,
    N_LAYERS,
    Units,
    by_site,
    plant,
    state_dict,
)
from interventions.prompts import Prompt
from interventions.units import Site

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATES = {
    "completion": "the {relation} of {subject} is",
    "paraphrase": "{subject} has the {relation}",
    "question": "what is the {relation} of {subject} ? answer:",
    # Filler words before the sentence, more of them for some relations.
    "wordy": "{filler}the {relation} of {subject} is",
}


@dataclass(frozen=True)
class Truth:
    """What was planted; sets of `act` units as site → sorted int64 indices.

    Attributes:
        relations: Relation → the units that carry it, shared and interfering ones included.
        shared: (first, second relation) → the units that carry both.
        interfering: (carrier, harmed relation) → the carrier's units that spoil the other's answers.
        answer_confounds: Relation → units that fire on its most frequent answer.
        length_confounds: Units that fire on filler words.
    """

    relations: Mapping[str, Mapping[Site, Ints]]
    shared: Mapping[tuple[str, str], Mapping[Site, Ints]]
    interfering: Mapping[tuple[str, str], Mapping[Site, Ints]]
    answer_confounds: Mapping[str, Mapping[Site, Ints]]
    length_confounds: Mapping[Site, Ints]

    def labels(self, relation: str, sites: Sequence[Site]) -> NDArray[np.bool_]:
        """Whether each unit carries `relation`, site after site."""
        labels = np.zeros((len(sites), D_FF), bool)
        for row, site in enumerate(sites):
            labels[row, self.relations[relation].get(site, [])] = True
        return labels.ravel()

    def confounds(self, sites: Sequence[Site]) -> NDArray[np.bool_]:
        """Whether each unit is a confound, of any relation or of length, site after site."""
        labels = np.zeros((len(sites), D_FF), bool)
        for units in (*self.answer_confounds.values(), self.length_confounds):
            for row, site in enumerate(sites):
                labels[row, units.get(site, [])] = True
        return labels.ravel()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; pairs of relations are joined by "+" (shared) or ">" (carrier, harmed)."""

        def plain(units: Mapping[Site, Ints]) -> dict[str, list[int]]:
            return {str(site): indices.tolist() for site, indices in units.items()}

        return {
            "relations": {name: plain(units) for name, units in self.relations.items()},
            "shared": {"+".join(pair): plain(units) for pair, units in self.shared.items()},
            "interfering": {">".join(pair): plain(units) for pair, units in self.interfering.items()},
            "answer_confounds": {name: plain(units) for name, units in self.answer_confounds.items()},
            "length_confounds": plain(self.length_confounds),
        }

    @classmethod
    def of(cls, units: Units) -> Truth:
        """The truth of planted units."""
        named = dict(enumerate(RELATIONS))
        return cls(
            relations={named[r]: by_site(found) for r, found in units.relations.items()},
            shared={(named[a], named[b]): by_site(found) for (a, b), found in units.shared.items()},
            interfering={(named[a], named[b]): by_site(found) for (a, b), found in units.interfering.items()},
            answer_confounds={named[r]: by_site(found) for r, found in units.answer_confounds.items()},
            length_confounds=by_site(units.length_confounds),
        )


class Planted:
    """A planted model with its tokenizer, facts and truth; the same settings give the same one.

    Attributes:
        settings: What it is made from.
        facts: What it knows.
        truth: Which units carry what.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.facts = Facts(self.settings)
        self._units = plant(self.facts)
        self.truth = Truth.of(self._units)

    def model(self) -> LlamaForCausalLM:
        """The model, fp32, in eval mode."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=len(self.facts.vocabulary),
            hidden_size=D_MODEL,
            intermediate_size=D_FF,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            num_key_value_heads=N_HEADS,
            max_position_embeddings=256,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        # Random initial weights are overwritten; the caller's random state is left alone.
        with torch.random.fork_rng(devices=[]):
            model: LlamaForCausalLM = LlamaForCausalLM(config).float().eval()
        model.load_state_dict(state_dict(self.facts, self._units), strict=True)
        return model

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """One token a word; adds BOS."""
        tokenizer: PreTrainedTokenizerFast = self.facts.tokenizer()
        return tokenizer

    def prompts(
        self,
        split: str = "detect",
        template: str = "completion",
        *,
        shots: int = 0,
        relations: Sequence[str] = RELATIONS,
        limit: int | None = None,
    ) -> list[Prompt]:
        """Probes of the facts of one split, relation by relation; a relation's name is the concept.

        Args:
            split: "shots", "detect" or "eval"; no subject is in two.
            template: One of `TEMPLATES`.
            shots: Few-shot examples before each prompt, at most ten.
            relations: Which relations.
            limit: At most so many prompts of each relation.

        Raises:
            UserError: Unknown split, template or relation, or too many shots.
        """
        allowed: list[tuple[str, tuple[str, ...]]] = [
            (split, tuple(self.facts.splits)),
            (template, tuple(TEMPLATES)),
            *((relation, RELATIONS) for relation in relations),
        ]
        for value, names in allowed:
            if value not in names:
                raise UserError(f"the planted model has no {value!r}; it has {', '.join(names)}")
        if not 0 <= shots <= N_SHOTS:
            raise UserError(f"the planted model has {N_SHOTS} few-shot examples, {shots} were asked for")
        found = []
        for name in relations:
            relation = RELATIONS.index(name)
            prefix = "".join(
                f"{self._text(relation, subject, template)} {self._answer(relation, subject)}\n"
                for subject in self.facts.splits["shots"][:shots]
            )
            for subject in self.facts.splits[split][:limit]:
                found.append(self._prompt(relation, subject, template, prefix))
        return found

    def _prompt(self, relation: int, subject: int, template: str, prefix: str) -> Prompt:
        text = prefix + self._text(relation, subject, template)
        word, answer = self.facts.subject(subject), self._answer(relation, subject)
        start = text.rindex(word)
        return Prompt(
            text=text,
            answer=f" {answer}",
            accepted=(f" {answer}",),
            concept=RELATIONS[relation],
            id=f"{RELATIONS[relation]}.{word}",
            subject_id=word,
            answer_id=answer,
            subject_span=(start, start + len(word)),
        )

    def _answer(self, relation: int, subject: int) -> str:
        return self.facts.answer(relation, int(self.facts.answers[relation, subject]))

    def _text(self, relation: int, subject: int, template: str) -> str:
        return TEMPLATES[template].format(
            relation=RELATIONS[relation],
            subject=self.facts.subject(subject),
            filler=f"{FILLER} " * int(self.facts.fillers[relation, subject]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Settings and truth, plain JSON values."""
        return {"settings": asdict(self.settings), "truth": self.truth.to_dict()}
