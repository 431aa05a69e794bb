"""An event as one line of the event log, however much a pod wrote into it. Part of the start path: builtins only."""

from hook.base.jsontext import encode
from hook.base.text import STRING, head, measure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE = 64 << 10
"""Bytes that a line has at most, with its newline."""

ENTRIES = 64
"""Edits that an event has at most; denials and errors as well."""

ITEMS = 8
"""Items of a list inside an edit: values that a name had before, mounts that were there, mount options."""

_NOTES = ("truncated", "omitted")
"""Members that say what was left out of the others."""

_MEMBERS = 16
"""Members of an object; more than any of ours has."""

_DEPTH = 6
"""Of lists and objects; deeper than any of ours."""

_WARNING = 1024
"""Bytes of `warning`, which quotes the node's policy file and nothing of a pod's."""

_SHARES = {"edits": 28 << 10, "denials": 10 << 10, "errors": 10 << 10}
_REST = 12 << 10
"""Bytes of a line that would be too long: for each of these members, and for all others together."""


def line(event: "dict[str, Any]") -> str:
    """The event as printable ASCII; with the newline that follows, at most LINE bytes.

    A longer string becomes its first STRING bytes and "…", and `truncated` has a JSON pointer (RFC 6901) to it, with
    the length and the hash of the whole. `omitted` has pointers to lists and objects, with the number of items that
    are left out. An event that was a line before brings both along.
    """
    measured = {note["at"]: (note["bytes"], note["sha256"]) for note in event.get("truncated", ())}
    excerpt = _Excerpt(STRING, measured)
    small = {key: excerpt.of(value, "/" + key) for key, value in event.items() if key not in _NOTES}
    text = encode(excerpt.with_notes(small, event))
    return text if len(text) < LINE else _within_shares(event, excerpt.measured)


class _Excerpt:
    """Makes a value small, and knows what was left out of it.

    `limit`: bytes that are kept of a string. `measured`: length and hash of strings by their pointers, found once.
    `truncated`, `omitted`: as in the event.
    """

    __slots__ = ("limit", "measured", "omitted", "truncated")

    def __init__(self, limit: int, measured: "dict[str, tuple[int, str]]") -> None:
        self.limit = limit
        self.measured = measured
        self.truncated: list[object] = []
        self.omitted: dict[str, int] = {}

    def of(self, value: "Any", at: str) -> "Any":
        """The value as it is to be logged; `at` is the JSON pointer to it."""
        if isinstance(value, str):
            return value if len(value) * 4 <= self.limit else self._string(value, at)
        if not isinstance(value, (list, tuple, dict)):
            return value
        depth = at.count("/")
        most = (_MEMBERS if isinstance(value, dict) else ENTRIES if depth == 1 else ITEMS) if depth < _DEPTH else 0
        if len(value) > most:
            self.omitted[at] = len(value) - most
        if isinstance(value, dict):
            return {key: self.of(value[key], f"{at}/{key}") for key in list(value)[:most]}
        return [self.of(item, f"{at}/{number}") for number, item in enumerate(value[:most])]

    def _string(self, text: str, at: str) -> str:
        kept = head(text, _WARNING if at == "/warning" else self.limit)
        if kept is text:
            return text
        if at not in self.measured:
            self.measured[at] = measure(text)
        size, digest = self.measured[at]
        self.truncated.append({"at": at, "bytes": size, "sha256": digest})
        return kept + "…"

    def fitted(self, value: object, at: str, room: int) -> "tuple[object, int]":
        """The value, its strings cut shorter if need be, and its length in JSON; above `room` if it is too long."""
        for limit in (STRING, 32):
            excerpt = _Excerpt(limit, self.measured)
            small = excerpt.of(value, at)
            size = len(encode([small, excerpt.truncated, excerpt.omitted]))
            if size <= room:
                self.truncated += excerpt.truncated
                self.omitted.update(excerpt.omitted)
                return small, size
        return None, room + 1

    def with_notes(self, small: "dict[str, object]", event: "dict[str, Any]") -> "dict[str, object]":
        """The members of the event with what was left out of it, here and by whoever made it."""
        omitted = dict(event.get("omitted", {}))
        for at, count in self.omitted.items():
            omitted[at] = omitted.get(at, 0) + count
        if self.truncated:
            small["truncated"] = self.truncated
        if omitted:
            small["omitted"] = omitted
        return small


def _within_shares(event: "dict[str, Any]", measured: "dict[str, tuple[int, str]]") -> str:
    """Of each list as many entries as fit into its share of the line; of the other members, those that fit."""
    excerpt = _Excerpt(STRING, measured)
    small: dict[str, object] = {}
    rest = _REST
    for key, value in event.items():
        if key in _NOTES:
            continue
        if key in _SHARES and isinstance(value, list):
            entries: list[object] = []
            room = _SHARES[key]
            for number, item in enumerate(value[:ENTRIES]):
                entry, size = excerpt.fitted(item, f"/{key}/{number}", room)
                if size > room:
                    break
                entries.append(entry)
                room -= size
            small[key] = entries
            if len(value) > len(entries):
                excerpt.omitted["/" + key] = len(value) - len(entries)
            continue
        member, size = excerpt.fitted(value, "/" + key, rest)
        if size > rest:
            excerpt.omitted["/" + key] = 1
        else:
            small[key] = member
            rest -= size
    return encode(excerpt.with_notes(small, event))
