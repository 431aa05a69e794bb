"""Send an event to systemd's journal, in its native protocol.

No call blocks: if the journal takes no more, the event is only in the event log's file.
"""

from __future__ import annotations

from _socket import AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_DGRAM, socket
from typing import Any

from hook.core.base.jsontext import parse

JOURNAL_SOCKET = "/run/systemd/journal/socket"
"""journald's socket for its native protocol (systemd, docs/JOURNAL_NATIVE_PROTOCOL.md)."""

_PRIORITIES = {"error": "3", "warning": "4", "info": "6"}

_NAMES = ("namespace", "pod", "container", "image")
_PLAIN = ("event", "adapter", "id", "mode", "start", "cold")
"""Members of an event that are fields of their own: REASSERT_EVENT and so on."""

_REASONS = 3
"""Reasons or edits that the MESSAGE names."""


def send(text: str) -> None:
    """Send a line of the event log. `text`: one event as JSON. Raises OSError; Malformed for another text."""
    data = b"".join([_field(name, value) for name, value in fields(text)])
    sending = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC)
    try:
        sending.sendto(data, MSG_DONTWAIT | MSG_NOSIGNAL, JOURNAL_SOCKET)
    finally:
        sending.close()


def fields(text: str) -> list[tuple[str, str]]:
    """The fields of the journal's entry. A name may occur several times, as REASSERT_RULE does."""
    event: Any = parse(text)
    container = event.get("container") or {}
    rules: list[str] = []
    messages: list[str] = []
    for key in ("denials", "errors", "edits"):
        for entry in event.get(key) or ():
            if entry["rule"] and entry["rule"] not in rules:
                rules.append(entry["rule"])
            messages.append(str(entry.get("message") or f"{entry.get('kind')} {entry.get('name')}"))
    if len(messages) > _REASONS:
        messages[_REASONS:] = [f"and {len(messages) - _REASONS} more"]
    identity = "/".join([container[name] for name in _NAMES[:3] if name in container]) or event.get("id", "")
    parts = [event["event"], identity, "; ".join(messages) or event.get("message") or event.get("warning", "")]
    entry_fields = [
        ("MESSAGE", " ".join([part for part in parts if part])),
        ("PRIORITY", _PRIORITIES.get(event.get("level"), "6")),
        ("SYSLOG_IDENTIFIER", "reassert"),
        *[("REASSERT_" + name.upper(), str(event[name])) for name in _PLAIN if event.get(name)],
        *[("REASSERT_" + name.upper(), container[name]) for name in _NAMES if name in container],
        *[("REASSERT_RULE", rule) for rule in rules],
    ]
    if event.get("probe"):
        entry_fields.append(("REASSERT_PROBE", "1"))
    return [*entry_fields, ("REASSERT_JSON", text)]


def _field(name: str, value: str) -> bytes:
    """A value has its length in front, so that a newline in a pod's text cannot begin another field."""
    data = value.encode("utf-8", "replace")
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
