"""The event log: one JSON event per container with edits, denials or errors.

hook.core.report makes an event about a container. `write` appends it to the log. An event has a pod's
text in full; `line` limits its length when the event is written.
"""

from __future__ import annotations

import posix
import time
from collections.abc import Sequence
from typing import Any

from hook.core.base import digest, logfile
from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import encode
from hook.core.base.system import timestamp, trusted
from hook.core.base.text import head
from hook.core.container.identity import CONTAINERD, CRIO, Identity

EVENT_LINE = 64 << 10
"""Maximum number of bytes of a line of the log, with its newline."""

EVENT_ENTRIES = 64
"""Maximum number of edits in an event; also of denials, and of errors."""

EVENT_ITEMS, EVENT_MEMBERS = 8, 16
"""Maximum length of a list inside an edit (earlier values of a name, earlier mounts, mount options), and of an object;
no event of reassert has an object with more."""

EVENT_STRING = 256
"""Bytes of UTF-8 that are kept of one string."""

EVENTS = "/var/log/reassert/events.jsonl"
"""Default path of the event log."""

PROBES = "/run/reassert/probes"
"""Directory that only root can write to. `verify` and `install` keep a file in it for each of their running
probe containers, named by the container's id; with CRI another one, named by the pod's UID."""

EDITED, DENIED, ERROR = "container.edited", "container.denied", "container.error"
WOULD_DENY = "container.would-deny"
"""The container started because the mode is Audit; Enforce mode would have refused it."""
REMOUNTABLE = "container.remountable"
"""No edit was needed; the container can make reserved mounts writable."""
NODE_PATHS = "container.node-paths"
"""No edit was needed; a volume of the container reaches files of an engine, or of reassert."""
INEXACT = "container.claims"
"""No edit was needed; devices of resource claims that the container may not have count as its own (`claims`)."""
DRIFTED = "container.drifted"
"""An audit found for the first time that a running container differs from the policy."""
HELD = "policy.held"
"""No edit was needed; the policy file on disk is newer than the policy in force."""


def is_probe(adapter: str, container_id: str, identity: Identity | None) -> bool:
    """Whether the container is a probe, which `verify` or `install` started as root and marked in PROBES.

    No other user can mark a container as a probe: engines choose ids at random, and only root can write to the
    directory. The pod's UID counts only over NRI, and of containerd and CRI-O: an id is marked when the engine has told
    it, and that can be after the runtime was called. Elsewhere the UID may be a docker user's annotation.
    """
    try:
        # A list to compare with: an id is never used as a path.
        marks = posix.listdir(PROBES) if posix.access(PROBES, posix.F_OK) else []
        if not marks:  # as almost always
            return False
        trusted(PROBES)
    except (OSError, ReassertError):
        return False
    if container_id in marks or identity is None:
        return container_id in marks
    return identity.uid in marks and (adapter == "nri" or identity.engine in (CONTAINERD, CRIO))


def line(event: dict[str, Any]) -> str:
    """The event as printable ASCII, with its newline, at most EVENT_LINE bytes.

    It has the name of the node too, since logs of many nodes are collected in one place.

    A string of more than EVENT_STRING bytes is cut and ends in "…". `truncated` then has a JSON pointer (RFC 6901) to
    it, with the length and the hash of the whole string. `omitted` has pointers to lists and objects, with the number
    of items that were left out. An event that was parsed from such a line keeps its `truncated` and `omitted`.
    """
    event = {**event, "node": posix.uname().nodename}
    if not event.keys() & {"truncated", "omitted"} and _is_whole(event, 0):  # as almost each
        text = encode(event)
        if len(text) < EVENT_LINE:
            return text
    measured = {note["at"]: (note["bytes"], note["sha256"]) for note in event.get("truncated", ())}
    text = encode(_Excerpt(EVENT_STRING, measured).of(event))
    return text if len(text) < EVENT_LINE else encode(_Excerpt(EVENT_STRING, measured).within_shares(event))


def _is_whole(value: Any, depth: int) -> bool:
    """Whether nothing of an event, or of a list or object at this depth in it, has to be shortened.

    False also if that is not certain: _Excerpt tells.
    """
    is_object = isinstance(value, dict)
    if (depth and len(value) > (EVENT_MEMBERS if is_object else EVENT_ITEMS)) or depth >= _DEPTH:
        return False
    for item in value.values() if is_object else value:
        if isinstance(item, str):
            if len(item) > EVENT_STRING or not item.isascii():
                return False
        elif isinstance(item, (dict, list, tuple)) and item and not _is_whole(item, depth + 1):
            return False
    return True


def of_adapter(adapter: str, event: str, level: str, message: str, **more: object) -> dict[str, object]:
    """An event about an adapter or the node, and about no container. `more`: its own fields."""
    now = timestamp(time.time_ns())
    return {"timestamp": now, "adapter": adapter, "event": event, "level": level, "message": message, **more}


def write(path: str, event: dict[str, object], settings: Sequence[Any] = ()) -> None:
    """Append an event to the log. A log that cannot be written never stops a container.

    `settings`: `Policy.event_log` of the policy that the event names.
    """
    logfile.try_to_append(path, line(event), *settings)


_DEPTH = 6
"""Maximum nesting of lists and objects; no event of reassert is nested deeper."""

_SHORT = 32
"""Bytes that are kept of a string where an entry or a member does not fit otherwise."""

_WARNING = 1024
"""Maximum number of bytes of `warning`, which quotes the node's policy file and no text of a pod."""

_SHARES = {"edits": 28 << 10, "denials": 10 << 10, "errors": 10 << 10}
_OTHERMEMBERS = 12 << 10
"""Bytes for each of these members, and for all other members together, in an event that does not fit into a line."""


class _Excerpt:
    """Shortens an event or a part of it, and notes what it left out."""

    __slots__ = ("limit", "measured", "omitted", "truncated")

    def __init__(self, limit: int, measured: dict[str, tuple[int, str]]) -> None:
        self.limit = limit
        """How many bytes are kept of a string."""
        self.measured = measured
        """The length and the hash of each cut string, by its pointer, so that each is hashed once."""
        self.truncated: list[object] = []
        """The notes of the event about strings that were cut."""
        self.omitted: dict[str, int] = {}
        """The notes of the event about entries that were left out."""

    def of(self, event: dict[str, Any]) -> dict[str, object]:
        """The whole event, shortened: for a usual one, all of it."""
        return self._with_notes(self._shorten(_members(event), ""), event)

    def within_shares(self, event: dict[str, Any]) -> dict[str, object]:
        """The event within _SHARES: of a list the first entries that fit, and the other members that fit."""
        small: dict[str, object] = {}
        rest = _OTHERMEMBERS
        for key, value in _members(event).items():
            if key in _SHARES and isinstance(value, list):
                small[key] = self._first_entries(value, "/" + key, _SHARES[key])
                continue
            member, size = self._fit(value, "", key, rest)
            if size > rest:
                self.omitted["/" + key] = 1
            else:
                small[key] = member
                rest -= size
        return self._with_notes(small, event)

    def _first_entries(self, entries: list[Any], pointer: str, room: int) -> list[object]:
        kept: list[object] = []
        for number, entry in enumerate(entries[:EVENT_ENTRIES]):
            small, size = self._fit(entry, pointer, number, room)
            if size > room:
                break
            kept.append(small)
            room -= size
        if len(entries) > len(kept):
            self.omitted[pointer] = len(entries) - len(kept)
        return kept

    def _fit(self, value: object, pointer: str, key: str | int, room: int) -> tuple[object, int]:
        """A shortened value and its length as JSON; the length is above `room` if it does not fit.

        `pointer`, `key`: the JSON pointer to what has the value, and the value's place there.
        """
        for limit in (EVENT_STRING, _SHORT):
            excerpt = _Excerpt(limit, self.measured)
            small = excerpt._shorten({key: value}, pointer)[key]
            size = len(encode([small, excerpt.truncated, excerpt.omitted]))
            if size <= room:
                self.truncated += excerpt.truncated
                self.omitted.update(excerpt.omitted)
                return small, size
        return None, room + 1

    def _shorten(self, value: Any, pointer: str) -> Any:
        """A list or an object as it is logged. `pointer`: the JSON pointer to it."""
        depth, is_object = pointer.count("/"), isinstance(value, dict)
        most = len(value)
        if depth:
            most = (
                (EVENT_MEMBERS if is_object else EVENT_ENTRIES if depth == 1 else EVENT_ITEMS) if depth < _DEPTH else 0
            )
        if len(value) > most:
            self.omitted[pointer] = len(value) - most
        small: dict[str | int, object] = {}
        for key, item in value.items() if is_object else enumerate(value):
            if len(small) == most:
                break
            if isinstance(item, str):
                is_short = len(item) <= self.limit and item.isascii()  # as almost each
                small[key] = item if is_short else self._cut(item, f"{pointer}/{key}")
            elif isinstance(item, (dict, list, tuple)):
                small[key] = self._shorten(item, f"{pointer}/{key}")
            else:
                small[key] = item
        return small if is_object else list(small.values())

    def _cut(self, text: str, pointer: str) -> str:
        kept = head(text, _WARNING if pointer == "/warning" else self.limit)
        if kept is text:
            return text
        if pointer not in self.measured:
            self.measured[pointer] = digest.measure(text)
        size, sha256 = self.measured[pointer]
        self.truncated.append({"at": pointer, "bytes": size, "sha256": sha256})
        return kept + "…"

    def _with_notes(self, small: dict[str, object], event: dict[str, Any]) -> dict[str, object]:
        """The shortened members, with `truncated` and `omitted`; what the event itself omitted is added up."""
        omitted = dict(event.get("omitted", {}))
        for pointer, count in self.omitted.items():
            omitted[pointer] = omitted.get(pointer, 0) + count
        if self.truncated:
            small["truncated"] = self.truncated
        if omitted:
            small["omitted"] = omitted
        return small


def _members(event: dict[str, Any]) -> dict[str, Any]:
    """The members that are shortened: all but the notes about what was left out of these."""
    return {key: value for key, value in event.items() if key not in ("truncated", "omitted")}
