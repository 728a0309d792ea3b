"""What a JSON Schema says about a value, as problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from interventions.files import canonical_json
from relbench.leaderboards.problems import Problem, quoted, shown

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


def schema_problems(file: str, value: Any, schema: Mapping[str, Any]) -> list[Problem]:
    """Everything that a JSON Schema (Draft 2020-12) finds wrong with a value, in the order of the file."""
    validator = _validator(canonical_json(schema))
    found = {
        (path_of(error.absolute_path), _what(error)): tuple(map(str, error.absolute_path))
        for error in validator.iter_errors(value)
    }
    return [Problem(file, field, what) for field, what in sorted(found, key=lambda key: (found[key], key[1]))]


@lru_cache(maxsize=4)
def _validator(schema: str) -> Draft202012Validator:
    import json

    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def path_of(parts: Sequence[int | str]) -> str:
    """A JSON path: `methods[0].shots`."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _what(error: ValidationError) -> str:
    """What was expected and found; the schema says in `description` what it expects where a rule is cryptic."""
    rule, expected = error.validator, error.validator_value
    described = error.schema.get("description") if isinstance(error.schema, dict) else None
    value = error.instance
    if rule == "type":
        names = expected if isinstance(expected, str) else " or ".join(expected)
        return f"expected {names}, found {_kind(value)}"
    if rule == "required":
        missing = next(name for name in expected if name not in value and repr(name) in error.message)
        return f"expected the key {missing!r}, found none"
    if rule == "additionalProperties":
        known = error.schema.get("properties", {})
        extra = sorted(key for key in value if key not in known)
        return f"expected no key {quoted(extra[0])}, found it"
    if rule == "const":
        return f"expected {expected!r}, found {quoted(value)}"
    if rule == "enum":
        return f"expected one of {', '.join(map(str, expected))}, found {quoted(value)}"
    if rule in ("pattern", "propertyNames", "format"):
        return f"expected {described or f'text like {expected}'}, found {quoted(value)}"
    if rule in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        bound = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above"}.get(rule, "below")
        return f"expected {bound} {expected}, found {quoted(value)}"
    if rule in ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"):
        bound = "at least" if rule.startswith("min") else "at most"
        thing = {"Items": "entries", "Length": "characters", "Properties": "keys"}[rule[3:]]
        return f"expected {bound} {expected} {thing}, found {len(value)}"
    if rule == "uniqueItems":
        return "expected distinct entries, found one twice"
    return shown(f"expected {described or rule}, found {quoted(value)}", 300)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return f"{names.get(type(value), 'a number')}" if isinstance(value, (dict, list)) else quoted(value)
