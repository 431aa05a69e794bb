"""Dispatchers (`reassert-runc`) in front of the real OCI runtimes that an engine calls."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hook.core import events
from hook.core.policy import store
from hook.entry.dispatcher import HEAD, MARK, dispatcher, warm_dispatcher
from hook.node.change.files import State
from hook.node.change.tree import is_installed
from hook.node.errors import NodeError

DIRECTORY = "/usr/local/sbin"


def use_prefix(prefix: str) -> None:
    """Places dispatchers below a directory, or in the default place (`prefix` "")."""
    global DIRECTORY  # noqa: PLW0603  # one node, one place
    DIRECTORY = f"{prefix or '/usr/local'}/sbin"


def hook_file() -> str:
    """Returns what hook entries execute where there is an agent to ask (hook.entry.dispatcher.warm_hook)."""
    return f"{DIRECTORY}/reassert-hook"


WHERE = {
    "socket": "/run/reassert/agent/agent.sock",
    "policy": store.SOURCE,
    "store": store.STORE,
    "events": events.EVENTS,
}
"""Whom front asks, and for which files: the socket unit's, and the defaults of `reassert agent`."""


_NOT_FOR_THE_RUNTIME = "case ${1-} in --cold=*) shift ;; esac\n"
"""Line of sh for the script in place of a warm dispatcher: a front that has read the old one adds such an argument."""


def dispatcher_for(
    real: str, program: str, taken: dict[str, str], rootless: bool = False, front: str = ""
) -> tuple[str, State]:
    """The path of the dispatcher for a real runtime, and what is to be there.

    `real`, `program`: absolute paths. `taken`: the dispatcher paths in use, with their real runtimes; this one is
    added. Two runtimes of one name get two dispatchers, and a file there that is not ours is left alone. `rootless`:
    for podman, which ordinary users call too (hook.entry.dispatcher): `reassert-podman-crun`. `front`: as in Choice.
    Raises NodeError where `real` is no program.
    """
    if not os.path.isabs(real) or not os.path.isfile(real) or not os.access(real, os.X_OK):
        raise NodeError(f"the OCI runtime {real} is not an executable file; correct its path or install it")
    stem = f"{DIRECTORY}/reassert-{'podman-' if rootless else ''}{os.path.basename(real)}"
    number = 1
    while True:
        path = stem + (f"-{number}" if number > 1 else "")
        if taken.get(path, real) == real and (not os.path.lexists(path) or real_of(path) == real):
            taken[path] = real
            if front:
                text = warm_dispatcher(
                    real, program, front, {**WHERE, "hook": hook_file()}, [], is_installed(program), rootless
                )
            else:
                first, mark, rest = dispatcher(real, program, [], is_installed(program), rootless).split("\n", 2)
                text = f"{first}\n{mark}\n{_NOT_FOR_THE_RUNTIME}{rest}"
            return path, State(text.encode(), mode=0o755)
        number += 1


def script(path: str) -> list[str]:
    """Returns the lines of a dispatcher or podman's hook, [] for a file that reassert did not write. Raises OSError."""
    try:
        with Path(path).open("rb") as file:
            if MARK.encode() not in file.read(HEAD):
                return []
            file.seek(0)
            return file.read().decode("utf-8", "surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []


def real_of(path: str) -> str | None:
    """Returns the real runtime that a dispatcher calls; None if the path is not a dispatcher. Raises OSError."""
    lines = script(path)
    last = [line for line in lines if line.startswith("exec ")][-1:]  # `exec REAL "$@"`, hook.entry.dispatcher
    try:
        words = shlex.split(last[0]) if last else []
    except ValueError:  # the dispatcher was edited
        words = []
    return words[1] if len(words) > 1 and os.path.isabs(words[1]) else None


def pass_through(real: str) -> State:
    """What replaces a dispatcher while running processes still call it: a call of the real runtime."""
    gone = f"{MARK}, which is gone; what runs still calls this"
    text = f'#!/bin/sh\n{gone}\n{_NOT_FOR_THE_RUNTIME}exec {shlex.quote(real)} "$@"\n'
    return State(text.encode(), mode=0o755)


def behind(path: str) -> str:
    """Returns the real runtime of a path, which may be a dispatcher or the runtime itself."""
    return real_of(path) or path
