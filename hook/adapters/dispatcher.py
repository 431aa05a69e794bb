"""`reassert-runc`, the file that an engine is pointed at."""

from __future__ import annotations

import os
import shlex

from hook.adapters.cmdline import EDITING_VERBS
from hook.errors import ReassertError

MARK = "# written by reassert"

_SCRIPT = """#!/bin/sh
{mark}: only verbs that start a process cost more than this shell
for argument; do
  case $argument in
  {verbs}) exec {reassert} runtime --real {real}{extra} -- "$@" ;;
  esac
done
exec {real} "$@"
"""


def dispatcher(real: str, reassert: str, extra: list[str]) -> str:
    """The POSIX sh script for a real runtime. `extra`: more options for `reassert runtime`.

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
    return _SCRIPT.format(
        mark=MARK,
        verbs=" | ".join(EDITING_VERBS),
        reassert=shlex.quote(reassert),
        real=shlex.quote(real),
        extra="".join(f" {shlex.quote(part)}" for part in extra),
    )
