"""Responses: what every unit does on every prompt, pooled over the prompt's tokens.

The model runs once over the prompts, whatever the number of concepts, in batches of prompts of similar
length. Batches follow from the prompts and the memory budget alone, so that several processes, which take
whole batches each, find bit for bit what one process finds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from interventions.errors import UserError
from interventions.files import sha256_json
from interventions.model_id import ModelId, hash_weights
from interventions.parallel import barrier, broadcast_text, world
from interventions.store import DTYPES, DiskStore, MemoryStore, Shape, Store, blocks
from interventions.units import Site, base_model, capture, config_of, layout_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from interventions.prompts import Prompt

POOLINGS = {
    "mean": "mean over all tokens, BOS included",
    "mean-no-bos": "mean over all tokens but a BOS that the tokenizer adds",
    "max": "maximum over all tokens",
    "last": "the last token, where the answer is predicted",
    "last-subject": "the last token of the subject",
    "positive-share": "share of all tokens on which the unit is positive",
}
# Tokens of a batch, beyond which a larger one is no faster.
MOST_TOKENS = {"cpu": 2048, "cuda": 32768}


@dataclass(frozen=True)
class Tokens:
    """A prompt as the model reads it.

    Attributes:
        ids: Token ids, special ones that the tokenizer adds at the beginning included.
        pooled: Positions that are pooled.
    """

    ids: tuple[int, ...]
    pooled: tuple[int, ...]


def tokenize(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], pooling: str) -> list[Tokens]:
    """Prompts as tokens, with the positions that `pooling` reads.

    Raises:
        UserError: Unknown pooling, an empty prompt, or a subject that cannot be found in its prompt.
    """
    if pooling not in POOLINGS:
        raise UserError(f"unknown pooling {pooling!r}; there are {', '.join(POOLINGS)}")
    needs_offsets = pooling == "last-subject"
    if needs_offsets and not tokenizer.is_fast:
        raise UserError("pooling last-subject needs a fast tokenizer, which knows where tokens come from")
    special = set(tokenizer.all_special_ids)
    eos = tokenizer.eos_token_id
    tokens = []
    for prompt in prompts:
        encoded = tokenizer(prompt.text, return_offsets_mapping=needs_offsets, verbose=False)
        ids: list[int] = list(encoded["input_ids"])
        # Some tokenizers close a text; the prompt goes on with the answer.
        while len(ids) > 1 and ids[-1] == eos:
            ids.pop()
        first = 1 if len(ids) > 1 and ids[0] in special else 0
        if not ids or (first == 0 and len(ids) == 1 and ids[0] in special):
            raise UserError(f"prompt {prompt.id!r} of {prompt.concept} has no tokens")
        if pooling == "mean-no-bos":
            pooled = tuple(range(first, len(ids)))
        elif pooling == "last":
            pooled = (len(ids) - 1,)
        elif pooling == "last-subject":
            pooled = (_last_of_subject(prompt, encoded["offset_mapping"][: len(ids)]),)
        else:
            pooled = tuple(range(len(ids)))
        tokens.append(Tokens(tuple(ids), pooled))
    return tokens


def _last_of_subject(prompt: Prompt, offsets: Sequence[tuple[int, int]]) -> int:
    if prompt.subject_span is None:
        raise UserError(
            f"prompt {prompt.id!r} of {prompt.concept} does not say where its subject is: use another pooling"
        )
    start, stop = prompt.subject_span
    inside = [i for i, (low, high) in enumerate(offsets) if low < stop and high > start and high > low]
    if not inside:
        raise UserError(f"no token of prompt {prompt.id!r} of {prompt.concept} belongs to its subject")
    return inside[-1]


def plan_batches(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Prompts in batches of similar length, longest first, each of at most `most_tokens` padded tokens.

    Ties keep the order of the prompts. A prompt longer than `most_tokens` is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    width = 0
    for index in order:
        if batches and (len(batches[-1]) + 1) * width <= most_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            width = lengths[index]
    return batches


def tokens_within(model: PreTrainedModel, sites: Sequence[Site], budget: int, shortest: int = 1) -> int:
    """How many tokens a forward pass that reads `sites` may take at once to stay within `budget` bytes.

    Args:
        model: What is run.
        sites: What is read.
        budget: Bytes.
        shortest: Tokens of the shortest prompt, which says how many prompts a batch has at most.
    """
    layout = layout_of(model)
    itemsize = next(model.parameters()).element_size()
    widths = [layout.size(site.kind) for site in sites]
    # Captured responses stay until the pass ends; one site at a time is pooled in float32; and a layer's own
    # intermediate results come and go. A prompt's pooled responses are there twice, in float32 and as kept.
    layer = 8 * layout.d_model + 4 * layout.d_ff + 4 * layout.n_heads * layout.head_dim
    per_token = itemsize * (sum(widths) + layer) + 8 * max(widths) + 8 * sum(widths) // shortest
    most = MOST_TOKENS["cpu" if model.device.type == "cpu" else "cuda"]
    return max(1, min(most, budget // per_token))


class Responses:
    """Pooled responses of prompts × units; a context manager that lets go of temporary files.

    Attributes:
        sites: Sites, in the order of the blocks.
        order: int64 [prompts]: the prompt that each row belongs to.
        lengths: int64 [prompts]: tokens of the prompt of each row.
    """

    def __init__(
        self,
        store: Store,
        order: NDArray[np.int64],
        lengths: NDArray[np.int64],
        temporary: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.sites = store.shape.sites
        self.order = order
        self.lengths = lengths
        self._store = store
        self._temporary = temporary

    def __enter__(self) -> Responses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete what was only kept for this run."""
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def itemsize(self) -> int:
        """Bytes of a response as it is kept."""
        return np.dtype(DTYPES[self._store.shape.dtype]).itemsize

    @property
    def n_prompts(self) -> int:
        """Rows."""
        return len(self.order)

    def size(self, site: Site) -> int:
        """Units of a site."""
        return self._store.shape.units[self.sites.index(site)]

    def blocks(
        self, budget: int, *, whole: bool = False, sites: Sequence[Site] | None = None
    ) -> Iterator[tuple[Site, slice, Tensor]]:
        """Blocks of at most `budget` bytes: site, its units, and responses [rows, units] on the CPU.

        Args:
            budget: Bytes of one block.
            whole: Do not split sites.
            sites: The sites to read; all by default.
        """
        numbers = None if sites is None else [self.sites.index(site) for site in sites]
        for index, columns, block in blocks(self._store, budget, whole=whole, sites=numbers):
            yield self.sites[index], columns, torch.from_numpy(block)

    def site(self, site: Site) -> Tensor:
        """All responses of a site in the order of the prompts, float32 [prompts, units]."""
        block = self._store.read(self.sites.index(site), slice(None))
        out = torch.empty(block.shape, dtype=torch.float32)
        out[torch.from_numpy(self.order)] = torch.from_numpy(np.array(block)).float()
        return out


def collect(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sites: Sequence[Site],
    *,
    pooling: str = "mean",
    dtype: str = "float32",
    memory: int = 4 << 30,
    store: str | Path | None = None,
    progress: bool = False,
) -> Responses:
    """Run the model over `prompts` and keep the pooled responses of `sites`.

    Args:
        model: A causal LM in eval mode.
        tokenizer: Its tokenizer. Its padding side does not matter.
        prompts: What to read; at least one.
        sites: What to keep.
        pooling: One of `POOLINGS`.
        dtype: Of what is kept, "float32" or "float16"; pooling itself is done in float32.
        memory: Bytes that batches, and responses kept in memory, may take besides the model.
        store: Folder under which responses are kept and found again when model, prompts, pooling, sites,
            dtype and batches are the same; a killed run goes on where it stopped. Without it, responses live
            in memory when they take at most half the budget, else in a temporary folder.
        progress: Show progress on stderr.

    Raises:
        UserError: See `tokenize`; a prompt longer than the model's context; NaN or infinite responses; values
            that float16 cannot hold; too little disk.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}; responses are kept as {' or '.join(DTYPES)}")
    if not prompts:
        raise UserError("there are no prompts to read responses from")
    sites = tuple(sites)
    layout = layout_of(model)
    tokens = tokenize(tokenizer, prompts, pooling)
    _check_lengths(model, prompts, tokens)
    sizes = [len(one.ids) for one in tokens]
    batches = plan_batches(sizes, tokens_within(model, sites, memory // 2, min(sizes)))
    shape = Shape(
        sites=sites,
        units=tuple(layout.size(site.kind) for site in sites),
        batches=tuple(len(batch) for batch in batches),
        dtype=dtype,
    )
    order = np.array([index for batch in batches for index in batch], dtype=np.int64)
    lengths = np.array([len(tokens[index].ids) for index in order], dtype=np.int64)
    rank, size = world()
    temporary = None
    if store is None and size == 1 and shape.n_bytes <= memory // 2:
        kept: Store = MemoryStore(shape)
    else:
        identity = _identity(model, tokens, batches, shape, pooling)
        if store is None:
            if rank == 0:
                temporary = tempfile.TemporaryDirectory(prefix="relbench-responses-")
            store = broadcast_text(temporary.name if temporary else "")
        kept = DiskStore(Path(store) / sha256_json(identity)[:20], shape, identity, rank=rank)
    barrier()
    finished = kept.finished()
    # Nobody writes before everybody knows what is there.
    barrier()
    todo = [number for number in range(len(batches)) if number not in finished]
    _read(model, tokens, prompts, batches, todo[rank::size], kept, pooling, progress and rank == 0)
    barrier()
    return Responses(kept, order, lengths, temporary)


def _check_lengths(model: PreTrainedModel, prompts: Sequence[Prompt], tokens: Sequence[Tokens]) -> None:
    longest = max(range(len(tokens)), key=lambda index: len(tokens[index].ids))
    limit = getattr(config_of(model), "max_position_embeddings", None)
    length = len(tokens[longest].ids)
    if limit and length > limit:
        raise UserError(
            f"prompt {prompts[longest].id!r} of {prompts[longest].concept} has {length} tokens; "
            f"the model reads {limit}: use fewer few-shot examples"
        )


def _identity(
    model: PreTrainedModel,
    tokens: Sequence[Tokens],
    batches: Sequence[Sequence[int]],
    shape: Shape,
    pooling: str,
) -> dict[str, Any]:
    model_id = ModelId.of(model)
    return {
        "layout": model_id.layout_hash,
        "weights": hash_weights(model),
        "model_dtype": str(model.dtype).removeprefix("torch."),
        "prompts": sha256_json([[token.ids, token.pooled] for token in tokens]),
        "batches": sha256_json([list(batch) for batch in batches]),
        "pooling": pooling,
        "sites": [str(site) for site in shape.sites],
        "dtype": shape.dtype,
        "rows": shape.n_rows,
    }


def _read(
    model: PreTrainedModel,
    tokens: Sequence[Tokens],
    prompts: Sequence[Prompt],
    batches: Sequence[Sequence[int]],
    todo: Sequence[int],
    store: Store,
    pooling: str,
    progress: bool,
) -> None:
    """Run the batches `todo` and put their pooled responses into `store`."""
    if not todo:
        return
    sites = store.shape.sites
    # The unembedding is not needed, and its logits would be the largest tensor of all.
    root: Any = base_model(model)
    body: Any = root.base_model
    device: torch.device = root.get_input_embeddings().weight.device
    bar = tqdm(
        total=sum(len(batches[number]) for number in todo),
        desc="responses",
        unit="prompt",
        disable=None if progress else True,
    )
    with torch.inference_mode(), capture(model, sites) as captured, bar:
        for number in todo:
            members = [tokens[index] for index in batches[number]]
            width = max(len(member.ids) for member in members)
            # Padding stands on the right, where no token of a causal model looks.
            ids = torch.zeros(len(members), width, dtype=torch.long)
            weights = torch.zeros(len(members), width)
            for row, member in enumerate(members):
                ids[row, : len(member.ids)] = torch.tensor(member.ids)
                weights[row, list(member.pooled)] = 1.0 / len(member.pooled)
            body(
                input_ids=ids.to(device),
                attention_mask=torch.ones_like(ids, device=device),
                use_cache=False,
            )
            # Each site's responses go as soon as they are pooled.
            pooled = [pool(captured.pop(site), weights, pooling) for site in sites]
            # A sum is many times cheaper than a test of each value, and finite only when all are.
            sums = torch.stack([part.sum().to(device) for part in pooled])
            if not bool(torch.isfinite(sums).all()):
                _refuse(sites, pooled, [prompts[index] for index in batches[number]])
            store.write(number, [_kept(part, store.shape.dtype) for part in pooled])
            bar.update(len(members))


def _kept(pooled: Tensor, dtype: str) -> NDArray[Any]:
    """Pooled responses as the store keeps them.

    Raises:
        UserError: float16 cannot hold one.
    """
    values: NDArray[np.float32] = pooled.cpu().numpy()
    if dtype == "float16":
        limit = float(np.finfo(np.float16).max)
        if max(values.max(), -values.min()) > limit:
            raise UserError("some responses are too large for float16; keep them as dtype float32")
    return values.astype(DTYPES[dtype], copy=False)


def pool(responses: Tensor, weights: Tensor, pooling: str) -> Tensor:
    """Responses [batch, seq, units] pooled over tokens, float32 [batch, units].

    Args:
        responses: What `capture` read.
        weights: [batch, seq], positive where a token is pooled, each row summing to 1.
        pooling: One of `POOLINGS`.
    """
    weights = weights.to(responses.device)
    if pooling == "max":
        return responses.masked_fill((weights == 0)[..., None], -torch.inf).amax(dim=1).float()
    if pooling in ("last", "last-subject"):
        return responses[torch.arange(len(weights), device=weights.device), weights.argmax(dim=1)].float()
    values = (responses > 0).float() if pooling == "positive-share" else responses.float()
    if pooling == "positive-share":
        # A NaN is not positive, but must not pass for silence either.
        values = torch.where(torch.isfinite(responses), values, torch.nan)
    return torch.bmm(weights[:, None, :], values)[:, 0]


def _refuse(sites: Sequence[Site], pooled: Sequence[Tensor], members: Sequence[Prompt]) -> None:
    """Raise for the first site whose responses are not finite; a sum of finite ones may overflow."""
    for site, part in zip(sites, pooled, strict=True):
        bad = ~torch.isfinite(part)
        if bool(bad.any()):
            row = int(bad.any(dim=1).nonzero()[0])
            raise UserError(
                f"layer {site.layer} gives NaN or infinite responses at {site}, first on prompt "
                f"{members[row].id!r} of {members[row].concept}; load the model in float32 or bfloat16"
            )
