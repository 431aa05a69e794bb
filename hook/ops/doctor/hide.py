"""Takes env values out of what goes into a bundle, unless the policy file has them.

Of events only fields are taken whose meaning is known. In their messages and in other text, what stands behind `NAME=`
is hidden, and then every env value of a container that runs here, wherever it stands. Fields are not searched for such
values: a pod could choose one that hides what happened to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from hook.core.policy.entries import ALLOCATED, VALUE
from hook.core.policy.model import Policy

HIDDEN = "(hidden)"

SHORTEST = 6
"""Characters of the shortest value that is looked for everywhere. `1` and `true` are in every text."""

LONGEST = 4096
"""Characters that are kept of a line of text that is not an event."""

_FIELDS = (
    *("timestamp", "event", "level", "adapter", "id", "container", "mode", "policy", "durationMs", "probe", "start"),
    *("cold", "applied", "verified", "asked", "omitted", "tried"),
)
_EDIT = ("rule", "kind", "name", "applied", "mode")
_NAME = r"""((?<![^\s"'(),:;<=>\[\\\]{}])[^\s"'(),:;<=>\[\\\]{}]+|(?<=[^\s\w]))"""
_ASSIGNMENT = re.compile(_NAME + r"""(\\?["']?\s*(?:=|:\s)\s*\\?["']?)([^\s"',;}\\]*)(.*)""")
"""A pod's env name may have any printable ASCII but `=`, an image's any character. Only a name's end may be matched."""

_ENV = re.compile(r"(?:.*\W)?[A-Z][A-Z0-9_]+")


class Hider:
    """Hides values. `secret`: env values of containers."""

    def __init__(self, policy: Policy, secret: Iterable[str] = ()) -> None:
        rules = [] if policy.missing else policy.candidates(None)
        literal = [env.text for rule in rules for env in rule.env if env.source in (VALUE, ALLOCATED)]
        self.owned = {text for text in literal if text is not None}
        longest_first = sorted({v for v in secret if len(v) >= SHORTEST and v not in self.owned}, key=len, reverse=True)
        self._secret = [form for value in longest_first for form in _forms(value)]

    def text(self, text: str) -> str:
        """The text without env values."""
        return self.known("\n".join([self._without_assignments(line[:LONGEST]) for line in text.split("\n")]))

    def known(self, text: str) -> str:
        """The text without the env values of containers that run here; nothing else is taken out."""
        for value in self._secret:
            if value in text:
                text = text.replace(value, HIDDEN)
        return text

    def line(self, line: str) -> str:
        """A line of a journal: an event, or any other text."""
        try:
            event = json.loads(line)
        except ValueError:
            return self.text(line)
        return json.dumps(self.event(event)) if isinstance(event, dict) else self.text(line)

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event without env values: its known fields only, and of an edit the values that the policy file has."""
        kept = {key: event[key] for key in _FIELDS if key in event}
        for key in ("edits", "denials", "errors"):
            listed = event.get(key)
            entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
            kept[key] = [self._edit(entry) if key == "edits" else self._reason(entry) for entry in entries]
        for key in ("message", "warning"):
            if isinstance(event.get(key), str):
                kept[key] = self.text(event[key])
        return kept

    def _edit(self, edit: dict[str, Any]) -> dict[str, Any]:
        kept = _only(edit, _EDIT)
        if edit.get("kind") == "mount":
            kept.update(before=edit.get("before"), after=edit.get("after"))
        elif edit.get("kind") == "env":
            before = edit.get("before")
            values = before if isinstance(before, list) else [before]
            kept.update(before=[self._value(value) for value in values], after=self._value(edit.get("after")))
        return kept

    def _value(self, value: object) -> object:
        return value if value is None or (isinstance(value, str) and value in self.owned) else HIDDEN

    def _reason(self, reason: dict[str, Any]) -> dict[str, Any]:
        return {**_only(reason, ("rule", "mode")), "message": self.text(str(reason.get("message", "")))}

    def _without_assignments(self, line: str) -> str:
        """The line up to the first value that is not the policy's: nothing shows where a value ends."""
        done = ""
        while match := _ASSIGNMENT.search(line):
            name, sign, value, rest = match.groups()
            start = line[: match.start()] + name + sign
            is_env = "=" in sign or _ENV.fullmatch(name)
            if is_env and value not in self.owned:
                return done + start + HIDDEN
            done, line = done + start + (value if is_env else ""), rest if is_env else value + rest
        return done + line


def _only(entry: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: entry[key] for key in keys if key in entry}


def _forms(value: str) -> list[str]:
    """A value as JSON may write it, and as it is."""
    return list(dict.fromkeys([value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]]))
