"""Look at files of the node that a rule names: read the one of a `valueFrom.file`, and look at hostPaths."""

from __future__ import annotations

import posix

from hook.core.base.errors import Undecided, describe
from hook.core.base.jsontext import Malformed, decode
from hook.core.base.system import Untrusted, is_directory, is_shortage, read_file, trusted
from hook.core.facts import Facts

VALUE_LIMIT = 128 * 1024
"""Maximum size of a `valueFrom.file` in bytes: Linux's MAX_ARG_STRLEN, the limit of an env entry."""


def read_value(facts: Facts, path: str) -> None:
    """Note the first line of a file, or why it cannot be read. Raises OSError for a shortage."""
    try:
        facts.files[path] = first_line(path)
    except (Untrusted, Undecided, OSError) as error:
        if is_shortage(error):
            raise
        facts.unreadable[path] = describe(error)


def first_line(path: str) -> str:
    """The first line of a file that only root can write to. Raises Untrusted, Undecided, OSError."""
    trusted(path)
    line = read_file(path, VALUE_LIMIT, waits=True).split(b"\n", 1)[0].rstrip(b"\r")
    if b"\0" in line:
        raise Undecided(f"{path}: the first line contains a NUL byte")
    try:
        return decode(line)
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None


def check_source(facts: Facts, source: str) -> None:
    """Note whether a hostPath is a directory, or missing; if that is not certain, why it cannot be looked at.

    Raises OSError for a shortage.
    """
    try:
        if is_directory(posix.stat(source)):
            facts.directories.add(source)
    except OSError as error:
        if is_shortage(error):
            raise
        facts.absent_sources.add(source)
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            facts.unreadable[source] = describe(error)
