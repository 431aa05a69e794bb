"""The text files whose interpreter is front (packaging/front/front.c): what it asks the agent, then today's script.

The lines that front reads are comments for sh. A start that the agent does not answer runs the rest in sh. The reason
is an argument of the script, before the engine's: in the environment the real runtime would see it.
"""

from __future__ import annotations

import os

from hook.adapters.cmdline import EDITING_VERBS
from hook.base.errors import ReassertError
from hook.emit.dispatcher import COLD, MARK, dispatcher, launch_lines

FRONT = "front"
"""Its name, beside the program."""

HEADER = 4096
"""Bytes in which all that front reads has to be, its own limit."""

_INTERPRETER = 255
"""Bytes that Linux reads of a first line (execve(2))."""


def warm_dispatcher(
    real: str, reassert: str, front: str, where: dict[str, str], extra: list[str], rootless: bool = False
) -> str:
    """The file that an engine is pointed at in the place of a runtime.

    `where`: socket, policy, store, events, and hook: what containers' hook entries call, "" for the program.
    `extra`, `rootless`: as `dispatcher` takes them. Raises ReassertError.
    """
    more = ["--hook", where["hook"]] if where.get("hook") else []
    script = dispatcher(real, reassert, extra + more, rootless=rootless, front=True)
    return _file(front, {"real": real, "verbs": " ".join(EDITING_VERBS), **where}, script)


def warm_hook(reassert: str, front: str, where: dict[str, str], extra: list[str]) -> str:
    """The file that a hook entry names: its arguments are a hook's flags and stage. Raises ReassertError."""
    from shlex import quote

    words = "".join(f" {quote(part)}" for part in extra)
    script = (
        f"#!/bin/sh\n{MARK}: a hook entry calls this\n{COLD}\n{launch_lines(reassert)}\n"
        f'exec "$reassert" hook "$reassert_cold"{words} "$@"\n'
    )
    return _file(front, where, script)


def _file(front: str, where: dict[str, str], script: str) -> str:
    first = f"#!{front}\n"
    if not os.access(front, os.X_OK):
        raise ReassertError(f"{front} is not an executable file; packaging/build.sh builds it where musl-gcc is")
    _, mark, rest = script.split("\n", 2)
    lines = "".join(f"# {name}: {value}\n" for name, value in where.items() if value)
    text = f"{first}{mark}\n{lines}\n{rest}"
    if len(os.fsencode(first)) > _INTERPRETER or any(letter in front for letter in " \t\n"):
        raise ReassertError(f"{front} cannot be the interpreter of a file: its path is too long or has a space in it")
    if any("\n" in value for value in where.values()) or text.index("\n\n") > HEADER - 2:
        raise ReassertError("a path is too long for front, or has a line break in it")
    return text
