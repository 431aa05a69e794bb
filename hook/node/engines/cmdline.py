"""The command line of a daemon on this node."""

from __future__ import annotations

import os
from pathlib import Path


def arguments_of(pid: int) -> list[str]:
    """Returns the arguments of a process, [] if it does not run (pid 0)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0") if pid else []
    except OSError:
        return []


def environment_of(pid: int) -> list[str]:
    """Returns the environment of a process, NAME=VALUE, [] if it does not run (pid 0)."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).rstrip("\0").split("\0") if pid else []
    except OSError:
        return []


def option(arguments: list[str], *names: str) -> list[str]:
    """Returns the values of an option (`--name value` and `--name=value`), in order."""
    found = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            found.append(value if equals else "".join(arguments[position + 1 : position + 2]))
    return found
