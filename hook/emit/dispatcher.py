"""`reassert-runc`, the file that an engine is pointed at."""

from __future__ import annotations

import os
import shlex
import sys

from hook.adapters.cmdline import EDITING_VERBS
from hook.base.errors import ReassertError

MARK = "# written by reassert"

_SCRIPT = """#!/bin/sh
{mark}: only verbs that start a process cost more than this shell
for argument; do
  case $argument in
  {verbs}){rootless}
    {starting}
    exec "$reassert" runtime --real {real}{extra} -- "$@" ;;
  esac
done
exec {real} "$@"
"""

START = "start"
"""A file beside an installed program's link `reassert`, `start_text` of the version that is there. To replace it is one
step, where to replace a program file by file is many (hook.node.change.tree)."""

NOT_ROOTS = 'read -r _ outside _ < /proc/self/uid_map; [ "${outside:-0}" != 0 ]'
"""In sh: whether root here is an ordinary user of the node (user_namespaces(7)), as with podman without root."""


def dispatcher(real: str, reassert: str, extra: list[str], installed: bool = False, rootless: bool = False) -> str:
    """The POSIX sh script for a real runtime. `extra`: more options for `reassert runtime`.

    `installed`: as `starting` takes it. `rootless`: ordinary users get the real runtime; they can neither read what is
    decided by nor be held to it.

    An argument that merely looks like a verb only costs time: `reassert runtime` reads the command line properly.
    Raises ReassertError for a real runtime that cannot be one.
    """
    if not os.access(real, os.X_OK) or os.path.isdir(real):
        raise ReassertError(
            f"{real} is not an executable file; --real takes the OCI runtime itself, /usr/sbin/runc say"
        )
    with open(real, "rb") as file:
        if MARK.encode() in file.read(512):  # after a first line of at most 255 bytes
            raise ReassertError(f"{real} is a dispatcher of reassert itself and would call itself for ever")
    return _SCRIPT.format(
        mark=MARK,
        rootless=f"\n    {NOT_ROOTS} && break" if rootless else "",
        verbs=" | ".join(EDITING_VERBS),
        starting=starting(reassert, installed).replace("\n", "\n    "),
        real=shlex.quote(real),
        extra="".join(f" {shlex.quote(part)}" for part in extra),
    )


def starting(program: str, installed: bool = False) -> str:
    """In sh, before a script executes "$reassert": what sets that variable and what the program needs.

    `program`: its path; behind a link with `start` beside it, that says it. `installed`: it will be so.
    """
    start = os.path.dirname(program) + "/" + START
    if installed or os.path.isfile(start):
        return f". {shlex.quote(start)}"
    if hasattr(sys, "_MEIPASS") and program == os.path.realpath(program):  # this program, or a copy of it
        return _started(program)
    return f"reassert={shlex.quote(program)}"


def start_text(program: str) -> str:
    """What `start` holds for a frozen program. `program`: its executable's real path."""
    return f"# Read by dispatchers: this version, and what spares its bootloader a restart.\n{_started(program)}\n"


def _started(program: str) -> str:
    # PyInstaller's bootloader would set this by itself and then start itself a second time, so that the dynamic linker
    # sees it (docs/performance.md). If a bootloader does not recognise it, it does just that. `hook.start` undoes it.
    library = shlex.quote(os.path.dirname(program) + "/lib")  # contents_directory in packaging/reassert.spec
    return (
        f"reassert={shlex.quote(program)}\n"
        'export _PYI_ARCHIVE_FILE="$reassert" _PYI_PARENT_PROCESS_LEVEL=0\n'
        f'export LD_LIBRARY_PATH={library}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"'
    )


def lasting(program: str) -> str:
    """The path by which engines should call a program: the link that a package has to it, as its next version will.

    `program`: a real path. Without such a link in the directory above, it is `program` itself.
    """
    directory, name = os.path.split(program)
    link = os.path.join(os.path.dirname(directory), name)
    return link if os.path.islink(link) and os.path.realpath(link) == program else program
