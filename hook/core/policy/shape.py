"""Whether a value is valid by the policy's JSON Schema, 20 times faster than jsonschema says so.

The schema becomes functions, which say yes or no. If the answer is no, jsonschema tells what is wrong
(`hook.core.policy.check`). unit/policy/test_shape.py compares both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]

_IGNORED = ("$schema", "$id", "$defs", "title", "description", "default", "examples")
"""Keywords that say nothing about validity."""

_TYPES: dict[str, Check] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
}


class Shapes:
    """The checks of a schema and of its definitions, each made once."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._made: dict[str, Check] = {}
        self.document = self._check(schema)

    def definition(self, name: str) -> Check:
        """The check of a definition, by its name in `$defs`."""
        if name not in self._made:
            self._made[name] = self._check(self._schema["$defs"][name])
        return self._made[name]

    def _check(self, schema: dict[str, Any]) -> Check:
        checks: list[Check] = []
        for keyword, argument in schema.items():
            if keyword in _IGNORED or (keyword == "additionalProperties" and "properties" in schema):
                continue
            if keyword == "properties":
                checks.append(self._properties(argument, schema.get("additionalProperties", True)))
            elif keyword == "additionalProperties":
                checks.append(self._properties({}, argument))
            elif keyword == "$ref":
                checks.append(self.definition(str(argument).removeprefix("#/$defs/")))
            elif keyword == "items":
                checks.append(_each(self._check(argument)))
            elif keyword == "oneOf":
                checks.append(_one_of([self._check(branch) for branch in argument]))
            else:
                checks.append(_SIMPLE[keyword](argument))
        if len(checks) == 1:
            return checks[0]
        return lambda value: all(check(value) for check in checks)

    def _properties(self, properties: dict[str, Any], others: Any) -> Check:
        known = {name: self._check(schema) for name, schema in properties.items()}
        other = self._check(others) if isinstance(others, dict) else lambda _: bool(others)

        def check(value: Any) -> bool:
            if not isinstance(value, dict):
                return True
            return all(known.get(name, other)(item) for name, item in value.items())

        return check


def _each(check: Check) -> Check:
    return lambda value: not isinstance(value, list) or all(map(check, value))


def _one_of(branches: list[Check]) -> Check:
    return lambda value: [branch(value) for branch in branches].count(True) == 1


def _required(names: list[str]) -> Check:
    wanted = frozenset(names)
    return lambda value: not isinstance(value, dict) or value.keys() >= wanted


def _enum(choices: list[Any]) -> Check:
    return lambda value: any(_same(value, choice) for choice in choices)


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)  # in JSON, true is not 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _pattern(text: str) -> Check:
    search = re.compile(text).search
    return lambda value: not isinstance(value, str) or search(value) is not None


_SIMPLE: dict[str, Callable[[Any], Check]] = {
    "type": lambda name: _TYPES[name],
    "required": _required,
    "enum": _enum,
    "const": lambda wanted: lambda value: _same(value, wanted),
    "pattern": _pattern,
    "minLength": lambda least: lambda value: not isinstance(value, str) or len(value) >= least,
    "maxLength": lambda most: lambda value: not isinstance(value, str) or len(value) <= most,
    "minimum": lambda least: lambda value: not _is_number(value) or value >= least,
    "maximum": lambda most: lambda value: not _is_number(value) or value <= most,
    "minItems": lambda least: lambda value: not isinstance(value, list) or len(value) >= least,
    "maxItems": lambda most: lambda value: not isinstance(value, list) or len(value) <= most,
}
"""By keyword; one that is not here is a KeyError, also in the test that reads the whole schema."""
