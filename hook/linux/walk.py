"""A path inside a container, walked step by step as its processes will walk it, on descriptors.

openat2(2) with RESOLVE_IN_ROOT ends at the same place, but does not tell which mounts it went through.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from hook.base.system import SYMLINK_LIMIT
from hook.container.paths import is_below
from hook.linux.mountns import mount_id
from hook.reserve.mounts import BUILT_BY_THE_RUNTIME


class Misled(Exception):
    """The image leads a path to where nothing may be reserved."""


class Place:
    """Where a path leads. Its descriptor is closed by `close`.

    `fd`: of the last component, -1 where it is missing. `path`: without symbolic links, from the container's root;
    what is missing is taken as it is written. `crossed`: (mount id, path) of every mount that the walk went through
    before its last component, in order.
    """

    def __init__(self, fd: int, path: str, crossed: list[tuple[int, str]], missing: list[str], parent: int) -> None:
        self.fd = fd
        self.path = path
        self.crossed = crossed
        self.missing = missing
        self.parent = parent

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in {self.fd, self.parent} - {-1}:
            os.close(fd)


def walk(root: int, path: str, through_dev: bool = False) -> Place:
    """Walk an absolute path from a root. Raises Misled for one through /proc, /sys or /dev, OSError.

    `through_dev`: take what lies in these trees as it is written, without looking.
    """
    stack: list[tuple[str, int]] = [("", os.dup(root))]
    crossed = [(mount_id(root), "/")]
    pending = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    hops = 0
    try:
        while pending:
            part = pending.pop()
            if part == "..":
                if len(stack) > 1:
                    os.close(stack.pop()[1])
                continue
            here = "/".join(name for name, _ in stack) + "/" + part
            if any(here == tree or is_below(here, tree) for tree in BUILT_BY_THE_RUNTIME):
                if not through_dev:
                    raise Misled(f"leads to {_written(here, pending)}, in a tree that the runtime builds")
                return Place(-1, _written(here, pending), crossed, [part, *reversed(pending)], os.dup(stack[-1][1]))
            try:
                fd = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=stack[-1][1])
            except FileNotFoundError:
                return Place(-1, _written(here, pending), crossed, [part, *reversed(pending)], os.dup(stack[-1][1]))
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                hops += 1
                target = _target(fd)
                if hops > SYMLINK_LIMIT:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if target.startswith("/"):
                    while len(stack) > 1:
                        os.close(stack.pop()[1])
                pending += [step for step in reversed(target.split("/")) if step not in ("", ".")]
                continue
            stack.append((part, fd))
            crossed.append((mount_id(fd), here))
        parent = os.dup(stack[-2][1] if len(stack) > 1 else stack[-1][1])
        return Place(os.dup(stack[-1][1]), "/".join(n for n, _ in stack) or "/", crossed[:-1], [], parent)
    finally:
        for _, fd in stack:
            os.close(fd)


def _target(fd: int) -> str:
    try:
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def _written(here: str, pending: list[str]) -> str:
    return os.path.normpath("/".join([here, *reversed(pending)]))


class Row:
    """A line of /proc/PID/mountinfo (proc(5)). `point`: from that process's root."""

    __slots__ = ("device", "filesystem", "id", "options", "parent", "point", "root")

    def __init__(self, line: str) -> None:
        fields = line.split(" ")
        self.id, self.parent, self.device = int(fields[0]), int(fields[1]), fields[2]
        self.root, self.point = _plain(fields[3]), _plain(fields[4])
        self.options = fields[5].split(",")
        self.filesystem = fields[fields.index("-") + 1]


def mount_table(pid: int) -> dict[int, Row]:
    """The mounts of a process's namespace by id; 0: this process's own. Raises OSError."""
    text = Path(f"/proc/{pid or 'self'}/mountinfo").read_text("utf-8", "surrogateescape")
    rows = map(Row, text.splitlines())
    return {row.id: row for row in rows}


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field) if "\\" in field else field
