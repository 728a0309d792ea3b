"""The one table of model families: where each unit kind lives, and the norms, residual form and unembedding.

A family is a table entry, not a subclass. `units`, `fold`, `export` and the lens read it; nothing else
names a module of a model. Paths are dotted attribute paths, from the model or from a decoder layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from interventions.errors import UserError

Side = Literal["input", "output"]


@dataclass(frozen=True)
class Slot:
    """Where one unit kind lives in a decoder layer.

    Attributes:
        module: Path from the layer to the linear map (`nn.Linear` or GPT-2's `Conv1D`).
        side: The unit is an entry of the map's input or of its output.
        parts: For a fused output, the kinds it holds in order; empty when it holds this kind alone.
        interleaved: The fused parts alternate head by head (GPT-NeoX, BLOOM) rather than follow one another.
    """

    module: str
    side: Side
    parts: tuple[str, ...] = ()
    interleaved: bool = False


@dataclass(frozen=True)
class Dims:
    """Names of the config fields that fix a layout; alternatives are tried in order."""

    n_layers: tuple[str, ...] = ("num_hidden_layers",)
    d_model: tuple[str, ...] = ("hidden_size",)
    d_ff: tuple[str, ...] = ("intermediate_size",)
    n_heads: tuple[str, ...] = ("num_attention_heads",)
    n_kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    # Used when the config leaves d_ff out: GPT-2 and BLOOM then take 4 * d_model.
    d_ff_multiple: int | None = None


@dataclass(frozen=True)
class Family:
    """What the project needs to know of one architecture.

    Attributes:
        model_type: The config's `model_type`.
        slots: Unit kind → where it lives. Ungated families have no "gate".
        layers: Path from the model to the list of decoder layers.
        embedding: Path from the model to the token embedding.
        final_norm: Path from the model to the norm before the unembedding.
        unembedding: Path from the model to the unembedding (`lm_head`).
        norm: "rms" or "layer": the form of every norm of the residual stream.
        norm_offset: Added to a norm's weight to give its gain (Gemma: 1).
        attention, ffn: Paths from a layer to the two sublayers.
        attention_norm, ffn_norm: Paths from a layer to the norm that feeds each sublayer; None when the
            sublayer reads the stream itself (OLMo 2).
        post_attention_norm, post_ffn_norm: Paths from a layer to the norm that follows a sublayer, before
            its output is added to the stream (Gemma 2 and 3, OLMo 2); None otherwise.
        parallel: Both sublayers read the same stream. `True`/`False`, or the config field that says so.
        adds_residual: The sublayer modules return the stream with their output added (BLOOM).
        flattens_ffn: The FFN sees [batch * seq, width] instead of [batch, seq, width] (OPT).
        logit_softcap: Config field of the final-logit soft cap, or None.
        extra_embeddings: Paths of further modules that make the first state (positions, embedding norm).
        dims: Config fields of the layout.
    """

    model_type: str
    slots: dict[str, Slot] = field(repr=False)
    layers: str = "model.layers"
    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    unembedding: str = "lm_head"
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    attention: str = "self_attn"
    ffn: str = "mlp"
    attention_norm: str | None = "input_layernorm"
    ffn_norm: str | None = "post_attention_layernorm"
    post_attention_norm: str | None = None
    post_ffn_norm: str | None = None
    parallel: bool | str = False
    adds_residual: bool = False
    flattens_ffn: bool = False
    logit_softcap: str | None = None
    extra_embeddings: tuple[str, ...] = ()
    dims: Dims = Dims()

    def is_parallel(self, config: Any) -> bool:
        """Whether attention and FFN of a layer read the same residual stream."""
        return bool(getattr(config, self.parallel)) if isinstance(self.parallel, str) else self.parallel


_QKV = ("q", "k", "v")


def _attention(prefix: str, out: str) -> dict[str, Slot]:
    """Separate q, k and v projections under `prefix`."""
    return {
        **{kind: Slot(f"{prefix}.{kind}_proj", "output") for kind in _QKV},
        "attn": Slot(f"{prefix}.{out}", "input"),
        "attn_out": Slot(f"{prefix}.{out}", "output"),
    }


def _fused_attention(qkv: str, out: str, *, interleaved: bool) -> dict[str, Slot]:
    return {
        **{kind: Slot(qkv, "output", parts=_QKV, interleaved=interleaved) for kind in _QKV},
        "attn": Slot(out, "input"),
        "attn_out": Slot(out, "output"),
    }


def _ffn(up: str, down: str) -> dict[str, Slot]:
    return {"up": Slot(up, "output"), "act": Slot(down, "input"), "down": Slot(down, "output")}


_GATED = {"gate": Slot("mlp.gate_proj", "output"), **_ffn("mlp.up_proj", "mlp.down_proj")}
_GATE_UP = {kind: Slot("mlp.gate_up_proj", "output", parts=("gate", "up")) for kind in ("gate", "up")} | {
    "act": Slot("mlp.down_proj", "input"),
    "down": Slot("mlp.down_proj", "output"),
}

_LLAMA = Family("llama", slots={**_GATED, **_attention("self_attn", "o_proj")})
_GEMMA2 = replace(
    _LLAMA,
    model_type="gemma2",
    norm_offset=1.0,
    ffn_norm="pre_feedforward_layernorm",
    post_attention_norm="post_attention_layernorm",
    post_ffn_norm="post_feedforward_layernorm",
    logit_softcap="final_logit_softcapping",
)
_HEADS_ARE_KV = replace(Dims(), n_kv_heads=("num_attention_heads",))

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        _LLAMA,
        replace(_LLAMA, model_type="mistral"),
        replace(_LLAMA, model_type="qwen2"),
        replace(_LLAMA, model_type="qwen3"),
        _GEMMA2,
        replace(_GEMMA2, model_type="gemma3_text"),
        replace(
            _LLAMA,
            model_type="phi3",
            slots={
                **_GATE_UP,
                **_fused_attention("self_attn.qkv_proj", "self_attn.o_proj", interleaved=False),
            },
        ),
        replace(
            _LLAMA,
            model_type="olmo2",
            attention_norm=None,
            ffn_norm=None,
            post_attention_norm="post_attention_layernorm",
            post_ffn_norm="post_feedforward_layernorm",
        ),
        Family(
            "gpt2",
            slots={
                **_ffn("mlp.c_fc", "mlp.c_proj"),
                **_fused_attention("attn.c_attn", "attn.c_proj", interleaved=False),
            },
            layers="transformer.h",
            embedding="transformer.wte",
            final_norm="transformer.ln_f",
            norm="layer",
            attention="attn",
            attention_norm="ln_1",
            ffn_norm="ln_2",
            extra_embeddings=("transformer.wpe",),
            dims=Dims(
                n_layers=("n_layer",),
                d_model=("n_embd",),
                d_ff=("n_inner",),
                n_heads=("n_head",),
                n_kv_heads=("n_head",),
                d_ff_multiple=4,
            ),
        ),
        Family(
            "gpt_neox",
            slots={
                **_ffn("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
                **_fused_attention("attention.query_key_value", "attention.dense", interleaved=True),
            },
            layers="gpt_neox.layers",
            embedding="gpt_neox.embed_in",
            final_norm="gpt_neox.final_layer_norm",
            norm="layer",
            attention="attention",
            parallel="use_parallel_residual",
            dims=_HEADS_ARE_KV,
        ),
        Family(
            "opt",
            slots={**_ffn("fc1", "fc2"), **_attention("self_attn", "out_proj")},
            layers="model.decoder.layers",
            embedding="model.decoder.embed_tokens",
            final_norm="model.decoder.final_layer_norm",
            norm="layer",
            # The FFN is no module of its own: fc1 and fc2 sit in the layer.
            ffn="",
            attention_norm="self_attn_layer_norm",
            ffn_norm="final_layer_norm",
            flattens_ffn=True,
            extra_embeddings=("model.decoder.embed_positions",),
            dims=replace(_HEADS_ARE_KV, d_ff=("ffn_dim",)),
        ),
        Family(
            "bloom",
            slots={
                **_ffn("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
                **_fused_attention(
                    "self_attention.query_key_value", "self_attention.dense", interleaved=True
                ),
            },
            layers="transformer.h",
            embedding="transformer.word_embeddings",
            final_norm="transformer.ln_f",
            norm="layer",
            attention="self_attention",
            adds_residual=True,
            extra_embeddings=("transformer.word_embeddings_layernorm",),
            dims=Dims(
                n_layers=("n_layer", "num_hidden_layers"),
                n_heads=("n_head", "num_attention_heads"),
                n_kv_heads=("n_head", "num_attention_heads"),
                d_ff=(),
                d_ff_multiple=4,
            ),
        ),
    )
}

_EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def family_of(config: Any) -> Family:
    """The table entry for a model's config (text part of a multimodal one).

    Raises:
        UserError: Encoder-decoder, mixture-of-experts or unknown architecture; the message says which, and
            what a new entry needs.
    """
    model_type = getattr(config, "model_type", None)
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"{model_type} is an encoder-decoder model; masks work on decoder-only causal language models"
        )
    if any(isinstance(n := getattr(config, name, None), int) and n > 1 for name in _EXPERT_FIELDS):
        raise UserError(
            f"{model_type} is a mixture-of-experts model; its experts' neurons are not addressed yet, "
            "use a dense model"
        )
    family = family_named(str(model_type))
    if model_type == "bloom" and getattr(config, "slow_but_exact", False) and config.pretraining_tp > 1:
        raise UserError("BLOOM with slow_but_exact bypasses its linear modules; set slow_but_exact=False")
    return family


def family_named(model_type: str) -> Family:
    """The table entry of a `model_type`.

    Raises:
        UserError: There is none; the message says what a new entry needs.
    """
    if model_type not in FAMILIES:
        raise UserError(
            f"unknown architecture {model_type!r}: interventions/families.py has no entry that says where "
            f"its units, norms and unembedding are; known: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]
