"""A container that is started only to be looked at: what every engine's way of doing so has in common.

Everything is read from outside, in /proc: the container needs no program of ours, no shell and no cat.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hook import events
from hook.base.system import make_directory
from hook.container.identity import Identity
from hook.node.errors import NodeError

MARKER = "REASSERT_PROBE"
"""An env name that every probe gets, with a value of its own: whatever process has it is past the runtime's work."""

NAME = "reassert-verify"
"""What is made for probes is named so, and after it a token: pods, containers, images, directories."""

UP_SECONDS = 10.0
"""How long a started container's program may take to come up; it has nothing to load."""

EXEC_SECONDS = 2.0
"""How long a process lives that is executed in a probe, and how long it is waited for."""

Pairs = Iterable[tuple[str, str]]


def new_token() -> str:
    """A value for MARKER and for names, which tells whose it is: `abandoned` reads it."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def abandoned(token: str) -> bool:
    """Whether the process that made a token is gone: what carries it was left by an interrupted probe."""
    maker = token.partition("-")[0]
    return not (maker.isdigit() and os.path.exists(f"/proc/{maker}"))


def own(token: str) -> bool:
    """Whether this process made a token."""
    return token.startswith(f"{os.getpid()}-")


def scratch(directory: str = "/run") -> str:
    """A new directory of root's, there as long as a probe is: it tells of one that was interrupted. Raises OSError."""
    path = f"{directory}/{NAME}-{new_token()}"
    os.mkdir(path, 0o700)
    return path


def traces(directory: str = "/run") -> list[str]:
    """Directories of `scratch` that interrupted probes left. Raises OSError."""
    names = [name for name in os.listdir(directory) if name.startswith(f"{NAME}-")]
    return [f"{directory}/{name}" for name in sorted(names) if abandoned(name.removeprefix(f"{NAME}-"))]


class Marks:
    """The files by which events and metrics know the containers of this command as probes (`hook.events.is_probe`)."""

    def __init__(self) -> None:
        """`cold`: whether the agent is not to answer the starts of what is marked from now on."""
        self._paths: list[str] = []
        self.cold = False

    def add(self, name: str) -> None:
        """Mark a container by its id, or all of a pod by its UID, before it starts. Raises OSError."""
        make_directory(events.PROBES, 0o700)
        path = f"{events.PROBES}/{name}"
        Path(path).write_text(new_token() + (events.COLD_PROBE if self.cold else ""), "ascii")
        self._paths.append(path)

    def clear(self) -> None:
        """The containers are gone."""
        for path in self._paths:
            Path(path).unlink(missing_ok=True)
        self._paths = []
        _remove_if_empty()


def clear_marks() -> None:
    """Remove the marks of commands that were killed. Raises OSError."""
    for path in Path(events.PROBES).glob("*"):
        if abandoned(path.read_text("ascii")):
            path.unlink(missing_ok=True)
    _remove_if_empty()


def _remove_if_empty() -> None:
    for directory in (events.PROBES, os.path.dirname(events.PROBES)):
        with suppress(OSError):
            os.rmdir(directory)


class NotStarted(NodeError):
    """The engine refused or failed to start the container: its words."""


class Gone(NodeError):
    """The container ended while it was looked at. kubelet ends pods that it does not know."""


class Running(Protocol):
    """A started container. `pid`: its first process, as this process sees it in /proc."""

    pid: int

    def environ(self) -> list[str]:
        """The environment of its first process. Raises Gone, NodeError."""

    def exec_environ(self) -> list[str]:
        """The environment of a process executed in it. Raises NodeError where none could be."""

    def remove(self) -> None:
        """Remove it with all that was made for it; once is enough. Raises NodeError where something stays."""


class Starter(Protocol):
    """How an engine starts a container.

    `identity`: who the container is, as reassert's adapters see it there. `marks`: of the containers that it starts.
    """

    identity: Identity
    marks: Marks

    def clean(self) -> None:
        """Remove what interrupted probes left in this engine. Raises NodeError."""

    def prepare(self) -> None:
        """Have what a probe runs; `start` would do it. Raises NodeError where this engine can start nothing at all."""

    def start(self, handler: str, env: Pairs = (), mounts: Pairs = ()) -> Running:
        """Start a container under a handler; where it fails, nothing stays.

        `env`: (name, value), a name twice where the engine passes that on. `mounts`: (path on the node, path in the
        container), bound read-write. Raises NotStarted, NodeError.
        """

    def close(self) -> None:
        """Let go of the engine, and remove what was prepared. Raises NodeError."""


@dataclass(frozen=True)
class Process:
    """The first process of a probe. `token`: its MARKER's value."""

    pid: int
    token: str

    def environ(self) -> list[str]:
        """Its environment, once it is the container's program and no longer the runtime. Raises Gone, NodeError."""
        deadline = time.monotonic() + UP_SECONDS
        while True:
            entries = environ_of(self.pid)
            if entries is None:
                raise Gone("the container's process ended before it could be looked at")
            if f"{MARKER}={self.token}" in entries:
                return entries
            if time.monotonic() > deadline:
                raise NodeError(
                    f"the container's process does not show env {MARKER} within {UP_SECONDS:.0f} s: "
                    "its program did not come up, or a rule removes that name"
                )
            time.sleep(0.01)

    def executed(self, before: set[int]) -> tuple[int, list[str]] | None:
        """Pid and environment of another process with this marker, started since `before`; None so far."""
        for pid in processes() - before:
            entries = environ_of(pid) or []
            if f"{MARKER}={self.token}" in entries:
                return pid, entries
        return None


def processes() -> set[int]:
    """All processes there are."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def environ_of(pid: int) -> list[str] | None:
    """The environment that a process was given; None if it is gone. Bytes that are no UTF-8 are kept as surrogates."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return None
    if state in b"ZX":
        return None
    return os.fsdecode(data).rstrip("\0").split("\0") if data else []
