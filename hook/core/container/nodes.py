"""Device nodes of the node, by number.

A device is its number: a node of the same number under another name, in another directory, is the same device.
"""

from __future__ import annotations

import errno
import posix
from collections.abc import Iterator
from typing import TypeAlias

from hook.core.base.compare import glob_match, literal_start
from hook.core.base.errors import Unacceptable
from hook.core.base.mountinfo import reach, status_of
from hook.core.base.system import is_shortage
from hook.core.container.oci import Number

Inode: TypeAlias = tuple[int, int]
"""st_dev and st_ino."""

NODE_DEV_ENTRIES = 100_000
"""How many directory entries one pattern may make a start read. /dev has a few hundred."""

_S_IFMT, _S_IFDIR, _S_IFLNK = 0o170000, 0o040000, 0o120000
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
"""Errors of a directory that is missing or was removed, or behind a link to a file system that may not answer."""

_TYPES = {0o020000: "c", 0o060000: "b"}


def number_of(status: posix.stat_result) -> Number | None:
    """The number of a device node; None if the file is of another type."""
    kind = _TYPES.get(status.st_mode & _S_IFMT)
    return (kind, posix.major(status.st_rdev), posix.minor(status.st_rdev)) if kind else None


def words(number: Number) -> str:
    """Like `c 195:0`."""
    return f"{number[0]} {number[1]}:{number[2]}"


def matching(pattern: str, most: int = NODE_DEV_ENTRIES) -> dict[Number, str]:
    """The node's device nodes whose path matches, with the path of each. Raises Unacceptable, OSError.

    Symbolic links that match are followed. File systems mounted below the pattern's first directory are left out, as
    /dev/shm, which pods fill.
    """
    nodes: dict[Number, str] = {}
    start = literal_start(pattern)
    if start == pattern:
        _add(nodes, pattern)
        return nodes
    links: list[str] = []
    for path, kind in _entries(start.rpartition("/")[0] or "/", start, pattern, most):
        if glob_match(pattern, path):
            if kind == _LINK:
                links.append(path)
            elif kind == _OTHER:
                _add(nodes, path)
    for path in links:
        _add(nodes, path)
    return nodes


_LINK, _DIRECTORY, _FILE, _OTHER = range(4)


def _entries(top: str, start: str, pattern: str, most: int) -> Iterator[tuple[str, int]]:
    """All files below a directory whose path begins with `start`, but for directories. Raises Unacceptable, OSError.

    A pod with a volume at a directory of /dev can fill that directory, and no `failurePolicy` may let it gain by that.
    """
    pending, seen, device = [top], 0, -1
    while pending:
        directory = pending.pop()
        try:
            device, count, entries = _listed(directory, device, start)
        except OSError as error:
            if error.errno in _MISSING:
                continue
            raise
        seen += count
        if seen > most:
            why = f"more than {most} files are in {top}; write a narrower pattern"
            raise Unacceptable(f"exclusive {pattern}: {why}")
        for path, kind in entries:
            if kind == _DIRECTORY:
                pending.append(path)
            else:
                yield path, kind


def _listed(directory: str, device: int, start: str) -> tuple[int, int, list[tuple[str, int]]]:
    """The device of a directory, the number of its entries, and those on the way to `start` or below. Raises OSError.

    None if it is of another device than `device`.
    """
    top = reach(directory)
    try:
        own_device = posix.fstat(top).st_dev
        if device not in (-1, own_device):
            return device, 0, []
        fd = posix.open(".", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC, dir_fd=top)
    finally:
        posix.close(top)
    try:
        before = directory.rstrip("/") + "/"
        entries = [(before + entry.name, entry) for entry in posix.scandir(fd)]
        wanted = [(p, _kind(entry)) for p, entry in entries if p.startswith(start) or start.startswith(p + "/")]
        return own_device, len(entries), wanted
    finally:
        posix.close(fd)


def _kind(entry: posix.DirEntry[str]) -> int:
    if entry.is_symlink():
        return _LINK
    if entry.is_dir(follow_symlinks=False):
        return _DIRECTORY
    return _FILE if entry.is_file(follow_symlinks=False) else _OTHER


def _raise_shortage(error: OSError) -> None:
    """What cannot be looked at is not missing: a container could have it."""
    if is_shortage(error):
        raise error


def _add(nodes: dict[Number, str], path: str) -> None:
    try:
        number = number_of(status_of(path))
    except OSError as error:  # removed since, or a dangling link
        _raise_shortage(error)
        return
    if number:
        nodes.setdefault(number, path)


def within(path: str) -> dict[Number, str]:
    """The device node at a path that a device plugin named, or the nodes below it. Raises Unacceptable, OSError."""
    try:
        status = status_of(path)
    except OSError as error:
        _raise_shortage(error)
        return {}
    number = number_of(status)
    if number:
        return {number: path}
    return matching(path.rstrip("/") + "/*") if status.st_mode & _S_IFMT == _S_IFDIR else {}


def inode(status: posix.stat_result) -> Inode:
    """What identifies a directory, by any path that leads to it."""
    return status.st_dev, status.st_ino


def directories_above(path: str) -> list[Inode]:
    """The directory that holds a path's file, and those above it, up to `/`, as the node has them mounted.

    Raises OSError.
    """
    try:
        fd = reach(path.rpartition("/")[0])
    except OSError as error:
        _raise_shortage(error)
        return []
    above: list[Inode] = []
    try:
        while True:
            above.append(inode(posix.fstat(fd)))
            parent = posix.open("..", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC, dir_fd=fd)
            posix.close(fd)
            fd = parent
            if inode(posix.fstat(fd)) == above[-1]:
                return above
    finally:
        posix.close(fd)
