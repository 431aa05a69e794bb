"""The dispatcher and hook entry that ask the agent: text files with front as interpreter (packaging/front/front.c).

The lines at the top are read by front and are comments for sh. The rest is the sh script of a cold start. The reason is
the script's first argument, before the engine's: in the environment the real runtime would see it.
"""

from __future__ import annotations

import os

from hook.core.base.errors import ReassertError
from hook.entry.cmdline import EDITING_VERBS
from hook.node.artifacts.dispatcher import COLD, FLAGS, MARK, PASSED, PRINTING, VALUES, dispatcher, launch_lines

FRONT = "front"
"""The file name of front, in the directory of the frozen program."""

HEADER = 4096
"""The most bytes that front reads of the file: front's limit."""

_INTERPRETER = 255
"""The most bytes that Linux reads of the first line (execve(2))."""


def warm_dispatcher(
    real: str,
    reassert: str,
    front: str,
    where: dict[str, str],
    extra: list[str],
    installed: bool = False,
    rootless: bool = False,
) -> str:
    """Returns the file that the engine calls instead of the runtime.

    `where`: socket, policy, store, events, and hook: what containers' hook entries call, "" for the program.
    `extra`, `installed`, `rootless`: as `dispatcher` takes them; with `installed`, front will be there too. Raises
    ReassertError.
    """
    more = ["--hook", where["hook"]] if where.get("hook") else []
    script = dispatcher(real, reassert, extra + more, installed, rootless, front=True)
    words = {"decided": EDITING_VERBS, "passed": PRINTING + PASSED, "values": VALUES, "flags": FLAGS}
    lines = {"real": real, **{name: " ".join(listed) for name, listed in words.items()}, **where}
    return _file(front, lines, script, installed)


def warm_hook(reassert: str, front: str, where: dict[str, str], extra: list[str], installed: bool = False) -> str:
    """The file that a hook entry names: its arguments are a hook's flags and stage.

    `installed`: as `warm_dispatcher` takes it. Raises ReassertError.
    """
    from shlex import quote

    words = "".join(f" {quote(part)}" for part in extra)
    script = (
        f"#!/bin/sh\n{MARK}: a hook entry calls this\n{COLD}\n{launch_lines(reassert, installed)}\n"
        f'exec "$reassert" hook "$reassert_cold"{words} "$@"\n'
    )
    return _file(front, where, script, installed)


def _file(front: str, where: dict[str, str], script: str, installed: bool) -> str:
    first = f"#!{front}\n"
    if not installed and not os.access(front, os.X_OK):
        raise ReassertError(f"{front} is not an executable file; packaging/build.sh builds it where musl-gcc is")
    _, mark, rest = script.split("\n", 2)
    lines = "".join(f"# {name}: {value}\n" for name, value in where.items() if value)
    text = f"{first}{mark}\n{lines}\n{rest}"
    if len(os.fsencode(first)) > _INTERPRETER or any(letter in front for letter in " \t\n"):
        raise ReassertError(
            f"{front} cannot be the interpreter of a file: its path is too long or contains white space"
        )
    if any("\n" in value for value in where.values()) or text.index("\n\n") > HEADER - 2:
        raise ReassertError("a path is too long for front or contains a line break")
    return text
