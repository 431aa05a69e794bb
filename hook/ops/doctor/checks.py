"""What `reassert doctor` looks at: each part is ok, a warning or bad, with the command that fixes it.

`node status` (hook.node.status) says what is wired and what is wrong with it; that is not computed again here.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hook.core import events
from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import trusted
from hook.core.container.allocation import LIMIT, checkpoint_path
from hook.core.policy import store
from hook.core.policy.model import AUDIT
from hook.entry.dispatcher import FRONT
from hook.node import systemd
from hook.node.artifacts import dispatchers
from hook.node.change.program import called
from hook.node.status import NOT_WIRED, Status
from hook.node.terminal import counted
from hook.ops.audit.audit import DRIFTED, UNKNOWN, Audit, Round
from hook.ops.events import select
from hook.ops.events.reader import seconds_of

OK, WARNING, BAD = "ok", "warning", "bad"
ERRORS = "last errors"

_LOW, _BYTES = 0.05, 64 << 20
"""A file system with a smaller share of free space, or fewer free bytes, is a warning."""

_DAY = 86400.0
TAIL = 1 << 20
"""Bytes at the end of the event log that are looked at."""

_COMMAND = re.compile(r"(?:`|\bRun: )(reassert [^`]+)(?:`|$)|((?:systemctl|sudo reassert) \S+ \S+|ch(?:own|mod) [^)]+)")


@dataclass(frozen=True)
class Check:
    """One line. `remedy`: the command that fixes it, or that shows more; "" if nothing has to be done."""

    part: str
    state: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class NodeState:
    """What is read once. `status`: of `node status`. `audit`: None if running containers could not be listed."""

    status: Status
    known: Round
    audit: Audit | None
    events: list[dict[str, Any]]


def checks(seen: NodeState) -> list[Check]:
    """Every line of the page, in its order. Never raises: a part that cannot be looked at is a line too."""
    parts: list[tuple[str, Callable[[NodeState], Iterator[Check]]]] = [
        *(("engines", _engines), ("adapters", _adapters), ("warm path", _warm), ("policy", _policy)),
        *(("permissions", _permissions), ("containers", _containers), ("checkpoint", _checkpoint)),
        *(("clock", _clock), ("disk", _disk), (ERRORS, _errors)),
    ]
    found: list[Check] = []
    for part, check in parts:
        try:
            found += check(seen)
        except (ReassertError, OSError, ValueError) as error:
            found.append(Check(part, WARNING, f"cannot be looked at: {describe(error)}"))
    return found


def remedy(text: str) -> str:
    """The command that a problem or a hint of `node status` names, or ""."""
    match = _COMMAND.search(text)
    return (match[1] or match[2]).rstrip(",;.:") if match else ""


def _engines(seen: NodeState) -> Iterator[Check]:
    by_engine = {engine.name: engine for engine, _ in seen.status.rows}
    for engine in by_engine.values():
        running = engine.running()
        wired = engine.name in seen.status.record.engines()
        text = f"{engine.title} {'runs' if running else 'does not run'}{'' if wired else ', and is not wired'}"
        if running or not wired:
            yield Check("engines", OK, text)
        else:
            yield Check("engines", BAD, text, f"systemctl start {engine.service}" if engine.service else "")
    if not by_engine:
        yield Check("engines", BAD, "no engine is found on this node")
    held = seen.known.policy.warning
    for problem in seen.status.problems:
        if not held or held not in problem:  # a line of the part "policy"
            yield Check("engines", BAD, problem, remedy(problem))
    for hint in seen.status.hints:
        yield Check("engines", WARNING, hint, remedy(hint))


def _adapters(seen: NodeState) -> Iterator[Check]:
    if seen.status.exit_status == NOT_WIRED:
        yield Check("adapters", BAD, "reassert is not wired into any engine", "reassert node install")
        return
    wired = seen.status.record.engines()
    for engine, handler in seen.status.rows:
        if engine.name not in wired:
            continue
        name = f"{engine.name} handler {handler.name}"
        if handler.wired:
            yield Check("adapters", OK, f"{name}: {', '.join(handler.wired)}")
        else:
            note = f" ({handler.note})" if handler.note else ""
            command = "reassert node install --default" if handler.runtime else ""
            yield Check("adapters", WARNING, f"{name} bypasses reassert{note}", command)


def _warm(seen: NodeState) -> Iterator[Check]:
    agent = seen.status.agent
    if agent is None:
        yield Check("warm path", OK, "no adapter is wired that uses the agent")
    elif agent.cold:
        command = "reassert node install --agent" if agent.cold == "--no-agent" else ""
        yield Check("warm path", WARNING, f"every container start is cold: {agent.cold}", command)
    elif agent.service != "active" and agent.socket != "active":
        text = f"the agent does not run: socket {agent.socket}, service {agent.service}"
        yield Check("warm path", WARNING, text, "systemctl restart reassert-agent.socket reassert-agent.service")
    else:
        yield Check("warm path", OK, agent.as_text())
    for (engine, handler), starts in seen.status.starts.items():
        if starts.cold.total() > starts.warm:
            text = f"most last starts of {engine} handler {handler} were cold: {starts.as_text()}"
            yield Check("warm path", WARNING, text, "reassert agent --status")


def _policy(seen: NodeState) -> Iterator[Check]:
    policy = seen.known.policy
    if policy.missing:
        wired = seen.status.exit_status != NOT_WIRED
        command = "reassert policy check" if wired else "reassert node install"
        yield Check("policy", BAD, f"there is none: {policy.missing}", command)
        return
    if policy.warning:
        yield Check("policy", BAD, policy.warning, f"reassert policy check {policy.path}")
    count = counted(len(policy.candidates(None)), "rule")
    text = f"{policy.path}, {count}, mode {policy.mode}, failurePolicy {policy.failure_policy}"
    if policy.mode == AUDIT:
        yield Check("policy", WARNING, f"{text}: it changes no container", "set mode: Enforce in " + policy.path)
    else:
        yield Check("policy", OK, text)


def _permissions(seen: NodeState) -> Iterator[Check]:
    program = called(seen.status.record)
    front = os.path.join(os.path.dirname(program), FRONT) if program else ""
    for path in filter(None, (store.SOURCE, store.STORE, dispatchers.DIRECTORY, program, front)):
        try:
            trusted(path)
        except FileNotFoundError:
            continue
        except (ReassertError, OSError) as error:
            yield Check("permissions", BAD, describe(error), remedy(describe(error)))
        else:
            yield Check("permissions", OK, f"only root can write to {path}")


def _containers(seen: NodeState) -> Iterator[Check]:
    if seen.audit is None:
        yield Check("containers", WARNING, "running containers cannot be listed", "sudo reassert audit")
        return
    counts = seen.audit.counts()
    numbers = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none runs"
    state = WARNING if counts[DRIFTED] or counts[UNKNOWN] else OK
    yield Check("containers", state, numbers, "reassert audit" if state == WARNING else "")


def _checkpoint(seen: NodeState) -> Iterator[Check]:
    policy = seen.known.policy
    if policy.missing or not any(rule.uses_allocations for rule in policy.candidates(None)):
        yield Check("checkpoint", OK, "no rule needs kubelet's device checkpoint")
        return
    path = checkpoint_path(policy.kubelet_root)
    try:
        with Path(path).open("rb") as file:
            entries = json.loads(file.read(LIMIT))["Data"]["PodDeviceEntries"] or []
        yield Check("checkpoint", OK, f"{path} has {counted(len(entries), 'allocation')}")
    except FileNotFoundError:
        text = f"{path} is missing: no device plugin has allocated anything, or kubelet has another root directory"
        yield Check("checkpoint", WARNING, text, "ls -l " + os.path.dirname(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{path} cannot be read: {describe(error) if isinstance(error, OSError) else 'it has another form'}"
        yield Check("checkpoint", BAD, text, "systemctl restart kubelet")


def _clock(_: NodeState) -> Iterator[Check]:
    if not systemd.available():
        yield Check("clock", OK, "whether it is synchronized is unknown without systemd")
        return
    shown = systemd.command(["timedatectl", "show", "--property=NTPSynchronized", "--value"], 10).stdout.strip()
    if shown == "no":
        yield Check("clock", WARNING, "it is not synchronized", "timedatectl set-ntp true")
    else:
        yield Check("clock", OK, "it is synchronized" if shown == "yes" else "whether it is synchronized is unknown")


def _disk(_: NodeState) -> Iterator[Check]:
    places: dict[int, str] = {}
    for wanted in (os.path.dirname(events.EVENTS), store.STORE, "/etc/reassert", "/run"):
        path = wanted
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        places.setdefault(os.stat(path).st_dev, path)
    for path in places.values():
        room = os.statvfs(path)
        free = room.f_bavail * room.f_frsize
        part = room.f_bavail / room.f_blocks if room.f_blocks else 1.0
        files = room.f_favail / room.f_files if room.f_files else 1.0
        text = f"{path}: {free >> 20} MiB free ({part:.0%}), {files:.0%} of its files free"
        state = BAD if not free or not files else WARNING if part < _LOW or files < _LOW or free < _BYTES else OK
        yield Check("disk", state, text, "" if state == OK else f"du -xh --max-depth=2 {path} | sort -h | tail")


def _errors(seen: NodeState) -> Iterator[Check]:
    recent = [event for event in seen.events if seconds_of(event.get("timestamp")) > time.time() - _DAY]
    for kind, state in ((events.ERROR, BAD), (events.DENIED, WARNING)):
        found = [event for event in recent if event.get("event") == kind and not event.get("probe")]
        if found:
            last = found[-1]
            reasons = [reason for key in ("errors", "denials") for reason in select.entries(last, key)]
            messages = [str(reason.get("message", "")) for reason in reasons if not select.entry_is_audited(reason)]
            text = f"{len(found)} {kind} in 24 h, the last at {last.get('timestamp')}: {(messages or ['?'])[0]}"
            yield Check(ERRORS, state, text, f"reassert events --event {kind} --since 24h")
    if not any(event.get("event") in (events.ERROR, events.DENIED) for event in recent):
        yield Check(ERRORS, OK, "no container was refused in the last 24 h")
