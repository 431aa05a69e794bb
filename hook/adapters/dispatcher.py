"""`reassert-runc`, the file that an engine is pointed at."""

from __future__ import annotations

import os
import shlex
import sys

from hook.adapters.cmdline import EDITING_VERBS
from hook.errors import ReassertError

MARK = "# written by reassert"

_SCRIPT = """#!/bin/sh
{mark}: only verbs that start a process cost more than this shell
for argument; do
  case $argument in
  {verbs}){rootless}{environment}
    exec {command} runtime --real {real}{extra} -- "$@" ;;
  esac
done
exec {real} "$@"
"""

# PyInstaller's bootloader would set this by itself and then start itself a second time, so that the dynamic linker
# sees it (docs/performance.md). If a bootloader does not recognise it, it does just that. `hook.start` undoes it.
_STARTED = """
    export _PYI_ARCHIVE_FILE={reassert} _PYI_PARENT_PROCESS_LEVEL=0
    export LD_LIBRARY_PATH={library}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\""""

START = "start"
"""A file that a package puts beside its link `reassert`: it sets all of that, and $reassert, for the version that is
installed. To replace it is one step, where to replace a program file by file is many (packaging/deb/build.sh)."""

NOT_ROOTS = 'read -r _ outside _ < /proc/self/uid_map; [ "${outside:-0}" != 0 ]'
"""In sh: whether root here is an ordinary user of the node (user_namespaces(7)), as with podman without root."""


def dispatcher(real: str, reassert: str, extra: list[str], library: str = "", rootless: bool = False) -> str:
    """The POSIX sh script for a real runtime. `extra`: more options for `reassert runtime`.

    `library`: the directory of the frozen program's libraries, where `reassert` is frozen and no symbolic link.
    `rootless`: ordinary users get the real runtime; they can neither read what is decided by nor be held to it.

    An argument that merely looks like a verb only costs time: `reassert runtime` reads the command line properly.
    Raises ReassertError for a real runtime that cannot be one.
    """
    if not os.access(real, os.X_OK) or os.path.isdir(real):
        raise ReassertError(
            f"{real} is not an executable file; --real takes the OCI runtime itself, /usr/sbin/runc say"
        )
    with open(real, "rb") as file:
        if MARK.encode() in file.read(256):
            raise ReassertError(f"{real} is a dispatcher of reassert itself and would call itself for ever")
    environment, command = "", shlex.quote(reassert)
    start = os.path.dirname(reassert) + "/" + START
    if os.path.isfile(start):
        environment, command = f"\n    . {shlex.quote(start)}", '"$reassert"'
    elif library:
        environment = _STARTED.format(reassert=command, library=shlex.quote(library))
    return _SCRIPT.format(
        mark=MARK,
        rootless=f"\n    {NOT_ROOTS} && break" if rootless else "",
        environment=environment,
        verbs=" | ".join(EDITING_VERBS),
        command=command,
        real=shlex.quote(real),
        extra="".join(f" {shlex.quote(part)}" for part in extra),
    )


def library_of(program: str) -> str:
    """The directory of a program's libraries, if this process is frozen and the program's path is a real one; else "".

    The program may be another copy than this one, or one that is yet to be put there.
    """
    known = hasattr(sys, "_MEIPASS") and program == os.path.realpath(program)
    return os.path.dirname(program) + "/lib" if known else ""  # contents_directory in packaging/reassert.spec


def lasting(program: str) -> str:
    """The path by which engines should call a program: the link that a package has to it, as its next version will.

    `program`: a real path. Without such a link in the directory above, it is `program` itself.
    """
    directory, name = os.path.split(program)
    link = os.path.join(os.path.dirname(directory), name)
    return link if os.path.islink(link) and os.path.realpath(link) == program else program
