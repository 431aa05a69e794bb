"""One JSON event per container with edits, denials or errors. Part of the start path: builtins only.

The functions `*_event` make the record, the same for every adapter; `write` appends it to the node's event log.
"""

import posix
import time

from hook.base.errors import ReassertError
from hook.base.jsontext import encode
from hook.base.system import append_line, timestamp, trusted
from hook.container.identity import Identity
from hook.plan import Plan
from hook.policy.model import Policy

EVENTS = "/var/log/reassert/events.jsonl"
"""Where events go unless the command line says otherwise."""

PROBES = "/run/reassert/probes"
"""Root's own directory. `node verify` and `node install` have a file here for each of their probes that runs now, named
by the container's id; for CRI, by the pod's UID too."""

EDITED, DENIED, ERROR = "container.edited", "container.denied", "container.error"
HELD = "policy.held"
"""A container with nothing to say for itself started while an edit of the policy was held back."""

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
        trusted(PROBES)
        marks = posix.listdir(PROBES)  # compared with, so that no id becomes a path
    except (OSError, ReassertError):
        return False
    return container_id in marks or (adapter == "nri" and who is not None and who.uid in marks)


def plan_event(event: "dict[str, object]", plan: Plan) -> "dict[str, object]":
    """The record of a decision that had something to say."""
    refused = bool(plan.refusal())
    if refused or plan.denials:
        kind = DENIED
    elif plan.errors:
        kind = ERROR
    else:
        kind = EDITED if plan.edits else HELD
    event["event"] = kind
    event["level"] = "error" if refused else "info" if kind == EDITED else "warning"
    event["applied"] = not refused and not plan.audit_only()
    event["edits"] = [edit.describe() for edit in plan.edits]
    event["denials"] = [{"rule": denial.rule, "message": denial.message} for denial in plan.denials]
    event["errors"] = [{"rule": error.rule, "message": error.message} for error in plan.errors]
    if plan.policy.warning:
        event["warning"] = plan.policy.warning
    return event


def error_event(event: "dict[str, object]", message: str, let_through: bool) -> "dict[str, object]":
    """The record of a failure of reassert itself."""
    event["event"] = ERROR
    event["level"] = "warning" if let_through else "error"
    event["applied"] = False
    event["errors"] = [{"rule": "", "message": message}]
    return event


def denial_event(event: "dict[str, object]", rule: str, message: str) -> "dict[str, object]":
    """The record of a refusal that was decided while acting."""
    event["event"] = DENIED
    event["level"] = "error"
    event["applied"] = False
    event["denials"] = [{"rule": rule, "message": message}]
    return event


def write(path: str, event: "dict[str, object]") -> None:
    """Append an event."""
    append(path, encode(event))


def append(path: str, line: str) -> None:
    """Append an event's JSON. A log that cannot be written never stops a container: the decision has been taken."""
    try:
        append_line(path, line.encode("ascii"))
    except OSError:
        pass
