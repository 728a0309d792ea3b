"""One prediction explained: layers, heads, value and query neurons, and the tokens they promote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from interventions.attribution import importance
from interventions.attribution.attention import head_outputs, read_attention
from interventions.attribution.lens import Lens, lens_of
from interventions.attribution.queries import Keys, QueryScores, Shares, keys_of, query_scores
from interventions.attribution.readouts import encode
from interventions.attribution.stream import Stream, Write, read_stream, writes_of
from interventions.errors import UserError
from interventions.units import UnitLayout, config_of, layout_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenScore:
    """A token of the vocabulary with its logit (or logit change) and, in a prediction, its probability."""

    token: str
    id: int
    logit: float
    probability: float | None = None


@dataclass(frozen=True)
class Target:
    """The token that is explained, as the model sees it: rank 1 is the most probable."""

    token: str
    id: int
    log_prob: float
    probability: float
    rank: int


@dataclass(frozen=True)
class LayerRow:
    """One layer: log probability of the target under the lens before it, and what its sublayers add to it.

    Attributes:
        layer: The layer.
        before: Log probability of the target in the stream that enters the layer.
        attention, ffn: Log-probability increase of the sublayers' whole outputs.
        queries: How much each sublayer switches value neurons on: kind of value neuron → (attention, ffn)
            scores.
    """

    layer: int
    before: float
    attention: float
    ffn: float
    queries: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class HeadRow:
    """One attention head: its log-probability increase, and the position that contributes most of it."""

    layer: int
    head: int
    increase: float
    position: int
    position_token: str
    position_increase: float


@dataclass(frozen=True)
class UnitRow:
    """One unit.

    Attributes:
        layer, kind, unit: Which.
        score: Log-probability increase (value neurons) or query score.
        coefficient: Its factor in the write, at `position`.
        position, position_token: Where its coefficient was taken.
        promotes, demotes: Tokens whose logits what it writes raises and lowers most.
        head, dimension: Of an attention unit.
    """

    layer: int
    kind: str
    unit: int
    score: float
    coefficient: float
    position: int
    position_token: str
    promotes: tuple[TokenScore, ...]
    demotes: tuple[TokenScore, ...]
    head: int | None = None
    dimension: int | None = None


@dataclass(frozen=True)
class QueryTable:
    """Query neurons of one kind of value neurons.

    Attributes:
        through: "attention", "gate" or "up": the value neurons' subkeys.
        rows: The best units.
        shares: How scores were normalised, if they were.
    """

    through: str
    rows: tuple[UnitRow, ...]
    shares: Shares | None


@dataclass(frozen=True)
class Explanation:
    """Everything that is shown of one prediction, in full precision.

    Attributes:
        prompt: The text.
        tokens: Its tokens, as text.
        target: The explained token.
        predictions: The model's most probable next tokens.
        embedding_log_prob: Log probability of the target before the first layer, under the lens.
        layers: Every layer.
        heads: The best heads.
        ffn_values: The best FFN value neurons, exact.
        attention_values: The best attention units by position, exact.
        ffn_evaluated, attention_evaluated: How many needed the full evaluation.
        queries: Query neurons, by kind of value neuron.
        value_neurons: How many value neurons of each kind the query scores ran over.
    """

    prompt: str
    tokens: tuple[str, ...]
    target: Target
    predictions: tuple[TokenScore, ...]
    embedding_log_prob: float
    layers: tuple[LayerRow, ...]
    heads: tuple[HeadRow, ...]
    ffn_values: tuple[UnitRow, ...]
    attention_values: tuple[UnitRow, ...]
    ffn_evaluated: int
    attention_evaluated: int
    queries: tuple[QueryTable, ...]
    value_neurons: int


class _Found(NamedTuple):
    """A unit that goes into a table."""

    layer: int
    unit: int
    score: float
    coefficient: float
    position: int


class _Reader:
    """Everything read of one prompt, and how its parts become rows."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], shown: int
    ) -> None:
        self.model, self.tokenizer, self.shown = model, tokenizer, shown
        self.layout: UnitLayout = layout_of(model)
        self.lens: Lens = lens_of(model)
        self.ids = torch.tensor([ids], device=model.device)
        self.last = len(ids) - 1
        self.stream: Stream = read_stream(model, self.ids)
        self.writes: dict[str, list[Write]] = {kind: writes_of(model, kind) for kind in ("attn", "act")}
        self.tokens = tuple(self.text(token) for token in ids)
        self.scale = self.lens.scale(self.stream.final)[-1:]

    def text(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))

    def rows(self, kind: str, found: Sequence[_Found]) -> tuple[UnitRow, ...]:
        """Rows of units of one kind, all unembedded together."""
        if not found:
            return ()
        writes = torch.stack([self.writes[kind][f.layer].vectors[f.unit] for f in found]).to(self.lens.dtype)
        factors = torch.tensor([f.coefficient for f in found], dtype=self.lens.dtype, device=writes.device)
        changes = self.lens.linear(writes * factors[:, None], self.scale.expand(len(found)))
        shown = min(self.shown, changes.shape[1])
        sides = [self._tokens(*changes.topk(shown, largest=largest)) for largest in (True, False)]
        rows = []
        for f, promotes, demotes in zip(found, *sides, strict=True):
            head = dimension = None
            if kind == "attn":
                head, dimension = divmod(f.unit, self.layout.head_dim)
            text = self.tokens[f.position]
            where = (f.layer, kind, f.unit, f.score, f.coefficient, f.position, text)
            rows.append(UnitRow(*where, promotes, demotes, head, dimension))
        return tuple(rows)

    def _tokens(self, values: Tensor, ids: Tensor) -> list[tuple[TokenScore, ...]]:
        return [
            tuple(TokenScore(self.text(token), token, value) for value, token in zip(*row, strict=True))
            for row in zip(values.tolist(), ids.tolist(), strict=True)
        ]


def explain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    answer: str | None = None,
    top: int = 10,
    tokens_shown: int = 8,
    value_neurons: int = 30,
    share_floor: float | None = None,
) -> Explanation:
    """Explain why the model gives the next token of `prompt` the probability it gives.

    Args:
        model: A causal language model of a family with a lens.
        tokenizer: Its tokenizer.
        prompt: The text; its last token predicts.
        answer: The text whose first token is explained, with its leading space; None for the most probable
            token.
        top: Rows of each table.
        tokens_shown: Promoted and demoted tokens of each unit.
        value_neurons: How many value neurons of each kind query neurons are scored over.
        share_floor: See `query_scores`; None for plain inner products.

    Raises:
        UserError: No tokens in the prompt, a prompt longer than the model's context, an answer that is not in
            the vocabulary, a family without a lens, or activations that are not finite.
    """
    ids, wanted = _tokens(model, tokenizer, prompt, answer)
    reader = _Reader(model, tokenizer, ids, tokens_shown)
    lens, last = reader.lens, reader.stream.last()
    logits = lens.logits(last.final)[0]
    target_id = int(logits.argmax()) if wanted is None else wanted
    target = torch.tensor([target_id], device=logits.device)
    attention = read_attention(model, reader.ids)
    coefficients = attention.coefficients().to(lens.dtype)

    best = importance.top(lens, last, reader.writes["act"], "act", target, value_neurons)[0]
    best_attention = importance.top_by_position(
        lens, last, reader.writes["attn"], coefficients, target[0], value_neurons
    )
    queries = _queries(reader, best, best_attention, share_floor)

    def found(row: tuple[float, int, int, int]) -> _Found:
        score, layer, unit, _ = row
        return _Found(
            layer, unit, score, float(last.coefficients("act", layer, lens.dtype)[0, unit]), reader.last
        )

    def found_attention(row: tuple[float, int, int, int]) -> _Found:
        score, layer, unit, position = row
        coefficient = _scaled(last, "attn", layer, coefficients[layer, unit, position])
        return _Found(layer, unit, score, coefficient, position)

    return Explanation(
        prompt=prompt,
        tokens=reader.tokens,
        target=_target(reader, logits, target_id),
        predictions=_predictions(reader, logits, top),
        embedding_log_prob=float(lens.base(last.inputs[0], reader.scale, target).log_prob),
        layers=_layers(reader, last, target, queries),
        heads=_heads(reader, last, target, coefficients, top),
        ffn_values=reader.rows("act", [found(row) for row in _rows(best)[:top]]),
        attention_values=reader.rows("attn", [found_attention(row) for row in _rows(best_attention)[:top]]),
        ffn_evaluated=best.evaluated,
        attention_evaluated=best_attention.evaluated,
        queries=tuple(
            _query_table(reader, name, scores, keys, top) for name, (scores, keys) in queries.items()
        ),
        value_neurons=value_neurons,
    )


def _tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str | None
) -> tuple[list[int], int | None]:
    ids = list(tokenizer.encode(prompt))
    if not ids or not prompt:
        raise UserError("the prompt has no tokens, so nothing predicts a next one; write a prompt")
    limit = getattr(config_of(model), "max_position_embeddings", None)
    if limit is not None and len(ids) > limit:
        raise UserError(f"the prompt has {len(ids)} tokens, more than the model's {limit}; shorten it")
    return ids, None if answer is None else encode(tokenizer, prompt, answer, first_only=True).targets[0]


def _rows(top: importance.Top) -> list[tuple[float, int, int, int]]:
    columns = (top.values.tolist(), top.layers.tolist(), top.units.tolist(), top.positions.tolist())
    return list(zip(*columns, strict=True))


def _scaled(last: Stream, kind: str, layer: int, coefficient: Tensor) -> float:
    scale = last.post_scale.get(kind)
    return float(coefficient if scale is None else coefficient / scale[layer, 0])


def _target(reader: _Reader, logits: Tensor, target: int) -> Target:
    log_prob = float(logits.log_softmax(-1)[target])
    return Target(
        reader.text(target),
        target,
        log_prob,
        float(logits.softmax(-1)[target]),
        1 + int((logits > logits[target]).sum()),
    )


def _predictions(reader: _Reader, logits: Tensor, top: int) -> tuple[TokenScore, ...]:
    probabilities = logits.softmax(-1)
    best = logits.topk(min(top, len(logits)))
    return tuple(
        TokenScore(reader.text(token), token, value, float(probabilities[token]))
        for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )


def _layers(
    reader: _Reader, last: Stream, target: Tensor, queries: dict[str, tuple[QueryScores, Keys]]
) -> tuple[LayerRow, ...]:
    lens, count = reader.lens, last.n_layers
    scale, targets = reader.scale.expand(count), target.expand(count)
    rows = torch.arange(count, device=target.device)
    before = lens.base(last.before("attn")[:, 0], scale, targets)
    attention = importance.of_vectors(lens, before, last.attention[:, 0], rows, scale, targets)
    before_ffn = lens.base(last.before("act")[:, 0], scale, targets)
    ffn = importance.of_vectors(lens, before_ffn, last.ffn[:, 0], rows, scale, targets)
    return tuple(
        LayerRow(
            layer,
            float(before.log_prob[layer]),
            float(attention[layer]),
            float(ffn[layer]),
            {
                name: (float(scores.attention[layer]), float(scores.ffn[layer]))
                for name, (scores, _) in queries.items()
            },
        )
        for layer in range(count)
    )


def _heads(
    reader: _Reader, last: Stream, target: Tensor, coefficients: Tensor, top: int
) -> tuple[HeadRow, ...]:
    """The best heads, and for each the position whose part of its output scores best."""
    lens, layout, count = reader.lens, reader.layout, last.n_layers
    scale, targets = reader.scale.expand(count), target.expand(count)
    base = lens.base(last.inputs[:, 0], scale, targets)
    outputs = head_outputs(last, reader.writes["attn"], layout)[:, 0].to(lens.dtype)
    rows = torch.arange(count, device=target.device).repeat_interleave(layout.n_heads)
    increases = importance.of_vectors(lens, base, outputs.flatten(0, 1), rows, scale, targets)
    best = increases.topk(min(top, len(increases)))
    found = []
    for index, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        layer, head = divmod(index, layout.n_heads)
        own = slice(head * layout.head_dim, (head + 1) * layout.head_dim)
        vectors = reader.writes["attn"][layer].vectors[own].to(lens.dtype)
        parts = coefficients[layer, own].T @ vectors
        if "attn" in last.post_scale:
            parts = parts / last.post_scale["attn"][layer]
        own_rows = torch.full((len(parts),), layer, device=target.device)
        by_position = importance.of_vectors(lens, base, parts, own_rows, scale, targets)
        position = int(by_position.argmax())
        found.append(
            HeadRow(layer, head, value, position, reader.tokens[position], float(by_position[position]))
        )
    return tuple(found)


def _queries(
    reader: _Reader, ffn: importance.Top, attention: importance.Top, share_floor: float | None
) -> dict[str, tuple[QueryScores, Keys]]:
    """Scores and subkeys by the value neurons' subkey: attention, gate (if there is one) and up."""
    model, positions = reader.model, torch.full_like(ffn.positions, reader.last)
    keys = {
        "attention": keys_of(
            model, "attn", attention.layers, attention.units, attention.positions, attention.values
        )
    }
    for part in ("gate", "up"):
        if part in reader.layout.kinds:
            keys[part] = keys_of(model, "act", ffn.layers, ffn.units, positions, ffn.values, part=part)
    return {
        name: (query_scores(reader.stream, reader.writes["act"], own, share_floor=share_floor), own)
        for name, own in keys.items()
    }


def _query_table(reader: _Reader, name: str, scores: QueryScores, keys: Keys, top: int) -> QueryTable:
    width = scores.units.shape[1]
    best = scores.units.flatten().topk(min(top, scores.units.numel()))
    rows = []
    for index, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        layer, unit = divmod(index, width)
        own = reader.stream.coefficients("act", layer, reader.lens.dtype)[:, unit]
        # Of the positions at which its value neurons read, the one where it is most active.
        positions: Tensor = keys.positions[keys.layers > layer]
        position = int(positions[own[positions].abs().argmax()]) if len(positions) else reader.last
        rows.append(_Found(layer, unit, value, float(own[position]), position))
    return QueryTable(name, reader.rows("act", rows), scores.shares)
