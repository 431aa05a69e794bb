"""Conditions of rules, and edits of any kind, as text for tables; what JSON evidence begins with."""

from __future__ import annotations

import os
import time

from hook import __version__
from hook.core.base.system import timestamp
from hook.core.policy.model import Match
from hook.core.reserve.edits import SHOWN, Edit
from hook.core.reserve.place_device import Drop


def about() -> dict[str, str]:
    """Returns what each piece of evidence is about: node, time, version of the program."""
    return {"node": os.uname().nodename, "time": timestamp(time.time_ns()), "version": __version__}


def wanted(match: Match, field: str) -> str:
    """What the rule requires by a condition: `team-*|prod`, or `tier In (web), env Exists`."""
    required = match.rule.conditions[field]
    if field != "podSelector":
        return "|".join(str(pattern) for pattern in required)
    parts: list[str] = []
    for key, operator, values in required:
        parts.append(f"{key} {operator}" + (f" ({', '.join(values)})" if values else ""))
    return ", ".join(parts)


def actual(match: Match, field: str) -> str:
    """The container's value, in the same form."""
    value = match.seen(field)
    if isinstance(value, dict):
        return ",".join(f"{key}={text}" for key, text in value.items())
    return "|".join(value) if isinstance(value, tuple) else value or "unknown"


def words(edit: Edit) -> tuple[str, str]:
    """What the container would have started with, and what it gets."""
    if isinstance(edit, Drop):
        return edit.text, "absent"
    before, after = edit.shown()
    values = before if isinstance(before, list) else [before]
    return ", ".join(map(_word, values[:SHOWN])) or "-", "absent" if after is None else _word(after)


def _word(value: object) -> str:
    """An env or annotation value; a mount by its destination or, if it is reserved, its options; a device."""
    if not isinstance(value, dict):
        return "(no =)" if value is None else repr(value)
    if "destination" in value:
        return f"{value['destination']} from {value.get('source')}"
    if "options" in value:
        return f"{value['source']} ({','.join(value['options'])})"
    return f"{value.get('type')} {value.get('major')}:{value.get('minor')}"
