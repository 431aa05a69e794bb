"""Dispatchers (`reassert-runc`) in front of the real OCI runtimes that an engine calls."""

from __future__ import annotations

import glob
import os
import shlex
from itertools import chain, count

from hook.core import events
from hook.core.policy import store
from hook.entry.dispatcher import DISPATCHER_MARK, HEAD, dispatcher, warm_dispatcher
from hook.node.change import tree
from hook.node.change.files import State
from hook.node.change.tree import is_installed
from hook.node.errors import NodeError
from hook.node.nodefiles import THIS_NODE, NodeFiles

DIRECTORY = tree.PLACE
OLD_DIRECTORY = "/usr/local/sbin"
"""Where reassert 0.3 placed them. One that is there stays there: the engine's files and running containers name it."""


def hook_file() -> str:
    """Returns what hook entries execute where there is an agent to ask (hook.entry.dispatcher.warm_hook)."""
    old = f"{OLD_DIRECTORY}/reassert-hook"
    return old if script(old) else f"{DIRECTORY}/reassert-hook"


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
    real: str,
    program: str,
    taken: dict[str, str],
    rootless: bool = False,
    front: str = "",
    files: NodeFiles = THIS_NODE,
) -> tuple[str, State]:
    """The path of the dispatcher for a real runtime, and what is to be there.

    `real`, `program`: absolute paths. `taken`: the dispatcher paths in use, with their real runtimes; this one is
    added. Two runtimes of one name get two dispatchers, and a file there that is not ours is left alone. `rootless`:
    for podman, which ordinary users call too (hook.entry.dispatcher): `reassert-podman-crun`. `front`: as in Choice.
    Raises NodeError where `real` is no program.
    """
    if not os.path.isabs(real) or not files.is_program(real):
        raise NodeError(f"the OCI runtime {real} is not an executable file; correct its path or install it")
    if script(real, files):
        raise NodeError(f"{real} is a dispatcher of reassert: it would call itself endlessly")
    name = f"reassert-{'podman-' if rootless else ''}{os.path.basename(real)}"
    new = (f"{DIRECTORY}/{name}" + (f"-{number}" if number > 1 else "") for number in count(1))
    path = next(
        path
        for path in chain(_there(OLD_DIRECTORY, name, real, files), new)
        if taken.get(path, real) == real and (files.is_free(path) or real_of(path, files) == real)
    )
    taken[path] = real
    is_placed, gvisor = is_installed(program), files.is_gvisor(real)
    if front:
        text = warm_dispatcher(
            real,
            program,
            front=front,
            where={**WHERE, "hook": hook_file()},
            extra=[],
            installed=is_placed,
            rootless=rootless,
            gvisor=gvisor,
        )
    else:
        first, mark, rest = dispatcher(
            real, program, extra=[], installed=is_placed, rootless=rootless, gvisor=gvisor
        ).split("\n", 2)
        text = f"{first}\n{mark}\n{_NOT_FOR_THE_RUNTIME}{rest}"
    return path, State(text.encode(), mode=0o755)


def is_place(path: str) -> bool:
    """Whether dispatchers and hook files have such paths."""
    directory, name = os.path.split(path)
    return directory in (DIRECTORY, OLD_DIRECTORY) and name.startswith("reassert-")


def _there(directory: str, name: str, real: str, files: NodeFiles) -> list[str]:
    """The dispatchers for a real runtime in a directory. `name`: how their names begin."""
    paths = files.matching(f"{directory}/{glob.escape(name)}*")
    return [path for path in paths if real_of(path, files) == real]


def dispatcher_on_disk(real: str, taken: dict[str, str], files: NodeFiles = THIS_NODE) -> tuple[str, State] | None:
    """The dispatcher for a real runtime as it is on this node, None without one. Arguments as for `dispatcher_for`.

    A pass-through is none.
    """
    name = f"reassert-{os.path.basename(real)}"
    for path in (*_there(OLD_DIRECTORY, name, real, files), *_there(DIRECTORY, name, real, files)):
        state = files.state(path)
        if state is not None and state.content != pass_through(real).content:
            taken[path] = real
            return path, state
    return None


def script(path: str, files: NodeFiles = THIS_NODE) -> list[str]:
    """Returns the lines of a dispatcher or podman's hook, [] for a file that reassert did not write. Raises OSError."""
    if DISPATCHER_MARK.encode() not in (files.content(path, HEAD) or b""):
        return []
    return (files.content(path) or b"").decode("utf-8", "surrogateescape").splitlines()


def real_of(path: str, files: NodeFiles = THIS_NODE) -> str | None:
    """Returns the real runtime that a dispatcher calls; None if the path is not a dispatcher. Raises OSError."""
    lines = script(path, files)
    last = [line for line in lines if line.startswith("exec ")][-1:]  # `exec REAL "$@"`, hook.entry.dispatcher
    try:
        words = shlex.split(last[0]) if last else []
    except ValueError:  # the dispatcher was edited
        words = []
    return words[1] if len(words) > 1 and os.path.isabs(words[1]) else None


def is_wired(path: str, files: NodeFiles = THIS_NODE) -> bool:
    """Whether a path is a dispatcher through which containers start with reassert. Raises OSError.

    A pass-through is none: `pass_through`'s, the package's (packaging/deb/postrm), and that of docs/break-glass.md.
    """
    return real_of(path, files) is not None and not any(line.startswith(_GONE) for line in script(path, files))


_GONE = f"{DISPATCHER_MARK}, which is gone"


def pass_through(real: str) -> State:
    """What replaces a dispatcher while running processes still call it: a call of the real runtime."""
    gone = f"{_GONE}; what runs still calls this"
    text = f'#!/bin/sh\n{gone}\n{_NOT_FOR_THE_RUNTIME}exec {shlex.quote(real)} "$@"\n'
    return State(text.encode(), mode=0o755)


def behind(path: str, files: NodeFiles = THIS_NODE) -> str:
    """Returns the real runtime of a path, which may be a dispatcher or the runtime itself."""
    return real_of(path, files) or path
