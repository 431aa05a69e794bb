"""What `status --all` shows beside checks.py: notes that change no exit status, so that `status` need not look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hook.core import events
from hook.core.base.errors import ReassertError, describe
from hook.core.base.finding import NOTE, OK, Finding
from hook.core.base.isotime import seconds_of
from hook.node import systemd
from hook.ops.audit.audit import Audit, Round
from hook.ops.events import select
from hook.ops.health.checks import AGENT, POLICY
from hook.ops.health.status import Status
from hook.resident.terminal import counted

ERRORS = "last errors"

_DAY = 86400.0
TAIL = 1 << 20
"""Bytes at the end of the event log that are looked at."""


@dataclass(frozen=True)
class Seen:
    """What is read once. `audit`: None if running containers could not be listed."""

    status: Status
    known: Round
    audit: Audit | None
    events: list[dict[str, Any]]


def checks(seen: Seen) -> list[Finding]:
    """Returns what every check finds. Never raises: a part that cannot be looked at is a finding too."""
    parts: list[tuple[str, Callable[[Seen], Iterator[Finding]]]] = [
        *((AGENT, _warm), (POLICY, _policy), ("clock", _clock), (ERRORS, _errors)),
    ]
    found: list[Finding] = []
    for part, check in parts:
        try:
            found += check(seen)
        except (ReassertError, OSError, ValueError) as error:
            found.append(Finding(NOTE, part, f"cannot be looked at: {describe(error)}"))
    return found


def _warm(seen: Seen) -> Iterator[Finding]:
    for (engine, handler), starts in seen.status.starts.items():
        if starts.cold.total() > starts.warm:
            text = f"most last starts of handler {handler} were cold: {starts.as_text()}"
            yield Finding(NOTE, AGENT, text, engine=engine)


def _policy(seen: Seen) -> Iterator[Finding]:
    policy = seen.known.policy
    if not policy.missing:
        count = counted(len(policy.candidates(None)), "rule")
        text = f"{policy.path}, {count}, mode {policy.mode}, failurePolicy {policy.failure_policy}"
        yield Finding(OK, POLICY, text, place=policy.path)


def _clock(_: Seen) -> Iterator[Finding]:
    if not systemd.available():
        yield Finding(OK, "clock", "whether it is synchronized is unknown without systemd")
        return
    shown = systemd.command(["timedatectl", "show", "--property=NTPSynchronized", "--value"], 10).stdout.strip()
    if shown == "no":
        yield Finding(NOTE, "clock", "it is not synchronized", "timedatectl set-ntp true")
    else:
        yield Finding(OK, "clock", "it is synchronized" if shown == "yes" else "whether it is synchronized is unknown")


def _errors(seen: Seen) -> Iterator[Finding]:
    recent = [event for event in seen.events if seconds_of(event.get("timestamp")) > time.time() - _DAY]
    for kind in (events.ERROR, events.DENIED):
        found = [event for event in recent if event.get("event") == kind and not event.get("probe")]
        if found:
            last = found[-1]
            reasons = [reason for key in ("errors", "denials") for reason in select.entries(last, key)]
            messages = [str(reason.get("message", "")) for reason in reasons if not select.entry_is_audited(reason)]
            text = f"{len(found)} {kind} in 24 h, the last at {last.get('timestamp')}: {(messages or ['?'])[0]}"
            yield Finding(NOTE, ERRORS, text, f"reassert events --event {kind} --since 24h")
    if not any(event.get("event") in (events.ERROR, events.DENIED) for event in recent):
        yield Finding(OK, ERRORS, "no container was refused in the last 24 h")
