"""The lm-eval model `relbench`: a Hugging Face causal LM with neuron interventions and shared-prefix scoring.

The one module that builds on lm-eval's model class.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from interventions.apply import Handle, Intervention, intervene
from interventions.errors import UserError
from interventions.model_id import ModelId
from relbench.engine import Plan, TokenRequest, make_plan, run_plan, sharing_of
from relbench.masking import intervention_from_arguments
from relbench.models import resolve

_log = logging.getLogger(__name__)

# Tokens of a forward call for each row of the batch size: rows here are short, since they share their beginnings.
ROW_TOKENS = 16


class AnswerScore(tuple):
    """lm-eval's `(log probability, is greedy)`, carrying the rank of the first answer token as well.

    A plain tuple to every other task: unpacking, comparing and serialising see two elements.
    """

    first_token_rank: int

    def __new__(cls, logprob: float, greedy: bool, first_token_rank: int) -> AnswerScore:
        self = super().__new__(cls, (logprob, greedy))
        self.first_token_rank = first_token_rank
        return self

    def __getnewargs__(self) -> tuple[float, bool, int]:
        return (self[0], self[1], self.first_token_rank)


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
        **kwargs: Everything that lm-eval's `hf` model takes.

    Raises:
        UserError: The mask cannot be read or belongs to another model, or the options contradict.
    """

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
        super().__init__(pretrained, **kwargs)
        if self.backend != "causal":
            raise UserError("relbench intervenes in causal language models only")
        self.model_id = ModelId.of(self.model)
        self.sharing = sharing_of(self.model)
        with self.intervened():
            # Opening once shows a mask of another model now instead of after the first task.
            pass

    @contextmanager
    def intervened(self) -> Iterator[Handle | None]:
        """The model with its interventions in, for the length of the block."""
        if not self.interventions:
            yield None
            return
        with intervene(self.model, *self.interventions, force=self.force) as handle:
            yield handle

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

    def score_plan(self, plan: Plan, *, progress: bool = False) -> list[AnswerScore]:
        """Scores of a plan's requests under the model's interventions."""
        with self.intervened() as handle:
            scores = run_plan(
                self.model,
                plan,
                call_tokens=int(self.batch_size) * ROW_TOKENS,
                handle=handle,
                progress=progress,
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
        """lm-eval's rolling log likelihood, under the interventions."""
        with self._plain_positions("loglikelihood_rolling"):
            rolled: list[float] = super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
        return rolled

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """lm-eval's generation, under the interventions."""
        with self._plain_positions("generate_until"), self.intervened():
            generated: list[str] = super().generate_until(requests, disable_tqdm=disable_tqdm)
        return generated

    @contextmanager
    def _plain_positions(self, what: str) -> Iterator[None]:
        for intervention in self.interventions:
            if intervention.positions != "all":
                raise UserError(
                    f"{what} requests have no context and continuation to tell apart; "
                    f"use positions=all instead of {intervention.positions}"
                )
        yield

    def get_model_info(self) -> dict[str, Any]:
        """lm-eval's model facts, with the exact model and every intervention."""
        info: dict[str, Any] = super().get_model_info()
        info["relbench"] = {
            "model_id": self.model_id.to_dict(),
            "interventions": [intervention.to_dict() for intervention in self.interventions],
            "forced": any(not one.mask.model.fits(self.model_id) for one in self.interventions),
        }
        return info


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
