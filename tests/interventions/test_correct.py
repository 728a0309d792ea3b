"""Which prompts count as answered correctly, against a plain greedy loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interventions.correct import answered_correctly
from interventions.prompts import Prompt
from tests.tiny import tiny_model, tiny_tokenizer


def greedy(model: Any, text: str, n: int) -> str | None:
    """The next `n` bytes that the model would say, when they are ASCII."""
    ids = tiny_tokenizer()(text, return_tensors="pt")["input_ids"]
    said = b""
    for _ in range(n):
        with torch.no_grad():
            token = model(ids).logits[0, -1].argmax()
        said += tiny_tokenizer().decode([int(token)]).encode()
        ids = torch.cat([ids, token[None, None]], dim=1)
    return said.decode() if len(said) == n and said.isascii() and said.decode().isprintable() else None


def ask(text: str, *accepted: str) -> Prompt:
    return Prompt(text, accepted[0], accepted, "c", text, text, "a")


def cases(model: Any) -> tuple[list[Prompt], list[bool], list[bool]]:
    """Prompts, whether a whole answer is greedy, and whether the first two tokens of one are."""
    prompts, whole, begun = [], [], []
    for number in range(60):
        text = f"{number} of " + "land" * (number % 3)
        said = greedy(model, text, 3)
        if said is None:
            continue
        other = chr(ord(said[2]) ^ 1)
        wrong = chr(ord(said[0]) ^ 1) + said[1:]
        prompts += [ask(text, said), ask(text, wrong, said), ask(text, said[:2] + other), ask(text, wrong)]
        whole += [True, True, False, False]
        begun += [True, True, True, False]
        prompts.append(ask(text, said[0]))
        whole.append(True)
        begun.append(True)
    assert len(prompts) >= 10
    return prompts, whole, begun


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt", "bloom"])
def test_correct_is_what_a_greedy_loop_says(family: str) -> None:
    model = tiny_model(family)
    prompts, whole, begun = cases(model)
    assert answered_correctly(model, tiny_tokenizer(), prompts) == whole
    assert answered_correctly(model, tiny_tokenizer(), prompts, first_tokens=2) == begun
    # The smallest budget means one prompt and one row of logits at a time.
    assert answered_correctly(model, tiny_tokenizer(), prompts, memory=2) == whole


def test_no_prompts_are_no_answers() -> None:
    assert answered_correctly(tiny_model(), tiny_tokenizer(), []) == []
