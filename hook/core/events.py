"""The event log: one JSON event per container with edits, denials or errors. Part of the start path: builtins only.

hook.core.decide makes an event, in the same form for every adapter. `write` appends it to the log. An event has a pod's
text in full; `line` limits its length when the event is written.
"""

import posix

from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import encode
from hook.core.base.system import trusted
from hook.core.base.text import head, measure
from hook.core.container.identity import CONTAINERD, Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE = 64 << 10
"""Maximum number of bytes of a line of the log, with its newline."""

ENTRIES = 64
"""Maximum number of edits in an event; also of denials, and of errors."""

ITEMS, MEMBERS = 8, 16
"""Maximum length of a list inside an edit (earlier values of a name, earlier mounts, mount options), and of an object;
no event of reassert has an object with more."""

STRING = 256
"""Bytes of UTF-8 that are kept of one string."""

EVENTS = "/var/log/reassert/events.jsonl"
"""Default path of the event log."""

PROBES = "/run/reassert/probes"
"""Directory that only root can write to. `node verify` and `node install` keep a file in it for each of their running
probe containers, named by the container's id; with CRI another one, named by the pod's UID."""

SETTINGS: "list[Any]" = []
"""Arguments of hook.core.base.logfile.try_to_append, from the last policy that an event of this process names."""

EDITED, DENIED, ERROR = "container.edited", "container.denied", "container.error"
WOULD_DENY = "container.would-deny"
"""The container started because the mode is Audit; Enforce mode would have refused it."""
REMOUNTABLE = "container.remountable"
"""No edit was needed; the container can make reserved mounts writable."""
NODE_PATHS = "container.node-paths"
"""No edit was needed; a volume of the container reaches files of an engine, or of reassert."""
INEXACT = "container.claims"
"""No edit was needed; devices of resource claims that the container may not have count as its own (`claims`)."""
HELD = "policy.held"
"""No edit was needed; the policy file on disk is newer than the policy in force."""


def is_probe(adapter: str, container_id: str, identity: Identity | None) -> bool:
    """Whether the container is a probe, which `node verify` or `node install` started as root and marked in PROBES.

    No other user can mark a container as a probe: engines choose ids at random, and only root can write to the
    directory. The pod's UID counts only over NRI and of containerd, for sandboxes. Elsewhere it may be a docker user's
    annotation.
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
    return identity.uid in marks and (adapter == "nri" or identity.engine == CONTAINERD)


def line(event: "dict[str, Any]") -> str:
    """The event as printable ASCII, with its newline, at most LINE bytes: `_truncated` cuts what is longer."""
    if "truncated" not in event and "omitted" not in event and _is_short(event):
        text = encode(event)
        if len(text) < LINE:
            return text
    return _truncated(event)


def _is_short(value: "dict[str, Any] | list[Any] | tuple[Any, ...]", depth: int = 0) -> bool:
    """Whether nothing in a list or object may have to be cut, at a depth that every event has."""
    items = value.values() if isinstance(value, dict) else value
    most = MEMBERS if isinstance(value, dict) else ENTRIES if depth == 1 else ITEMS
    if depth and (len(value) > most or depth > 4 or (isinstance(value, dict) and "/" in "".join(value))):
        return False
    for item in items:
        if isinstance(item, str):
            if len(item) > STRING or not item.isascii():
                return False
        elif isinstance(item, (dict, list, tuple)) and not _is_short(item, depth + 1):
            return False
    return True


def write(path: str, event: "dict[str, object]") -> None:
    """Append an event to the log. A log that cannot be written never stops a container."""
    from hook.core.base.logfile import try_to_append  # not for an event that is left to the hook

    try_to_append(path, line(event), *SETTINGS)


_NOTES = ("truncated", "omitted")
"""Members that name what was left out of the other members."""

_DEPTH = 6
"""Maximum nesting of lists and objects; no event of reassert is nested deeper."""

_WARNING = 1024
"""Maximum number of bytes of `warning`, which quotes the node's policy file and no text of a pod."""

_SHARES = {"edits": 28 << 10, "denials": 10 << 10, "errors": 10 << 10}
_OTHERMEMBERS = 12 << 10
"""Bytes for each of these members, and for all other members together, in an event that does not fit into a line."""


def _truncated(event: "dict[str, Any]") -> str:
    """The event as a line of at most LINE bytes.

    A string of more than STRING bytes is cut there and ends in "…". `truncated` then has a JSON pointer (RFC 6901) to
    it, with the length and the hash of the whole string. `omitted` has pointers to lists and objects, with the number
    of items that were left out. An event that was parsed from such a line keeps its `truncated` and `omitted`.
    """
    measured = {note["at"]: (note["bytes"], note["sha256"]) for note in event.get("truncated", ())}
    excerpt = _Excerpt(STRING, measured)
    small = {key: excerpt.shorten(value, "/" + key) for key, value in event.items() if key not in _NOTES}
    text = encode(excerpt.with_notes(small, event))
    return text if len(text) < LINE else _within_shares(event, excerpt.measured)


class _Excerpt:
    """Shortens values, and records what it left out.

    `limit`: bytes that are kept of a string. `measured`: length and hash of cut strings, by their pointers, so that
    each is hashed once. `truncated`, `omitted`: as in the event.
    """

    __slots__ = ("limit", "measured", "omitted", "truncated")

    def __init__(self, limit: int, measured: "dict[str, tuple[int, str]]") -> None:
        self.limit = limit
        self.measured = measured
        self.truncated: list[object] = []
        self.omitted: dict[str, int] = {}

    def shorten(self, value: "Any", at: str) -> "Any":
        """The value as it is logged. `at`: the JSON pointer to it."""
        if isinstance(value, str):
            return value if len(value) * 4 <= self.limit else self._string(value, at)
        if not isinstance(value, (list, tuple, dict)):
            return value
        depth = at.count("/")
        most = (MEMBERS if isinstance(value, dict) else ENTRIES if depth == 1 else ITEMS) if depth < _DEPTH else 0
        if len(value) > most:
            self.omitted[at] = len(value) - most
        if isinstance(value, dict):
            return {key: self.shorten(value[key], f"{at}/{key}") for key in list(value)[:most]}
        return [self.shorten(item, f"{at}/{number}") for number, item in enumerate(value[:most])]

    def _string(self, text: str, at: str) -> str:
        kept = head(text, _WARNING if at == "/warning" else self.limit)
        if kept is text:
            return text
        if at not in self.measured:
            self.measured[at] = measure(text)
        size, digest = self.measured[at]
        self.truncated.append({"at": at, "bytes": size, "sha256": digest})
        return kept + "…"

    def fit(self, value: object, at: str, room: int) -> "tuple[object, int]":
        """The shortened value and its length as JSON. A length above `room` means that it does not fit.

        Strings are cut to 32 bytes where a value does not fit otherwise.
        """
        for limit in (STRING, 32):
            excerpt = _Excerpt(limit, self.measured)
            small = excerpt.shorten(value, at)
            size = len(encode([small, excerpt.truncated, excerpt.omitted]))
            if size <= room:
                self.truncated += excerpt.truncated
                self.omitted.update(excerpt.omitted)
                return small, size
        return None, room + 1

    def with_notes(self, small: "dict[str, object]", event: "dict[str, Any]") -> "dict[str, object]":
        """The shortened members, with `truncated` and `omitted`; what the event itself omitted is added up."""
        omitted = dict(event.get("omitted", {}))
        for at, count in self.omitted.items():
            omitted[at] = omitted.get(at, 0) + count
        if self.truncated:
            small["truncated"] = self.truncated
        if omitted:
            small["omitted"] = omitted
        return small


def _within_shares(event: "dict[str, Any]", measured: "dict[str, tuple[int, str]]") -> str:
    """The event within the limits of _SHARES: of a list the first entries that fit, and the other members that fit."""
    excerpt = _Excerpt(STRING, measured)
    small: dict[str, object] = {}
    rest = _OTHERMEMBERS
    for key, value in event.items():
        if key in _NOTES:
            continue
        if key in _SHARES and isinstance(value, list):
            entries: list[object] = []
            room = _SHARES[key]
            for number, item in enumerate(value[:ENTRIES]):
                entry, size = excerpt.fit(item, f"/{key}/{number}", room)
                if size > room:
                    break
                entries.append(entry)
                room -= size
            small[key] = entries
            if len(value) > len(entries):
                excerpt.omitted["/" + key] = len(value) - len(entries)
            continue
        member, size = excerpt.fit(value, "/" + key, rest)
        if size > rest:
            excerpt.omitted["/" + key] = 1
        else:
            small[key] = member
            rest -= size
    return encode(excerpt.with_notes(small, event))
