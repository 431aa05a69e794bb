"""One JSON event per container with edits, denials or errors. Part of the start path: builtins only.

The functions `*_event` make the record, the same for every adapter; `write` appends it to the node's event log. What a
pod wrote is in the record as it is; what is logged of it is cut by hook/base/excerpt.py, whoever made the record.
"""

import posix
import time

from hook.base import logfile
from hook.base.errors import ReassertError
from hook.base.excerpt import ENTRIES, line
from hook.base.system import timestamp, trusted
from hook.container.identity import Identity
from hook.plan import Plan
from hook.policy.model import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from hook.reserve.outcome import Edit, Reason

EVENTS = "/var/log/reassert/events.jsonl"
"""Where events go unless the command line says otherwise."""

PROBES = "/run/reassert/probes"
"""Root's own directory. `node verify` and `node install` have a file here for each of their probes that runs now, named
by the container's id; for CRI, by the pod's UID too."""

EDITED, DENIED, ERROR = "container.edited", "container.denied", "container.error"
WOULD_DENY = "container.would-deny"
"""The container started because the mode is Audit; Enforce mode would have refused it."""
HELD = "policy.held"
"""No edit was needed; the policy file on disk is newer than the policy in force."""

DRIFTED = "container.drifted"
"""A running container is not what the policy wants; only a resident adapter sees that, and it changes nothing."""


class Clock:
    """When an adapter began, for an event's time and duration."""

    __slots__ = ("_monotonic", "started")

    def __init__(self) -> None:
        self.started = time.time_ns()
        self._monotonic = time.monotonic_ns()

    def milliseconds(self) -> float:
        """Since the adapter began."""
        return round((time.monotonic_ns() - self._monotonic) / 1e6, 3)


def container_event(
    clock: Clock, adapter: str, container_id: str, who: "Identity | None", policy: "Policy | None"
) -> "dict[str, object]":
    """The fields that every event about a container has; the caller adds `event`, `level` and what happened."""
    event: dict[str, object] = {
        "timestamp": timestamp(clock.started),
        "adapter": adapter,
        "id": container_id,
        "container": who.as_dict() if who else {},
        "mode": policy.mode if policy else "",
        "policy": {"path": policy.path, "sha256": policy.fingerprint} if policy else {},
        "durationMs": clock.milliseconds(),
    }
    if is_probe(adapter, container_id, who):
        event["probe"] = True
    return event


def is_probe(adapter: str, container_id: str, who: "Identity | None") -> bool:
    """Whether root's own `node verify` or `node install` started this container to look at it.

    Nobody else can have a container marked: engines choose ids by themselves and at random, and only root writes to
    PROBES. The UID counts where a runtime says it over NRI. In config.json it may be a docker user's annotation.
    """
    try:
        marks = posix.listdir(PROBES)  # compared with, so that no id becomes a path
        if not marks:  # as almost always
            return False
        trusted(PROBES)
    except (OSError, ReassertError):
        return False
    return container_id in marks or (adapter == "nri" and who is not None and who.uid in marks)


def plan_event(
    event: "dict[str, object]",
    plan: Plan,
    edits: "Sequence[Edit] | None" = None,
    denials: "Sequence[Reason]" = (),
    verified: str = "",
    draft: "dict[str, object] | None" = None,
) -> "dict[str, object]":
    """The record of a decision that had something to say.

    `edits`, `denials`: what the adapter did, and why the container must not start, beyond the plan's own reasons.
    `verified`: where the result was looked at. `draft`: the record of the adapter before this one, which it completes.
    """
    reasons = [*plan.reasons(), *denials]
    refused = bool(reasons) and not plan.audit_only()
    made: list[Any] = list(plan.edits if edits is None else edits)
    if draft is not None:
        earlier = draft.get("edits")
        told = [edit for edit in earlier if isinstance(edit, dict)] if isinstance(earlier, list) else []
        names = {(edit.get("kind"), edit.get("name")) for edit in told}
        made = told + [edit for edit in made if (edit.kind, edit.name) not in names]
        event.update((key, draft[key]) for key in ("timestamp", "adapter", "truncated", "omitted") if key in draft)
    if refused:
        kind = DENIED
    elif reasons:
        kind = WOULD_DENY
    elif plan.errors:
        kind = ERROR
    else:
        kind = EDITED if made else HELD
    event["event"] = kind
    event["level"] = "error" if refused else "info" if kind == EDITED else "warning"
    done = not refused and not plan.audit_only()
    event["applied"] = done and bool(verified)
    event["verified"] = verified if done else ""
    if done and made and not verified:
        event["asked"] = True
    _list(event, "edits", made, lambda edit: edit if isinstance(edit, dict) else edit.describe())
    _list(event, "denials", [*plan.denials, *denials], lambda reason: reason.describe())
    _list(event, "errors", plan.errors, lambda reason: reason.describe())
    if plan.policy.warning:
        event["warning"] = plan.policy.warning
    return event


def error_event(
    event: "dict[str, object]", message: str, starts: bool, would_deny: bool = False
) -> "dict[str, object]":
    """The record of a failure of reassert itself. `would_deny`: it starts only because the mode is Audit."""
    event["event"] = WOULD_DENY if would_deny else ERROR
    event["level"] = "warning" if starts else "error"
    event["applied"] = False
    event["errors"] = [{"rule": "", "message": message}]
    return event


def denial_event(event: "dict[str, object]", message: str, starts: bool) -> "dict[str, object]":
    """The record of a container that no policy lets through. `starts`: it does, because the mode is Audit."""
    event["event"] = WOULD_DENY if starts else DENIED
    event["level"] = "warning" if starts else "error"
    event["applied"] = False
    event["denials"] = [{"rule": "", "message": message}]
    return event


def _list(event: "dict[str, Any]", key: str, things: "Sequence[Any]", described: "Callable[[Any], object]") -> None:
    """What an event lists; of more than ENTRIES things the first ones and, in `omitted`, how many are left out."""
    event[key] = [described(thing) for thing in things[:ENTRIES]]
    if len(things) > ENTRIES:
        event.setdefault("omitted", {})["/" + key] = len(things) - ENTRIES


def write(path: str, event: "dict[str, object]") -> None:
    """Append an event."""
    append(path, line(event))


def append(path: str, text: str) -> None:
    """Append an event's `line`. A log that cannot be written never stops a container: the decision has been taken."""
    try:
        logfile.append(path, text.encode("ascii"))
    except OSError:
        pass
