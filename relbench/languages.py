"""The languages of the probes and what stands between a prompt and its answer in each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """A language of the probes.

    Attributes:
        code: ISO 639-1 code, as used in task names and file keys.
        name: English name.
        delimiter: What stands between prompt and answer: a space, or nothing in scripts without spaces.
    """

    code: str
    name: str
    delimiter: str


LANGUAGES: dict[str, Language] = {
    language.code: language
    for language in (
        Language("en", "English", " "),
        Language("de", "German", " "),
        Language("fr", "French", " "),
        Language("es", "Spanish", " "),
        Language("zh", "Chinese", ""),
        Language("ja", "Japanese", ""),
    )
}
