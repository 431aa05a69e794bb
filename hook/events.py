"""The event log: one JSON event per container with edits, denials or errors. Part of the start path: builtins only.

The functions `*_event` make an event, in the same form for every adapter. `write` appends it to the log. An event has
a pod's text in full; `line` limits its length when the event is written.
"""

import posix
import time

from hook.base.jsontext import encode
from hook.base.system import timestamp
from hook.container.identity import Identity
from hook.plan import Plan
from hook.policy.model import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from hook.reserve.outcome import Edit, Reason

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
"""Arguments of hook.base.logfile.try_to_append, from the last policy that an event of this process names."""

EDITED, DENIED, ERROR = "container.edited", "container.denied", "container.error"
WOULD_DENY = "container.would-deny"
"""The container started because the mode is Audit; Enforce mode would have refused it."""
HELD = "policy.held"
"""No edit was needed; the policy file on disk is newer than the policy in force."""


class Clock:
    """The start time of an adapter, for an event's timestamp and duration."""

    def __init__(self) -> None:
        self.started = time.time_ns()
        self._monotonic = time.monotonic_ns()

    def milliseconds(self) -> float:
        """The time since the adapter started."""
        return round((time.monotonic_ns() - self._monotonic) / 1e6, 3)


def container_event(
    clock: Clock, adapter: str, container_id: str, identity: "Identity | None", policy: "Policy | None"
) -> "dict[str, object]":
    """The fields of every event about a container. The caller adds `event`, `level` and the outcome."""
    SETTINGS[:] = policy.event_log if policy else ()
    event: dict[str, object] = {
        "timestamp": timestamp(clock.started),
        "adapter": adapter,
        "id": container_id,
        "container": identity.as_dict() if identity else {},
        "mode": policy.mode if policy else "",
        "policy": {"path": policy.path, "sha256": policy.fingerprint} if policy else {},
        "durationMs": clock.milliseconds(),
    }
    if is_probe(adapter, container_id, identity):
        event["probe"] = True
    return event


def is_probe(adapter: str, container_id: str, identity: "Identity | None") -> bool:
    """Whether the container is a probe, which `node verify` or `node install` started as root."""
    try:
        if not posix.listdir(PROBES):
            return False
    except OSError:  # as almost always
        return False
    from hook.probes import is_marked

    return is_marked(PROBES, adapter, container_id, identity)


def plan_event(
    event: "dict[str, object]",
    plan: Plan,
    edits: "Sequence[Edit] | None" = None,
    denials: "Sequence[Reason]" = (),
    verified: str = "",
    draft: "dict[str, object] | None" = None,
) -> "dict[str, object]":
    """The event about a plan and what the adapter did about it.

    `edits`: the edits that the adapter made; all of the plan's unless given. `denials`: reasons to refuse the container
    that the adapter found, besides the plan's own. `verified`: where the result was checked. `draft`: the event of an
    earlier adapter, which this event completes.
    """
    reasons = [*plan.reasons(), *denials]
    refused = bool(reasons) and not plan.audit_only()
    made: list[Any] = list(plan.edits if edits is None else edits)
    if draft is not None:
        from hook.adapters.decision import complete

        made = complete(draft, event, made)
    kind = ERROR if plan.errors else EDITED if made else HELD
    if reasons:
        kind = DENIED if refused else WOULD_DENY
    event["event"] = kind
    event["level"] = "error" if refused else "info" if kind == EDITED else "warning"
    done = not refused and not plan.audit_only()
    event["applied"] = done and bool(verified)
    event["verified"] = verified if done else ""
    if done and made and not verified:
        event["asked"] = True
    applied = {"applied": event["applied"]}
    _add_list(event, "edits", made, lambda edit: {**(edit if isinstance(edit, dict) else edit.describe()), **applied})
    _add_list(event, "denials", [*plan.denials, *denials], lambda reason: reason.describe())
    _add_list(event, "errors", plan.errors, lambda reason: reason.describe())
    if plan.policy.warning:
        event["warning"] = plan.policy.warning
    return event


def _add_list(event: "dict[str, Any]", key: str, items: "Sequence[Any]", describe: "Callable[[Any], object]") -> None:
    """Add a list to an event: at most ENTRIES items, and in `omitted` the number of items that were left out."""
    event[key] = [describe(item) for item in items[:ENTRIES]]
    if len(items) > ENTRIES:
        omitted = event.setdefault("omitted", {})  # a draft has its own
        omitted["/" + key] = omitted.get("/" + key, 0) + len(items) - ENTRIES


def line(event: "dict[str, Any]") -> str:
    """The event as printable ASCII: with its newline, at most LINE bytes. What is longer is cut (hook.excerpt)."""
    if "truncated" not in event and "omitted" not in event and _is_short(event):
        text = encode(event)
        if len(text) < LINE:
            return text
    from hook import excerpt

    return excerpt.line(event)


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
    from hook.base.logfile import try_to_append  # not for an event that is left to the hook

    try_to_append(path, line(event), *SETTINGS)
