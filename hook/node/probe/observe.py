"""The mounts of a running container as OCI mounts, so that `plan` can compare them with the policy.

A mount counts as the policy's if its path, resolved inside the container, leads to that mount and to the same file or
directory that the policy names. The text of paths alone does not count. Mounts that other mounts hide are ignored.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hook.core.base.compare import is_below
from hook.core.linux.walk import open_walked
from hook.core.policy.entries import Mount
from hook.node import workers
from hook.node.errors import NodeError
from hook.node.probe.starter import Gone

_FLAGS = ("ro", "nosuid", "nodev", "noexec")
"""The options of mount(8) that are compared. The others do not change what a container can do with the mount."""


@dataclass(frozen=True)
class Row:
    """A line of /proc/PID/mountinfo (proc(5)). `root`: path in its file system. `point`: path in the container."""

    id: int
    root: str
    point: str
    options: tuple[str, ...]


def rows(mountinfo: str) -> list[Row]:
    """Returns the mounts in a mountinfo, in its order."""
    found = []
    for line in mountinfo.splitlines():
        number, _, _, root, point, options, *_ = line.split(" ")
        found.append(Row(int(number), _plain(root), _plain(point), tuple(options.split(","))))
    return found


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mounts(pid: int, reserved: list[Mount]) -> list[dict[str, object]]:
    """Returns the mounts at and below reserved paths in the mount namespace of a process.

    Other mounts come first. Mounts that are as reserved come last, in the policy's form. A process without rights reads
    them (hook.node.workers). Raises Gone, NodeError, OSError.
    """

    def take() -> tuple[int, int] | None:
        try:
            table = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            return table, os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return None

    found = workers.apart(take, lambda taken: _look(*taken, reserved) if taken else False)
    if found is False:
        raise Gone("the container's process ended before its mounts could be read")
    if not isinstance(found, list):
        raise NodeError(f"the mounts of process {pid} could not be looked at")
    return found


def _look(mountinfo: int, root: int, reserved: list[Mount]) -> list[dict[str, object]]:
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
        table = rows(file.read())
    ours: dict[str, dict[str, object]] = {}
    foreign: list[dict[str, object]] = []
    for row in table:
        above = [
            mount for mount in reserved if row.point == mount.destination or is_below(row.point, mount.destination)
        ]
        if not above or not _visible(root, row):
            continue
        exact = next((mount for mount in above if mount.destination == row.point), None)
        if exact and exact.source and _same(root, row.point, exact.source) and _has_options(row, exact):
            ours[row.point] = exact.as_oci(os.path.isdir(exact.source))
        elif exact or not any(_part_of(root, row.point, mount) for mount in above):
            foreign.append({"destination": row.point, "type": "bind", "source": row.root, "options": list(row.options)})
    return foreign + [ours[path] for path in sorted(ours, key=lambda path: (path.count("/"), path))]


def _visible(root: int, row: Row) -> bool:
    """Whether the path of a mount leads to this mount, so that no other mount hides it."""
    try:
        fd = open_walked(root, row.point)
    except OSError:
        return False
    try:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii")
    finally:
        os.close(fd)
    return f"\nmnt_id:\t{row.id}\n" in text


def _same(root: int, path: str, source: str) -> bool:
    """Whether a path in the container and a path of the node are the same file."""
    try:
        fd = open_walked(root, path)
        try:
            return os.path.samestat(os.fstat(fd), os.stat(source))
        finally:
            os.close(fd)
    except OSError:
        return False


def _part_of(root: int, path: str, mount: Mount) -> bool:
    """Whether a mount below a reserved mount is part of its source on the node."""
    return bool(mount.source) and _same(root, path, mount.source.rstrip("/") + path[len(mount.destination) :])


def _has_options(row: Row, mount: Mount) -> bool:
    return all(flag in row.options for flag in _FLAGS if flag in mount.options)
