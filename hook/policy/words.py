"""Conditions of rules, and edits, as text. A container start does not load this."""

from __future__ import annotations

from collections.abc import Mapping

from hook.policy.model import Condition
from hook.reserve.annotations import DropAnnotation
from hook.reserve.devices import PlaceDevice
from hook.reserve.env import SetEnv
from hook.reserve.exclusive import Drop
from hook.reserve.mounts import PlaceMount
from hook.reserve.outcome import SHOWN, Edit

_ABSENT = "absent"


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


def before_and_after(edit: Edit) -> tuple[str, str]:
    """What the container would have started with and what it gets, for a table."""
    if isinstance(edit, SetEnv):
        values = ", ".join("(no =)" if value is None else repr(value) for value in edit.before[:SHOWN])
        return values or "-", _ABSENT if edit.value is None else repr(edit.value)
    if isinstance(edit, PlaceMount):
        mounts = ", ".join(f"{m['destination']} from {m.get('source')}" for m in edit.before[:SHOWN])
        return mounts or "-", f"{edit.source()} ({','.join(edit.options())})" if edit.mount else _ABSENT
    if isinstance(edit, PlaceDevice):
        return ", ".join(map(_device, edit.before[:SHOWN])) or "-", _device(edit.device)
    if isinstance(edit, DropAnnotation):
        return repr(edit.before), _ABSENT
    if isinstance(edit, Drop):
        return edit.what, _ABSENT
    raise NotImplementedError


def _device(device: Mapping[str, object]) -> str:
    return f"{device.get('type')} {device.get('major')}:{device.get('minor')}"
