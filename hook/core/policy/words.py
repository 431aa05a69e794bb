"""Conditions of rules as text, for `explain` and `node verify`. A container start does not load this."""

from __future__ import annotations

from hook.core.policy.model import Condition


def wanted(condition: Condition) -> str:
    """What the rule requires: `team-*|prod`, or `tier In (web), env Exists`."""
    if condition.field != "podSelector":
        return "|".join(str(pattern) for pattern in condition.wanted)
    parts: list[str] = []
    for key, operator, values in condition.wanted:
        parts.append(f"{key} {operator}" + (f" ({', '.join(values)})" if values else ""))
    return ", ".join(parts)


def actual(condition: Condition) -> str:
    """The container's value, in the same form."""
    value = condition.actual
    if isinstance(value, dict):
        return ",".join(f"{key}={text}" for key, text in value.items())
    return "|".join(value) if isinstance(value, tuple) else value or "unknown"
