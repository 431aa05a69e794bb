"""Dispatchers (`reassert-runc`) in front of the real OCI runtimes that an engine calls."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hook.emit.dispatcher import HEAD, MARK, dispatcher
from hook.node.change.files import State
from hook.node.change.program import installed
from hook.node.errors import NodeError

DIRECTORY = "/usr/local/sbin"


def dispatcher_for(real: str, program: str, taken: dict[str, str], rootless: bool = False) -> tuple[str, State]:
    """The path of the dispatcher for a real runtime, and what is to be there.

    `real`, `program`: absolute paths. `taken`: dispatcher paths that are spoken for, with their real runtimes; this
    one is added. Two runtimes of one name get two dispatchers, and what lies there and is not ours is left alone.
    `rootless`: for podman, which ordinary users call too (hook.emit.dispatcher): `reassert-podman-crun`.
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
            return path, State(dispatcher(real, program, [], installed(program), rootless).encode(), mode=0o755)
        number += 1


def script(path: str) -> list[str]:
    """The lines of a script that engines call, if it is ours: a dispatcher or podman's hook. Raises OSError."""
    try:
        with Path(path).open("rb") as file:
            if MARK.encode() not in file.read(HEAD):
                return []
            file.seek(0)
            return file.read().decode("utf-8", "surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []


def real_of(path: str) -> str | None:
    """The real runtime that a dispatcher of ours calls; None where the path is none of them. Raises OSError."""
    lines = script(path)
    last = [line for line in lines if line.startswith("exec ")][-1:]  # `exec REAL "$@"`, hook.emit.dispatcher
    try:
        words = shlex.split(last[0]) if last else []
    except ValueError:  # edited since
        words = []
    return words[1] if len(words) > 1 and os.path.isabs(words[1]) else None


def pass_through(real: str) -> State:
    """What stands in a dispatcher's place while what runs still calls it: the real runtime alone."""
    text = f'#!/bin/sh\n{MARK}, which is gone; what runs still calls this\nexec {shlex.quote(real)} "$@"\n'
    return State(text.encode(), mode=0o755)


def behind(path: str) -> str:
    """The runtime itself, whether it is called directly or through a dispatcher of ours."""
    return real_of(path) or path
