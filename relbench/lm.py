"""The lm-eval model `relbench`: a Hugging Face causal LM with neuron interventions and shared-prefix scoring.

The one module that builds on lm-eval's model class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text

from interventions import parallel
from interventions.apply import Handle, Intervention, intervene
from interventions.errors import UserError
from interventions.model_id import ModelId
from relbench.answers import AnswerScore, GeneratedText
from relbench.engine import Plan, TokenRequest, make_plan, run_plan, sharing_of
from relbench.masking import intervention_from_arguments
from relbench.models import resolve

# Tokens of a forward call for each row of the batch size: rows here are short, since they share their beginnings.
ROW_TOKENS = 16


# What batch_size=auto stands for. Calls are bounded in tokens, so there is no size to search for.
AUTO_BATCH_SIZE = {"cpu": 32}
AUTO_BATCH_SIZE_ELSEWHERE = 512


@register_model("relbench")
class RelbenchLM(HFLM):
    """A causal LM that scores under interventions.

    Args:
        pretrained: A hub id, a local folder, an embedded model's name, or a loaded model.
        mask: Path of a mask, or of a scores file together with `concept` and `k` or `fraction`.
        concept, k, fraction: Which units of a scores file to mask.
        mode, factor, value, percentile, positions, mask_seed: The intervention; see
            `interventions.apply.Intervention`.
        baseline: "auto", "none" or a results folder; read by `relbench lm-eval`, which does the pairing.
        force: Run a mask that was made for other weights, if its layout fits.
        interventions: Ready interventions, for callers that hold them; instead of `mask`.
        **kwargs: Everything that lm-eval's `hf` model takes. `batch_size` bounds a forward call to
            `ROW_TOKENS` times as many tokens; "auto" needs no search.

    Raises:
        UserError: The mask cannot be read or belongs to another model, or the options contradict.
    """

    cache_hook: Any

    def __init__(
        self,
        pretrained: Any,
        *,
        mask: str | None = None,
        concept: str | None = None,
        k: int | None = None,
        fraction: float | None = None,
        mode: str | None = None,
        factor: float | None = None,
        value: float | None = None,
        percentile: float | None = None,
        positions: str | None = None,
        mask_seed: int | None = None,
        baseline: str | None = "auto",
        force: bool = False,
        interventions: Sequence[Intervention] = (),
        **kwargs: Any,
    ) -> None:
        _check_placement(kwargs.get("dtype"), kwargs.get("device"))
        if isinstance(pretrained, str):
            pretrained = resolve(pretrained)
        # Read the mask before the model: a mistake in it should not cost a load.
        made = intervention_from_arguments(
            mask=mask,
            concept=concept,
            k=k,
            fraction=fraction,
            mode=mode,
            factor=factor,
            value=value,
            percentile=percentile,
            positions=positions,
            mask_seed=mask_seed,
        )
        self.interventions: tuple[Intervention, ...] = (made,) if made else tuple(interventions)
        self.force = force
        # A question is encoded once for each of its answers.
        self._encode_once = lru_cache(maxsize=64)(super().tok_encode)
        self._open: tuple[Sequence[Intervention], Handle] | None = None
        self._first_two: deque[str] = deque()
        automatic = str(kwargs.get("batch_size", "")).startswith("auto")
        try:
            super().__init__(pretrained, **{**kwargs, "batch_size": 1} if automatic else kwargs)
        except TypeError as error:
            # lm-eval hands what it does not know to the model's class.
            if "unexpected keyword argument" not in str(error):
                raise
            unknown = str(error).rpartition(" ")[2]
            raise UserError(f"unknown model argument {unknown}; it is neither ours nor lm-eval's") from error
        if self.backend != "causal":
            raise UserError("relbench intervenes in causal language models only")
        if any(one.is_prompt_learning for one in getattr(self.model, "peft_config", {}).values()):
            raise UserError(
                "relbench does not score with prompt-learning adapters: their tokens are no input"
            )
        if automatic:
            self.batch_size_per_gpu = AUTO_BATCH_SIZE.get(self.device.type, AUTO_BATCH_SIZE_ELSEWHERE)
        if isinstance(pretrained, str) and kwargs.get("tp_plan") is None:
            # lm-eval takes the rank within a machine, and on machines with several accelerators only.
            self._rank, self._world_size = parallel.world()
        self.model_id = ModelId.of(self.model)
        with self._precision():
            self.sharing = sharing_of(self.model)
        with self.intervened():
            # Opening once shows a mask of another model now instead of after the first task.
            pass

    @contextmanager
    def intervened(self) -> Iterator[Handle | None]:
        """The model with its interventions in, for the length of the block.

        A block within a block costs nothing, so that whoever scores many plans under the same interventions
        can put them in once.

        Raises:
            UserError: Other interventions are in by an enclosing block.
        """
        if self._open is not None:
            if self._open[0] is not self.interventions:
                raise UserError("the former interventions are still in the model; leave their block first")
            yield self._open[1]
        elif not self.interventions:
            yield None
        else:
            with intervene(self.model, *self.interventions, force=self.force) as handle:
                self._open = self.interventions, handle
                try:
                    yield handle
                finally:
                    self._open = None

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all processes in one, along the first dimension; lm-eval's evaluator calls this."""
        return parallel.gather(tensor) if self.world_size > 1 else tensor

    def barrier(self) -> None:
        """Wait for the other processes."""
        if self.world_size > 1:
            parallel.barrier()

    def _precision(self) -> torch.autocast:
        """lm-eval's `mixed_precision_dtype`."""
        chosen = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype=chosen, enabled=chosen is not None)

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **options: Any,
    ) -> list[int]:
        """lm-eval's `tok_encode`, remembering the last few texts."""
        if options:
            return super().tok_encode(string, add_special_tokens, left_truncate_len, **options)  # type: ignore[no-any-return]
        return list(self._encode_once(string, add_special_tokens, left_truncate_len))

    def token_requests(self, instances: Sequence[Instance]) -> list[TokenRequest]:
        """The token ids of loglikelihood requests, split where lm-eval's `hf` model splits them."""
        requests = []
        for instance in instances:
            context, continuation = instance.args
            if context == "":
                tokens = self.tok_encode(continuation, add_special_tokens=False)
                start = [self.prefix_token_id]
                if tokens[:1] == start:
                    start, tokens = tokens[:1], tokens[1:]
                requests.append(TokenRequest(tuple(start), tuple(tokens)))
            else:
                own, following = self._encode_pair(context, continuation)
                requests.append(TokenRequest(tuple(own), tuple(following)))
        return requests

    def plan(self, requests: Sequence[TokenRequest]) -> Plan:
        """How to score `requests` with shared prefixes within this model's window.

        Raises:
            UserError: An answer has no token of its own, or does not fit the window.
        """
        for request in requests:
            if not request.continuation:
                before = self.tok_decode(list(request.context[-8:]))
                raise UserError(
                    f"the answer after {before!r} has no token of its own: the tokenizer joins it with the "
                    "prompt; `relbench tasks check --tokenizer MODEL` finds such prompts"
                )
        try:
            return make_plan(requests, self.max_length, sharing=self.sharing)
        except ValueError as error:
            raise UserError(f"cannot score: {error}") from error

    @property
    def call_tokens(self) -> int:
        """Tokens of a forward call, at most, unless one input has more."""
        return int(self.batch_size) * ROW_TOKENS

    def score_plan(self, plan: Plan, *, progress: bool = False) -> list[AnswerScore]:
        """Scores of a plan's requests under the model's interventions."""
        with self.intervened() as handle, self._precision():
            scores = run_plan(
                self.model,
                plan,
                call_tokens=self.call_tokens,
                handle=handle,
                progress=progress,
                dtype=self.softmax_dtype or torch.float32,
            )
        return [AnswerScore(*score) for score in scores]

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        plan = self.plan([TokenRequest(tuple(own), tuple(after)) for _, own, after in requests])
        scores = self.score_plan(plan, progress=not disable_tqdm and self.rank == 0)
        for (texts, _, _), score in zip(requests, scores, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, score)
        return scores  # type: ignore[return-value]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """lm-eval's rolling log likelihood, under the interventions.

        Raises:
            UserError: An intervention acts on a context or a continuation, which these requests do not have.
        """
        for intervention in self.interventions:
            if intervention.positions != "all":
                raise UserError(
                    "loglikelihood_rolling requests have no context and continuation to tell apart; "
                    f"use positions=all instead of {intervention.positions}"
                )
        with self.intervened():
            rolled: list[float] = super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
        return rolled

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """lm-eval's generation, under the interventions; of positions, the context is the prompt.

        Returns:
            A `GeneratedText` for each request.
        """
        hook = self.cache_hook
        found = _Annotating(hook, self._first_two)
        self.cache_hook = found
        try:
            with self.intervened():
                texts: list[str] = super().generate_until(requests, disable_tqdm=disable_tqdm)
        finally:
            self.cache_hook = hook
            self._first_two.clear()
        return [found.annotated[request.args[0], text] for request, text in zip(requests, texts, strict=True)]

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        width = context.shape[1]
        handle = self._open[1] if self._open is not None else None
        with handle.generating(width) if handle is not None else nullcontext():
            tokens: torch.Tensor = super()._model_generate(context, max_length, stop, **options)
        for row in tokens[:, width : width + 2].tolist():
            self._first_two.append(postprocess_generated_text(self.tok_decode(row), stop, None))
        return tokens

    def get_model_info(self) -> dict[str, Any]:
        """lm-eval's model facts, with the exact model and every intervention."""
        info: dict[str, Any] = super().get_model_info()
        info["relbench"] = {
            "model_id": self.model_id.to_dict(),
            "interventions": [intervention.to_dict() for intervention in self.interventions],
            "forced": any(not one.mask.model.fits(self.model_id) for one in self.interventions),
        }
        return info


class _Annotating:
    """A cache hook that joins each generated text with its first two tokens.

    lm-eval calls it for each text right after the batch was generated, in the batch's order.
    """

    def __init__(self, inner: CacheHook, first_two: deque[str]) -> None:
        self.inner, self.first_two = inner, first_two
        self.annotated: dict[tuple[str, str], GeneratedText] = {}

    def add_partial(self, kind: str, request: tuple[str, Any], text: str) -> None:
        annotated = GeneratedText(text, self.first_two.popleft())
        self.annotated[request[0], text] = annotated
        self.inner.add_partial(kind, request, annotated)


def _check_placement(dtype: Any, device: Any) -> None:
    """Refuse a type or a device that there is not; lm-eval ends in a traceback or takes the processor instead."""
    if (
        isinstance(dtype, str)
        and dtype != "auto"
        and not isinstance(getattr(torch, dtype, None), torch.dtype)
    ):
        raise UserError(f"unknown dtype {dtype!r}; choose float32, bfloat16, float16 or auto")
    if not isinstance(device, str):
        return
    try:
        asked = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}; write cpu, cuda, cuda:1, mps, …") from None
    there = torch.cuda.device_count() if asked.type == "cuda" else int(torch.backends.mps.is_available())
    if asked.type in ("cuda", "mps") and (asked.index or 0) >= there:
        raise UserError(f"this machine has no device {device!r}; leave device out, or take cpu")


def load_lm(
    model: str,
    *,
    dtype: str = "float32",
    device: str | None = None,
    batch_size: int = 32,
    interventions: Sequence[Intervention] = (),
) -> RelbenchLM:
    """A model ready to score, without any intervention unless given.

    Args:
        model: An embedded model's name, a hub id or a local path.
        dtype: Of the weights.
        device: Where to; the first accelerator, else the processor, when None.
        batch_size: Prompts a forward call.
        interventions: What to do to it.

    Raises:
        UserError: There is no such model, or it cannot be loaded.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return RelbenchLM(
            model, dtype=dtype, device=device, batch_size=batch_size, interventions=interventions
        )
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the model {model!r}: {error}") from error
