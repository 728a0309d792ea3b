"""What boards are called and how they are read, the same words in Markdown and on the site."""

from __future__ import annotations

import re
from hashlib import sha256

from relbench.analysis.curve import ALL_LANGUAGES
from relbench.leaderboards.boards import Asked, ModelName, Section, where
from relbench.leaderboards.submission import Submission
from relbench.reports.formats import show

METHODS = (
    "How much else a model has forgotten by the time that it has forgotten half of what was aimed at: lower is "
    "better. Off-target loss is averaged over relations, and read off the loss–loss curve where the target loss "
    "is 50 %. Mean selectivity is target loss − off-target loss, averaged over the mask sizes."
)
RANKS = (
    "Rank: 1 + the number of methods whose 95 % interval lies wholly below. Methods with overlapping intervals "
    "can share a rank, marked with =. With fewer than three relations there is no interval and no rank. Overlap is "
    "a cautious criterion: methods of one submission meet the same facts, and its report compares them draw by "
    "draw. Random masks are what to read the others beside; they are not ranked, and where they are matched to all "
    "masks together, target and off-target loss average the same numbers, so that their selectivity is about 0 "
    "whatever they do."
)
MODELS = (
    "Recall without any mask, with Clopper–Pearson intervals. Most common answer: what one constant answer would "
    "recall. Rank: 1 + the number of models whose interval lies wholly above."
)
TRANSFER = (
    "Units found with facts in one language (rows), and the loss of the same relations in another (columns), "
    "averaged over relations; on the diagonal, the loss in their own language."
)


def language(code: str) -> str:
    """A language's heading."""
    return "all languages together" if code == ALL_LANGUAGES else code


def languages_of(section: Section, code: str) -> tuple[str, ...]:
    """The languages that an entry speaks for: with one language alone, "all" is that one too."""
    only = section.languages if code == ALL_LANGUAGES and len(section.languages) == 1 else ()
    return (code, *only)


def revision(model: ModelName) -> str:
    """A short name of a model's weights."""
    name = model.revision[:10] if model.revision else f"weights {model.fingerprint[:10]}"
    return name if model.dtype == "float32" else f"{name} in {model.dtype}"


def kinds(names: tuple[str, ...]) -> str:
    """Unit kinds in a sentence."""
    return " + ".join(names) + " units"


def question(asked: Asked) -> str:
    """How questions were put, in words."""
    rules = f"protocol {asked.protocol}"
    return f"{asked.template} prompts, {asked.shots} shots (seed {asked.shots_seed}), {asked.split} facts, {rules}"


def sizes(section: Section) -> str:
    """Mask sizes, in words."""
    return ", ".join(percent(size) if size < 1 else f"{size:,}" for size in section.sizes) or "–"


def percent(share: float) -> str:
    """A share of the units, such as 0.2 %."""
    return f"{100 * share:.3g} %"


def deed(section: Section) -> str:
    """What masks do, in words."""
    where_ = "at all positions" if section.positions == "all" else f"at {section.positions}"
    return f"units set to {section.mode} {where_}" if section.mode else where_


def page_name(submission: Submission) -> str:
    """Name of a submission's page: made of letters, digits and hyphens, different for different paths."""
    path = where(submission)
    safe = re.sub(r"[^A-Za-z0-9]+", "-", path).strip("-")[:80]
    return f"{safe}-{sha256(path.encode()).hexdigest()[:8]}.html"


def rank_values(value: float | None) -> str:
    """Off-target loss at half target loss in words; None is "not reached"."""
    return "not reached" if value is None else show(value, "share")


def selectivity(value: float | None) -> str:
    """A mean selectivity in words; what is left beyond the third decimal is noise and reads as 0."""
    return show(None if value is None else round(value, 3) + 0.0, "delta")
