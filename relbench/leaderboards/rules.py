"""The rules of the boards, and what of them a sweep does not keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from relbench.analysis.runs import language_of
from relbench.relations import load_relation, relation_names
from relbench.sweep_config import SweepConfig
from relbench.taskfiles import languages_of


class Broken(NamedTuple):
    """A rule that a config does not keep: the field of the config, and what was expected and found."""

    field: str
    what: str


@dataclass(frozen=True)
class Board:
    """What a board asks of a sweep.

    Attributes:
        name: Of the board.
        fractions: Mask sizes, exactly these; None for any or none.
        transfer_fraction: A mask size at which every mask meets every language; None for none.
        mode, positions: What is among those tried; None for no masks at all.
        control_seeds: Random masks of each size, at least.
        least_relations, least_languages: How many are masked, at least.
        every_relation: Whether all relations that there are in its languages must be asked.
    """

    name: str
    fractions: tuple[float, ...] | None = None
    transfer_fraction: float | None = None
    mode: str | None = None
    positions: str | None = None
    control_seeds: int = 0
    least_relations: int = 1
    least_languages: int = 1
    every_relation: bool = False

    def broken(self, config: SweepConfig) -> Iterator[Broken]:
        """The board's own rules that a config does not keep."""
        board = f"of the {self.name} board"
        if self.mode is not None and not (config.methods or config.scores):
            yield Broken("methods", f"expected at least one method {board}, found none")
        sizes = tuple(sorted(config.fractions))
        if self.fractions is not None and (sizes != self.fractions or config.ks):
            found = f"ks {list(config.ks)}" if config.ks else str(list(sizes))
            yield Broken("fractions", f"expected the grid {list(self.fractions)} {board}, found {found}")
        if self.mode is not None and self.mode not in [mode.label for mode in config.modes]:
            found = ", ".join(mode.label for mode in config.modes)
            yield Broken("modes", f"expected {self.mode} among them {board}, found {found}")
        if self.positions is not None and self.positions not in config.positions:
            found = ", ".join(config.positions)
            yield Broken("positions", f"expected {self.positions} among them {board}, found {found}")
        if config.controls.seeds < self.control_seeds:
            expected = f"expected at least {self.control_seeds} random masks of each size {board}"
            yield Broken("controls.seeds", f"{expected}, found {config.controls.seeds}")
        if len(config.tested_relations) < self.least_relations:
            expected = f"expected at least {self.least_relations} to be masked {board}"
            yield Broken("relations", f"{expected}, found {len(config.tested_relations)}")
        codes = {language_of(name) for name in config.tested_concepts}
        if len(codes) < self.least_languages:
            expected = f"expected at least {self.least_languages} in which relations are masked {board}"
            yield Broken("languages", f"{expected}, found {len(codes)}")
        if self.every_relation:
            asked = set(config.relations)
            for code in config.languages:
                missing = [name for name in relations_in(code) if name not in asked]
                if missing:
                    expected = f"expected every relation that there is in {code} {board}"
                    yield Broken("relations", f"{expected}, found none of {', '.join(missing)}")
        size = self.transfer_fraction
        if size is not None:
            everywhere = size in config.sizes and (
                config.evaluate == "all" or size in config.transfer_fractions
            )
            if not everywhere:
                found = ", ".join(map(str, config.transfer_fractions)) or "none"
                expected = f"expected {size}, or evaluate: all with that mask size {board}"
                yield Broken("transfer_fractions", f"{expected}, found {found}")


@dataclass(frozen=True)
class Rules:
    """The rules of all boards.

    Attributes:
        protocol: Their version.
        split, template, shots, shots_seed, limit: How questions are asked on every board.
        boards: Name → board.
    """

    protocol: int
    split: str
    template: str
    shots: int
    shots_seed: int
    limit: int
    boards: Mapping[str, Board]

    def broken(self, config: SweepConfig) -> Iterator[Broken]:
        """The rules of all boards that a config does not keep."""
        expected = {
            "split": (self.split, config.split),
            "templates[0]": (self.template, config.templates[0]),
            "shots[0]": (self.shots, config.shots[0]),
            "shots_seed": (self.shots_seed, config.shots_seed),
            "limit": (self.limit, config.limit),
        }
        for field, (wanted, found) in expected.items():
            if wanted != found:
                yield Broken(field, f"expected {wanted} as on all boards, found {found}")


@cache
def load_rules() -> Rules:
    """The rules of this version."""
    raw: dict[str, Any] = yaml.safe_load(
        (files("relbench.leaderboards") / "rules.yaml").read_text(encoding="utf-8")
    )
    boards = {name: _board(name, rules) for name, rules in raw["boards"].items()}
    return Rules(protocol=raw["protocol"], **raw["questions"], boards=boards)


def _board(name: str, rules: Mapping[str, Any]) -> Board:
    grid = rules.get("fractions")
    return Board(name, **{**rules, "fractions": None if grid is None else tuple(grid)})


@cache
def relations_in(language: str) -> tuple[str, ...]:
    """The relations that are tasks in a language."""
    return tuple(name for name in relation_names() if language in languages_of(load_relation(name)))
