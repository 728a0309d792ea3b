"""What the lm-eval model `relbench` answers: lm-eval's own types, carrying a little more.

Any task can take them for the plain tuple or string that they are; the probes' metrics look for the rest.
"""

from __future__ import annotations


class AnswerScore(tuple):
    """lm-eval's `(log probability, is greedy)`, carrying the rank of the first answer token as well."""

    first_token_rank: int

    def __new__(cls, logprob: float, greedy: bool, first_token_rank: int) -> AnswerScore:
        self = super().__new__(cls, (logprob, greedy))
        self.first_token_rank = first_token_rank
        return self

    # How copies are made, lm-eval's response cache included.
    def __getnewargs__(self) -> tuple[float, bool, int]:
        return (self[0], self[1], self.first_token_rank)


class GeneratedText(str):
    """lm-eval's generated text, carrying the text of its first two tokens as well."""

    first_two: str

    def __new__(cls, text: str, first_two: str) -> GeneratedText:
        self = super().__new__(cls, text)
        self.first_two = first_two
        return self

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return (str(self), self.first_two)
