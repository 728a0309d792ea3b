"""A tiny checkpoint on disk, for everything that loads a model by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random Llama with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tiny_model("llama", max_position_embeddings=2048).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
