"""Dispatchers (`reassert-runc`) in front of the real OCI runtimes that an engine calls."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hook.emit.dispatcher import MARK, dispatcher
from hook.node.change.files import State
from hook.node.change.program import installed
from hook.node.errors import NodeError

DIRECTORY = "/usr/local/sbin"


def dispatcher_for(real: str, program: str, taken: dict[str, str], rootless: bool = False) -> tuple[str, State]:
    """Returns the path of the dispatcher for a real runtime, and its content.

    `real`, `program`: absolute paths. `taken`: dispatcher paths in use, with their real runtimes; this one is added.
    Two runtimes of one name get two dispatchers. A file that reassert did not write is never replaced. `rootless`: for
    podman, which ordinary users call too (hook.emit.dispatcher): `reassert-podman-crun`. Raises NodeError if `real` is
    not an executable file.
    """
    if not os.path.isabs(real) or not os.path.isfile(real) or not os.access(real, os.X_OK):
        raise NodeError(f"the OCI runtime {real} is not an executable file; correct its path or install it")
    stem = f"{DIRECTORY}/reassert-{'podman-' if rootless else ''}{os.path.basename(real)}"
    number = 1
    while True:
        path = stem + (f"-{number}" if number > 1 else "")
        if taken.get(path, real) == real and (not os.path.lexists(path) or real_of(path) == real):
            taken[path] = real
            return path, State(dispatcher(real, program, [], installed(program), rootless).encode(), mode=0o755)
        number += 1


def script(path: str) -> list[str]:
    """Returns the lines of a dispatcher or podman's hook, [] for a file that reassert did not write. Raises OSError."""
    try:
        with Path(path).open("rb") as file:
            if MARK.encode() not in file.read(256):
                return []
            file.seek(0)
            return file.read().decode("utf-8", "surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []


def real_of(path: str) -> str | None:
    """Returns the real runtime that a dispatcher calls; None if the path is not a dispatcher. Raises OSError."""
    lines = script(path)
    last = [line for line in lines if line.startswith("exec ")][-1:]  # `exec REAL "$@"`, hook.emit.dispatcher
    try:
        words = shlex.split(last[0]) if last else []
    except ValueError:  # the dispatcher was edited
        words = []
    return words[1] if len(words) > 1 and os.path.isabs(words[1]) else None


def pass_through(real: str) -> State:
    """Returns the file that replaces a dispatcher that containers still call: it only calls the real runtime."""
    text = f'#!/bin/sh\n{MARK}; removed, but running containers still call this\nexec {shlex.quote(real)} "$@"\n'
    return State(text.encode(), mode=0o755)


def behind(path: str) -> str:
    """Returns the real runtime of a path, which may be a dispatcher or the runtime itself."""
    return real_of(path) or path
