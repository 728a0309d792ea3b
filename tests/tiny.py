"""Tiny random models of the real transformers classes, and a byte-level tokenizer; no download."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

PAD, BOS, EOS = 0, 1, 2
VOCABULARY = 259
LAYERS, WIDTH, FFN, HEADS, KV_HEADS, HEAD_DIM = 3, 32, 48, 4, 2, 8

_SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
_COMMON: dict[str, Any] = {
    **_SPECIAL,
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
# A head size that is not WIDTH / HEADS, as in the real Gemma and Qwen 3 models.
_WIDE_HEADS: dict[str, Any] = {**_COMMON, "head_dim": 12}
_GEMMA: dict[str, Any] = {
    **_WIDE_HEADS,
    "query_pre_attn_scalar": 12,
    "sliding_window": 16,
    "tie_word_embeddings": True,
}


def _config(model_type: str, overrides: dict[str, Any]) -> PreTrainedConfig:
    table: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
        "llama": (LlamaConfig, _COMMON),
        "mistral": (MistralConfig, {**_COMMON, "sliding_window": None}),
        "qwen2": (Qwen2Config, _COMMON),
        "qwen3": (Qwen3Config, _WIDE_HEADS),
        "gemma2": (Gemma2Config, _GEMMA),
        "gemma3_text": (Gemma3TextConfig, _GEMMA),
        "phi3": (Phi3Config, _COMMON),
        "olmo2": (Olmo2Config, _COMMON),
        "gpt2": (
            GPT2Config,
            {
                **_SPECIAL,
                "vocab_size": VOCABULARY,
                "n_embd": WIDTH,
                "n_inner": FFN,
                "n_layer": LAYERS,
                "n_head": HEADS,
                "n_positions": 512,
                "initializer_range": 0.15,
            },
        ),
        "gpt_neox": (GPTNeoXConfig, {k: v for k, v in _COMMON.items() if k != "num_key_value_heads"}),
        "opt": (
            OPTConfig,
            {
                **_SPECIAL,
                "vocab_size": VOCABULARY,
                "hidden_size": WIDTH,
                "word_embed_proj_dim": WIDTH,
                "ffn_dim": FFN,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "max_position_embeddings": 512,
                "init_std": 0.15,
            },
        ),
        "bloom": (
            BloomConfig,
            {
                **_SPECIAL,
                "vocab_size": VOCABULARY,
                "hidden_size": WIDTH,
                "n_layer": LAYERS,
                "n_head": HEADS,
                "initializer_range": 0.15,
            },
        ),
    }
    config, values = table[model_type]
    return config(**{**values, **overrides})


MODEL_TYPES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "bloom",
    "olmo2",
)


def tiny_model(model_type: str = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A tiny random model of the real class, fp32, in eval mode, the same for the same arguments.

    Biases and norm gains are random too, so that a forgotten one shows.

    Args:
        model_type: One of `MODEL_TYPES`.
        seed: Of the weights; the caller's random state is left alone.
        overrides: Config fields in place of the defaults.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            _config(model_type, overrides), dtype=torch.float32
        )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of `VOCABULARY` tokens: three special ones, one for each byte; adds BOS."""
    special = ["<pad>", "<bos>", "<eos>"]
    # ByteLevel writes each byte as one printable character; the 256 of them are its alphabet.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(special + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=512,
    )
