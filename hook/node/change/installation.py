"""Two ways of installing on one node: a package's program below /usr/lib, and the one that `node install` copies.

Only one of them is called by engines. The wiring moves to the other one only if that is asked for.
"""

from __future__ import annotations

import os
import re

from hook import __version__
from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import trusted
from hook.node import systemd
from hook.node.artifacts import dispatchers
from hook.node.change import journal, tree
from hook.node.change.files import TREE
from hook.node.change.program import path_in_use
from hook.node.change.record import PROGRAM, OwnerRecord, Record
from hook.node.errors import NodeError

CALLED = "program"
"""A key in an engine's notes: the path of the program that the engine's files call."""

PREFIX = "prefix"
"""A key in an engine's notes: the value of --prefix, if it was given."""

_DEFAULTS = tree.PLACE, dispatchers.DIRECTORY
_PACKAGED = "/usr/lib/reassert/reassert"


def locate(prefix: str) -> None:
    """Makes program and dispatchers lie where they do on this node, or below `prefix`. Raises NodeError.

    A change that was interrupted before it was recorded is in its journal.
    """
    record, left = Record.read(), journal.pending()
    trees = [step.path for step in (left.steps if left else []) if step.after and step.after.kind == TREE]
    recorded = [str(part.notes[PREFIX]) for part in record.parts.values() if PREFIX in part.notes]
    places = [os.path.dirname(path) for path in trees]
    recorded += [os.path.dirname(place) for place in places if place != _DEFAULTS[0]]
    was = recorded[0] if recorded else ""
    if prefix and (record.engines() or left) and prefix != was:
        how = f"with --prefix {was}" if was else "without --prefix"
        raise NodeError(f"this node is wired {how}; run `reassert node uninstall` first")
    chosen = prefix or was
    if prefix:
        _check(prefix)
    if chosen:
        tree.use_prefix(chosen)
        dispatchers.use_prefix(chosen)


def note(notes: dict[str, object], program: str) -> None:
    """Adds to an engine's notes where the program and the dispatchers are."""
    notes[CALLED] = program
    if (tree.PLACE, dispatchers.DIRECTORY) != _DEFAULTS:
        notes[PREFIX] = os.path.dirname(tree.PLACE)


def _check(prefix: str) -> None:
    """Checks that only root can write a directory and all above it, and that programs run in it. Raises NodeError."""
    if not prefix.startswith("/") or os.path.normpath(prefix) != prefix or prefix == "/":
        raise NodeError(f"--prefix takes an absolute path of a directory, not {prefix!r}")
    there = prefix
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        trusted(there)
    except (ReassertError, OSError) as error:
        raise NodeError(f"--prefix {prefix}: {describe(error)}") from None
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        raise NodeError(f"--prefix {prefix}: {there} is mounted noexec, so no program below it can be executed")


def called(record: Record) -> str:
    """Returns the program that wired engines call; "" if none is wired."""
    wired = [record.parts[name] for name in record.engines()]
    if not wired:
        return ""
    copied = record.parts.get(PROGRAM, OwnerRecord()).files
    was = tree.PLACE if any(path.startswith(f"{tree.PLACE}/") for path in copied) else os.path.dirname(_PACKAGED)
    return next((str(part.notes[CALLED]) for part in wired if CALLED in part.notes), f"{was}/reassert")


def other(record: Record) -> str:
    """Returns the program that wired engines call if this program would not be installed there; else ""."""
    found = called(record)
    return found if found not in ("", path_in_use()) else ""


def refuse_to_move(record: Record, take_over: bool) -> None:
    """Raises NodeError if another installation's program is wired, unless the wiring is to move."""
    found = other(record)
    if found and not take_over:
        raise NodeError(
            f"this node is wired with {_named(found)}, and this is {_named(path_in_use(), __version__)}; use `{found} "
            "node …`, or add --take-over to have engines call this one"
        )


def change_of_version(before: str, path: str) -> str:
    """Returns a sentence about another version that engines call now; "" if it is the same. `before`: the version."""
    if not before or before == __version__:
        return ""
    verb = "downgraded" if _key(before) > _key(__version__) else "upgraded"
    return f"reassert was {verb} from {before} to {__version__} ({os.path.dirname(path)})."


def version_of(path: str) -> str:
    """Returns the version that a program prints; "" if it cannot be called."""
    try:
        done = systemd.command([path, "--version"])
    except (NodeError, OSError):
        return ""
    return done.stdout.strip().removeprefix("reassert ") if done.returncode == 0 else ""


def _named(path: str, version: str = "") -> str:
    kind = "the package's" if path == _PACKAGED else "copied by `node install`"
    return f"reassert {version or version_of(path) or 'of an unknown version'} in {os.path.dirname(path)} ({kind})"


def _key(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
