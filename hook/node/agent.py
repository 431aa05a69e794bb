"""The resident agent as `reassert status` shows it, and which of the last container starts it answered."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.finding import ERROR, Finding
from hook.core.base.system import timestamp
from hook.node import systemd
from hook.node.artifacts.dispatchers import WHERE
from hook.node.change.program import front_in_use, path_in_use, version_of
from hook.node.services import SERVICE, SOCKET, ask, why_cold

_TAIL = 1 << 18
"""Bytes at the end of the event log in which the last starts are looked for."""

_LAST = 20
"""Starts of a handler that are counted."""

_COUNTS = ("seconds", "warm", "cold", "dropped", "working")

_START_ADAPTERS = ("runtime", "hook")


@dataclass(frozen=True)
class Agent:
    """The agent of this node. `cold`: why there is none, so that every start is cold; "" where there is one.

    `socket`, `service`: their state, as systemd says it. `version`, `installed`: of the running program and of the one
    that engines call. `is_current`: whether these are the same files. `memory`: bytes, resident. `charged`: bytes of
    its memory cgroup, with files on tmpfs, and from how many the kernel slows it down; 0 if not known. `silence`: why
    it does not answer a request for its status. `plugin`: whether a runtime is connected to its NRI plugin; None
    without one. `last`: its last starts without an event (hook.agent.memory). `counts`: of what it answered since it
    runs, as in its event agent.ended.
    """

    cold: str
    socket: str = ""
    service: str = ""
    version: str = ""
    installed: str = ""
    is_current: bool = False
    memory: int = 0
    charged: tuple[int, int] = (0, 0)
    silence: str = ""
    plugin: bool | None = None
    last: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """Yields what is wrong with it. That a unit does not run is said of the engine that wants it."""
        if self.cold or self.service != "active":
            return
        restart = f"systemctl restart {SERVICE}"
        if not self.is_current:
            version = self.version or "of an unknown version"
            text = f"the agent is {version}, and not the installed program ({self.installed}), so starts may be cold"
            yield Finding(ERROR, "agent", text, restart)
        if self.silence:
            yield Finding(ERROR, "agent", f"the agent does not answer, so starts are cold: {self.silence}", restart)
        if self.charged[0] >= self.charged[1] > 0:
            has = f"the agent's cgroup has {self.charged[0] >> 20} MiB, and the kernel slows it down from"
            text = f"{has} {self.charged[1] >> 20} MiB on (memory.high), so starts may be cold"
            yield Finding(ERROR, "agent", text, restart)
        if self.plugin is False:
            yield Finding(ERROR, "agent", "no runtime is connected to the agent's NRI plugin")

    def as_text(self) -> str:
        """Returns what `status` shows of it."""
        if self.cold:
            return f"none, every container start is cold: {self.cold}"
        running = f", {self.version}, {self.memory / (1 << 20):.1f} MiB" if self.memory else ""
        if self.charged[1]:
            running += f" (cgroup {self.charged[0] >> 20} of {self.charged[1] >> 20} MiB)"
        plugin = {None: "", True: ", NRI plugin connected", False: ", NRI plugin not connected"}[self.plugin]
        return f"socket {self.socket}, service {self.service}{running}{plugin}"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        if self.cold:
            return {"cold": self.cold}
        return {
            "socket": self.socket,
            "service": self.service,
            "version": self.version,
            "installedVersion": self.installed,
            "current": self.is_current,
            "memoryBytes": self.memory,
            "cgroupBytes": self.charged[0],
            "cgroupHighBytes": self.charged[1],
            "answers": not self.silence,
            "answered": self.counts or None,
            "nriConnected": self.plugin,
        }


def look(wanted: bool) -> Agent:
    """The agent as it is now. `wanted`: what the last install was told. Raises NodeError."""
    cold = why_cold(wanted, front_in_use())
    if cold:
        return Agent(cold)
    socket, service = systemd.state(SOCKET), systemd.state(SERVICE)
    pid = systemd.main_pid(SERVICE)
    program = path_in_use()
    installed = _named(program)
    try:
        running = os.readlink(f"/proc/{pid}/exe")
        memory = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return Agent("", socket, service, installed=installed)
    is_current = running == os.path.realpath(program)
    version = installed if is_current else _named(running)
    size = int(memory[1]) << 10 if memory else 0
    charged = _charged(pid)
    silence, plugin, last, counts = "", None, [], {}
    try:
        status = ask(WHERE["socket"])
        plugin, last = status.get("nri"), status.get("last", [])  # an agent of another version may not report it
        counts = {name: status[name] for name in _COUNTS if name in status}
    except ReassertError as error:
        silence = str(error)
    return Agent("", socket, service, version, installed, is_current, size, charged, silence, plugin, last, counts)


def _charged(pid: int) -> tuple[int, int]:
    """memory.current and memory.high of a process's cgroup (cgroup v2); 0 for what is not known or has no limit."""
    try:
        cgroup = Path(f"/proc/{pid}/cgroup").read_text().partition("0::")[2].partition("\n")[0]
        read = [
            Path(f"/sys/fs/cgroup{cgroup}/{name}").read_text().strip() for name in ("memory.current", "memory.high")
        ]
    except OSError:
        return 0, 0
    current, high = [int(text) if text.isdigit() else 0 for text in read]
    return current, high


def _named(program: str) -> str:
    """Returns `reassert VERSION`, "" where the program was replaced and removed since."""
    version = version_of(program)
    return version and f"reassert {version}"


@dataclass
class Starts:
    """The last starts of a handler's containers, or execs. `cold`: their number by reason, "" for none."""

    warm: int = 0
    cold: Counter[str] = field(default_factory=Counter)

    def count(self) -> int:
        """All of them."""
        return self.warm + self.cold.total()

    def as_text(self) -> str:
        """For a cell of a table."""
        reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(self.cold.items()) if reason)
        cold = f"{self.cold.total()} cold" + (f" ({reasons})" if reasons else "")
        parts = ([f"{self.warm} warm"] if self.warm else []) + ([cold] if self.cold else [])
        return ", ".join(parts) or "-"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {"warm": self.warm, "cold": dict(sorted(self.cold.items()))}


def last_starts(path: str = events.EVENTS, most: int = _TAIL) -> list[dict[str, Any]]:
    """The events of container starts in the last `most` bytes of the log, newest first, that were warm or cold."""
    found = [event for event in tail(path, most) if event.get("adapter") in _START_ADAPTERS]
    return [event for event in reversed(found) if event.get("start") in ("warm", "cold")]


def tail(path: str, size: int) -> list[dict[str, Any]]:
    """The events in the last `size` bytes, oldest first. Other lines than JSON objects are skipped."""
    try:
        with open(path, "rb", opener=_at_once) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - size))
            lines = log.read(size).splitlines()
    except OSError:
        return []
    return [event for event in map(_event, lines) if event]


def _at_once(path: str, flags: int) -> int:
    """Waits for no writer where the log is a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:  # the first one may have been cut
        return {}
    return event if isinstance(event, dict) else {}


def with_unchanged(found: list[dict[str, Any]], last: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events of starts and the starts without one (`Agent.last`), newest first."""
    both = [*found, *without_event(last, False)]
    return sorted(both, key=lambda event: str(event.get("timestamp", "")), reverse=True)


def without_event(last: list[dict[str, Any]], execs: bool) -> list[dict[str, Any]]:
    """The starts without an event, or the execs, newest first, with the members of events and the real runtime."""
    found = [
        {**start, "timestamp": timestamp(int(start["time"] * 1e9)), "runtime": of["runtime"]}
        for of in last
        for start in of["starts"]
        if of["exec"] == execs
    ]
    return sorted(found, key=lambda start: str(start["timestamp"]), reverse=True)


def starts_of(runtime: str, found: Iterable[dict[str, Any]], called: Callable[[str], str]) -> Starts:
    """The last starts under a real runtime. `called`: the runtime that a container's engine calls, "" if unknown."""
    counted = Starts()
    for event in found:
        if (event.get("runtime") or called(str(event.get("id", "")))) != runtime:
            continue
        if event["start"] == "warm":
            counted.warm += 1
        else:
            counted.cold[str(event.get("cold", ""))] += 1
        if counted.count() == _LAST:
            break
    return counted
