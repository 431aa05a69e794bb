"""What a container loses by its reserved mounts and may need: the right to write, and files that its env names."""

from __future__ import annotations

import posix
from collections.abc import Iterator, Sequence

from hook.core.base.compare import clean, is_below, parents
from hook.core.base.errors import named
from hook.core.base.jsontext import Strings
from hook.core.container.start import Entries
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.plan import Plan

LOSSES_LISTED = 8
"""Maximum number of losses that are told of one container: an event has no longer list."""

_TRIED = 256
"""Maximum number of variables that are looked at: a pod's author can set very many."""


def losses(decided: Plan, env: Entries) -> list[str]:
    """What the container loses by a plan, each as a sentence without a subject. No value of env is in it.

    `env`: the container's. Names that the plan reserves do not count.
    """
    mounts = decided.mounts
    reasons: list[str] = []
    for edit in mounts:
        gone = [mount for mount in edit.before if edit.displaces(mount.path)]
        writable = [mount.destination for mount in gone if not mount.is_read_only]
        if writable and "rw" not in edit.options():
            now = "read-only now" if edit.mount else "removed"
            reasons.append(f"cannot write to {named(writable[0])}: writable by the pod, {now}")
    for number, (name, value) in enumerate(_paths(env, mounts)):
        edit = max((e for e in mounts if value == e.name or is_below(value, e.name)), key=lambda e: len(e.name))
        if not decided.env.owner(name) and _hides(edit, value):
            reasons.append(f"env {named(name)} names a file that rule {edit.rule} hides, below {named(edit.name)}")
        if len(reasons) >= LOSSES_LISTED or number >= _TRIED:
            break
    return reasons[:LOSSES_LISTED]


def _paths(env: Entries, mounts: Sequence[PlaceMount]) -> Iterator[tuple[str, str]]:
    """Name and cleaned path of the entries whose value is a path at or below a reserved mount."""
    text, mark = (env.text, '"') if isinstance(env, Strings) else ("\0".join(["", *env, ""]), "\0")
    for start in {edit.name for edit in mounts}:
        position = -1
        while (position := text.find("=" + start, position + 1)) >= 0:
            end = text.index(mark, position)
            name, path = text[text.rfind(mark, 0, position) + 1 : position], clean(text[position + 1 : end])
            if "=" not in name and (path == start or is_below(path, start)):
                yield name, path
            position = end  # each entry once, whatever its value has


def _hides(edit: PlaceMount, path: str) -> bool:
    """Whether nothing is at a path of a reserved mount, by what the node has at its source."""
    if any(each in edit.companions for each in (path, *parents(path)) if is_below(each, edit.name)):
        return False  # a mount that comes on top of it
    if edit.mount is None:
        return True
    try:
        posix.lstat(edit.source() + path[len(edit.name) :])
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False
