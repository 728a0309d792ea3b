"""Options of the statistical scoring methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from interventions.errors import UserError
from interventions.memory import parse_memory
from interventions.responses import POOLINGS
from interventions.statistical.contrasts import BALANCES
from interventions.store import DTYPES


@dataclass(frozen=True)
class Options:
    """Options of the statistical methods; `Options.parse` reads them from a mapping.

    Attributes:
        pooling: One of `interventions.responses.POOLINGS`; None for the method's own.
        dtype: In which responses are kept, "float32" or "float16".
        memory: Budget of capture and scoring besides the model, such as "4G"; of each process.
        store: Folder in which responses are kept and found again; None keeps them for this run only.
        negatives: Concept → the concepts its negatives come from; None for all others that have prompts.
        negatives_per_positive: How many negatives are drawn for each positive; None for all.
        correct_only: Leave out prompts whose greedy continuation is no accepted answer.
        correct_tokens: Of how many of the answer's tokens the continuation must be greedy; None for all.
        balance: "none", "length", "answers" or "both"; see `contrasts.make_contrasts`.
        bootstrap: Replicates for the stability of the top k; 0 for none.
        k: Size of the top sets that stability, ties and balance are reported for; None for 1 % of the units.
        references: Whether to gather the reference statistics that mean and constant masks need.
        percentiles: Percentiles of the positives' responses among them.
        samples: Whole responses of so many negatives among them, for resampling.
        statistic: Options of the statistic itself.
    """

    pooling: str | None = None
    dtype: str = "float32"
    memory: str = "4G"
    store: str | None = None
    negatives: Mapping[str, Sequence[str]] | None = None
    negatives_per_positive: float | None = None
    correct_only: bool = False
    correct_tokens: int | None = None
    balance: str = "none"
    bootstrap: int = 0
    k: int | None = None
    references: bool = True
    percentiles: tuple[float, ...] = (5.0, 50.0, 95.0)
    samples: int = 0
    statistic: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, object], statistic: Mapping[str, object]) -> Options:
        """Options from names and values; text values are converted.

        Args:
            options: What the user gave; "-" and "_" in names are the same.
            statistic: The statistic's own options with their defaults.

        Raises:
            UserError: Unknown option, or a value that is not allowed.
        """
        known = [item.name for item in fields(cls) if item.name != "statistic"]
        values: dict[str, Any] = {}
        own = dict(statistic)
        for raw, value in options.items():
            name = raw.replace("-", "_")
            if name == "seed":
                raise UserError(
                    "the seed is no option of a method's own; give it as --seed, or seed: in a config"
                )
            if name in own:
                own[name] = _number(name, value, float if isinstance(own[name], float) else int)
            elif name in known:
                values[name] = _CONVERT.get(name, _same)(name, value)
            else:
                raise UserError(f"unknown option {raw!r}; this method takes {', '.join([*known, *own])}")
        parsed = cls(**values, statistic=own)
        parse_memory(parsed.memory)
        _one_of("dtype", parsed.dtype, DTYPES)
        _one_of("balance", parsed.balance, BALANCES)
        if parsed.pooling is not None:
            _one_of("pooling", parsed.pooling, POOLINGS)
        if parsed.correct_tokens is not None and not parsed.correct_only:
            raise UserError("correct_tokens goes with correct_only=true")
        if parsed.bootstrap == 1:
            raise UserError("bootstrap is 1; stability needs at least 2 replicates, better 100")
        return parsed


def _same(name: str, value: Any) -> Any:
    return value


def _text(name: str, value: object) -> str | None:
    return None if value is None else str(value)


def _number(name: str, value: object, kind: type[int] | type[float], least: float = 0) -> Any:
    try:
        number = kind(str(value))
    except ValueError:
        raise UserError(f"{name} is {value!r}; it must be a number") from None
    if not least <= number < float("inf"):
        raise UserError(f"{name} is {value!r}; it must be at least {least:g}")
    return number


def _optional(kind: type[int] | type[float], least: float) -> Any:
    return lambda name, value: None if value is None else _number(name, value, kind, least)


def _flag(name: str, value: object) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise UserError(f"{name} is {value!r}; write true or false")
    return words[str(value).lower()]


def _percentiles(name: str, value: object) -> tuple[float, ...]:
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else str(value).split(",")
    numbers = tuple(sorted({_number(name, item, float) for item in given if str(item).strip()}))
    if any(number > 100 for number in numbers):
        raise UserError(f"{name} is {value!r}; percentiles lie in 0 … 100")
    return numbers


def _one_of(name: str, value: str, allowed: Mapping[str, object] | Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(f"{name} is {value!r}; choose one of {', '.join(allowed)}")


_CONVERT: dict[str, Any] = {
    "pooling": _text,
    "store": _text,
    "memory": lambda name, value: str(value),
    "negatives_per_positive": _optional(float, 1e-9),
    "correct_only": _flag,
    "correct_tokens": _optional(int, 1),
    "bootstrap": lambda name, value: _number(name, value, int),
    "k": _optional(int, 1),
    "references": _flag,
    "percentiles": _percentiles,
    "samples": lambda name, value: _number(name, value, int),
}
