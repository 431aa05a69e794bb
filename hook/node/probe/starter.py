"""Test containers (probes): the parts that are the same for every engine.

Everything is read in /proc, from outside the container. The container needs no program of reassert and no shell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hook.core import events
from hook.core.base.system import make_directory
from hook.core.container.identity import Identity
from hook.entry.protocol import COLD_PROBE
from hook.inside.process import ContainerGone, environs, is_gvisor, mount_namespace, processes
from hook.node.errors import NodeError
from hook.node.systemd import selinux_is_on, wait_until

MARKER = "REASSERT_PROBE"
"""An env name that every test container has, with a token as value. A process that has it is not the runtime's."""

NAME = "reassert-verify"
"""The prefix of the names of pods, containers, images and directories for test containers; a token follows."""

_OF_VOLUMES = b"system_u:object_r:container_file_t:s0\0"

EXECUTABLE = "/var/lib"
"""Where `scratch` makes directories of programs: /run is often mounted with noexec."""

UP_SECONDS = 10.0
"""Seconds to wait until the program of a started container runs; it loads almost nothing."""

EXEC_SECONDS = 2.0
"""The lifetime of a process that is executed in a test container, and the wait for it, in seconds."""

Pairs = Iterable[tuple[str, str]]


def new_token() -> str:
    """Returns a token for MARKER and for names. It has this process' pid, for `abandoned`."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def abandoned(token: str) -> bool:
    """Whether the process that made a token has ended: anything with the token is a leftover of it."""
    maker = token.partition("-")[0]
    return not (maker.isdigit() and os.path.exists(f"/proc/{maker}"))


def own(token: str) -> bool:
    """Whether this process made a token."""
    return token.startswith(f"{os.getpid()}-")


def scratch(directory: str = "/run") -> str:
    """Makes a directory that is removed with the test container; `traces` finds one that is left. Raises OSError.

    With the SELinux label of a pod's volumes, since an engine may not look into all of /run.
    """
    path = f"{directory}/{NAME}-{new_token()}"
    os.mkdir(path, 0o700)
    if selinux_is_on():
        with suppress(OSError):  # a policy without this type
            os.setxattr(path, "security.selinux", _OF_VOLUMES)
    return path


def traces(*directories: str) -> list[str]:
    """Returns the directories of `scratch` that interrupted commands left; in /run and EXECUTABLE if none is given."""
    found = [path for directory in directories or ("/run", EXECUTABLE) for path in Path(directory).glob(f"{NAME}-*")]
    return [str(path) for path in sorted(found) if abandoned(path.name.removeprefix(f"{NAME}-"))]


class Marks:
    """Files that mark the test containers of this command, for events and metrics (`hook.core.events.is_probe`)."""

    def __init__(self) -> None:
        """`cold`: whether the agent must not answer the starts of containers that are marked from now on.

        `unmarked`: handlers whose containers have no name before they start.
        """
        self._paths: list[str] = []
        self.cold = False
        self.unmarked: set[str] = set()

    def add(self, name: str) -> None:
        """Marks a container by its id, or a pod's containers by its UID, before they start. Raises OSError."""
        make_directory(events.PROBES, 0o700)
        path = f"{events.PROBES}/{name}"
        Path(path).write_text(new_token() + (COLD_PROBE if self.cold else ""), "ascii")
        self._paths.append(path)

    def clear(self) -> None:
        """Removes the marks, once the containers are removed."""
        for path in self._paths:
            Path(path).unlink(missing_ok=True)
        self._paths = []
        _remove_if_empty()


def clear_marks() -> None:
    """Removes the marks of killed commands. Raises OSError."""
    for path in Path(events.PROBES).glob("*"):
        if abandoned(path.read_text("ascii")):
            path.unlink(missing_ok=True)
    _remove_if_empty()


def _remove_if_empty() -> None:
    for directory in (events.PROBES, os.path.dirname(events.PROBES)):
        with suppress(OSError):
            os.rmdir(directory)


class NotStarted(NodeError):
    """The engine refused or failed to start the container, or its program ended by itself. The text is the engine's."""


class NotRemoved(NodeError):
    """A test container cannot be removed."""


class Unsupported(NodeError):
    """The engine does not support a way that should be tried."""


@dataclass(frozen=True)
class Extra:
    """What a test container asks for besides env and mounts.

    `devices`: (path on the node, path in the container). `cdi`: fully qualified CDI devices. `annotations`: of the
    container. `pod_annotations`: of its pod. `user`: the uid and gid of its processes, and `content` works; None: the
    image's.
    """

    devices: Pairs = ()
    cdi: tuple[str, ...] = ()
    privileged: bool = False
    annotations: Pairs = ()
    pod_annotations: Pairs = ()
    user: int | None = None


NOTHING_MORE = Extra()


class Running(Protocol):
    """A running test container. `pid`: its first process, in the pid namespace of this process."""

    pid: int

    def environ(self) -> list[str]:
        """Returns the environment of its first process. Raises ContainerGone, NodeError."""

    def exec_environ(self, env: Pairs = ()) -> list[str]:
        """Returns the environment of a process that is executed in it. Raises NodeError if none can be executed.

        `env`: what the caller of that exec sets; raises Unsupported if this engine's callers cannot.
        """

    def content(self, path: str) -> bytes:
        """Returns the first `observe.CONTENT` bytes of a file in it, read by a program that is executed in it.

        Raises Unsupported, NodeError.
        """

    def annotations(self) -> dict[str, str]:
        """Returns the annotations in its config.json. Raises Unsupported if it is not found."""

    def ended(self, error: Exception) -> Exception:
        """Returns what to raise for an error whose cause is the end of the first process.

        ContainerGone if something else ended it, NotStarted if it ended by itself, and the same error if it runs.
        Raises NodeError.
        """

    def remove(self) -> None:
        """Removes the container and everything that was made for it. Raises NotRemoved, NodeError."""


class Starter(Protocol):
    """How an engine starts a container.

    `identity`: who the container is, as reassert's adapters see it there. `marks`: of the containers that it starts.
    """

    identity: Identity
    marks: Marks

    def clean(self) -> None:
        """Removes leftovers of interrupted commands from this engine. Raises NodeError."""

    def prepare(self) -> None:
        """Prepares the image; otherwise `start` does it. Raises NodeError if this engine cannot start a container."""

    def start(self, handler: str, env: Pairs = (), mounts: Pairs = (), extra: Extra = NOTHING_MORE) -> Running:
        """Starts a container under a handler. After a failure, nothing is left.

        `env`: (name, value); a name may occur twice. `mounts`: (path on the node, path in the container), bound
        read-write. Raises NotStarted, Unsupported for an `extra` that this engine does not have, NodeError.
        """

    def close(self) -> None:
        """Disconnects from the engine and removes what was prepared. Raises NodeError."""


@dataclass(frozen=True)
class Process:
    """The first process of a test container. `token`: of its MARKER. `up_seconds`: the longest wait for it."""

    pid: int
    token: str
    up_seconds: float = UP_SECONDS

    def environ(self) -> list[str]:
        """Returns its environment once the container's program has been executed. Raises ContainerGone, NodeError."""
        if is_gvisor(self.pid):
            raise NodeError("it runs in gVisor, and its image has no program that could look there")

        def marked() -> list[str]:
            entries = environs({self.pid}).get(self.pid)
            if entries is None:
                raise ContainerGone("the container's process ended before its environment could be read")
            return entries if f"{MARKER}={self.token}" in entries else []

        entries = wait_until(marked, self.up_seconds, 0.01)
        if not entries:
            raise NodeError(
                f"the container's process has no env {MARKER} after {self.up_seconds:.0f} s: "
                "its program did not start, or a rule removes that name"
            )
        return entries

    def wait_executed(self, before: set[int]) -> tuple[int, list[str]]:
        """Waits for what `executed` returns. Raises NodeError."""
        found = wait_until(lambda: self.executed(before), EXEC_SECONDS, 0.01)
        if found is None:
            raise NodeError("a program that was executed in the container did not start")
        return found

    def executed(self, before: set[int]) -> tuple[int, list[str]] | None:
        """Returns pid and environment of a process with this marker that is not in `before`; None if none yet.

        No process outside of the container is looked at: one of them can make a look at its environment wait for ever.
        """
        there = mount_namespace(self.pid)
        for pid, entries in environs({pid for pid in processes() - before if mount_namespace(pid) == there}).items():
            if f"{MARKER}={self.token}" in entries:
                return pid, entries
        return None
