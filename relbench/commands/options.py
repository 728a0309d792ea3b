"""`--option KEY=VALUE`: options of a scoring method on the command line."""

from __future__ import annotations

from collections.abc import Iterable


def read_options(given: Iterable[str]) -> dict[str, object]:
    """Options by name; values are read as YAML (numbers, true, lists, mappings), else they are text.

    Raises:
        UserError: No "=" in one, or a value that is broken YAML.
    """
    import yaml

    from interventions.errors import UserError

    options: dict[str, object] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--option takes KEY=VALUE, not {item!r}")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"the value of --option {key} is broken YAML: {value!r}") from None
    return options
