"""Cut an event that may be too long for one line of the event log. Most events are not (hook.core.events.line).

Part of the start path: builtins only.
"""

from hook.core.base.jsontext import encode
from hook.core.base.text import head, measure
from hook.core.events import ENTRIES, ITEMS, LINE, MEMBERS, STRING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NOTES = ("truncated", "omitted")
"""Members that name what was left out of the other members."""

_DEPTH = 6
"""Maximum nesting of lists and objects; no event of reassert is nested deeper."""

_WARNING = 1024
"""Maximum number of bytes of `warning`, which quotes the node's policy file and no text of a pod."""

_SHARES = {"edits": 28 << 10, "denials": 10 << 10, "errors": 10 << 10}
_OTHERMEMBERS = 12 << 10
"""Bytes for each of these members, and for all other members together, in an event that does not fit into a line."""


def line(event: "dict[str, Any]") -> str:
    """The event as printable ASCII: with its newline, at most LINE bytes.

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
