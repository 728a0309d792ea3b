"""Documents whose perplexity tells whether a mask harms more than the relations it was made for.

Neutral text comes with the package (`relbench/neutral/<lang>.txt`, written for it) or from the user; beside it
stand sentences that carry the evaluated relations: the completion prompts of the scored facts with their answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interventions.errors import UserError
from relbench.engine import TokenRequest
from relbench.journal import Records
from relbench.prompts import prompts

if TYPE_CHECKING:
    from relbench.lm import RelbenchLM
    from relbench.sweep_config import SweepConfig

NEUTRAL, RELATION = "neutral", "relation"
FOLDER = Path(__file__).parent / "neutral"
# Of the user's own text, whose language the config does not say.
ANY_LANGUAGE = "any"
SENTENCES_A_RELATION = 20


@dataclass(frozen=True)
class Document:
    """A text.

    Attributes:
        id: Its name among the documents of a sweep.
        kind: "neutral" or "relation".
        language: Language code; "any" for a user's text.
        text: It.
    """

    id: str
    kind: str
    language: str
    text: str

    @property
    def size(self) -> int:
        """About how many tokens it has, for estimates of time."""
        return max(1, len(self.text.encode()) // 4)


def documents(config: SweepConfig) -> list[Document]:
    """The documents of a sweep; none when it does not measure perplexity.

    Raises:
        UserError: The user's text is missing, is not UTF-8, or has no documents.
    """
    if config.perplexity is None:
        return []
    if config.perplexity == NEUTRAL:
        found = [document for code in config.languages for document in neutral_documents(code)]
    else:
        found = list(_split(Path(config.perplexity), ANY_LANGUAGE))
    for code in config.languages:
        for relation in config.relations:
            read = prompts([relation], [code], "detect", limit=SENTENCES_A_RELATION)
            found += [
                Document(f"relation.{code}.{one.id}", RELATION, code, one.text + one.answer) for one in read
            ]
    return found


def neutral_documents(language: str) -> list[Document]:
    """The neutral text that comes with the package.

    Raises:
        UserError: There is none in the language.
    """
    path = FOLDER / f"{language}.txt"
    if not path.is_file():
        raise UserError(f"there is no neutral text in {language!r}; give perplexity the path of one")
    return list(_split(path, language))


def _split(path: Path, language: str) -> Iterator[Document]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the text for perplexity, {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text") from error
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    if not parts:
        raise UserError(f"{path} has no documents; part them by empty lines")
    for number, part in enumerate(parts):
        yield Document(f"{NEUTRAL}.{language}.{number:03d}", NEUTRAL, language, part)


def perplexity_records(lm: RelbenchLM, treatment: str, chosen: Sequence[Document]) -> Records:
    """Log probability of every document under the model as it is, its interventions in.

    Args:
        lm: The model.
        treatment: What is done to it.
        chosen: The documents; one longer than the model's window is cut there.

    Returns:
        For each document `treatment`, `kind`, `language`, `document`, `n_tokens` (predicted tokens: all but the
        first, or all when the tokenizer begins texts with a token of its own) and `logprob` (natural, summed).
    """
    requests = []
    for document in chosen:
        tokens = lm.tok_encode(document.text, add_special_tokens=True)[: lm.max_length]
        if len(tokens) < 2:
            tokens = [lm.prefix_token_id, *tokens]
        requests.append(TokenRequest(tuple(tokens[:1]), tuple(tokens[1:])))
    scores = lm.score_plan(lm.plan(requests))
    return [
        {
            "treatment": treatment,
            "kind": document.kind,
            "language": document.language,
            "document": document.id,
            "n_tokens": len(request.continuation),
            "logprob": score[0],
        }
        for document, request, score in zip(chosen, requests, scores, strict=True)
    ]
