"""A path inside a container, walked step by step as its processes will walk it, on descriptors.

openat2(2) with RESOLVE_IN_ROOT ends at the same place, but does not tell which mounts it went through.
"""

import errno
import posix

from hook.base.system import SYMLINK_LIMIT, read_file
from hook.container.paths import clean, is_below
from hook.linux.mountns import mount_id
from hook.reserve.mounts import BUILT_BY_THE_RUNTIME

_S_IFMT, _S_IFLNK = 0o170000, 0o120000
_TABLE_LIMIT = 1 << 28
"""Bytes of a mountinfo: 100,000 mounts (fs.mount-max) with paths of 4 KiB do not get there."""


class Misled(Exception):
    """The image leads a path to where nothing may be reserved."""


class Place:
    """Where a path leads. Its descriptors are closed by `close`.

    `fd`: of the last component, -1 where it is missing. `path`: without symbolic links, from the container's root;
    what is missing is taken as it is written. `missing`: the components that are, `parent`: the directory before them.
    `crossed`: (mount id, path) of every directory and symbolic link that the walk went through, in order. `links`:
    those of them that are links.
    """

    def __init__(self, fd: int, path: str, missing: list[str], parent: int, way: "_Way") -> None:
        self.fd = fd
        self.path = path
        self.missing = missing
        self.parent = parent
        self.crossed = way.crossed
        self.links = way.links

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in {self.fd, self.parent} - {-1}:
            posix.close(fd)


class _Way:
    """A walk so far: a stack of opened directories, the root first, and the last component."""

    def __init__(self, root: int) -> None:
        self.stack: list[tuple[str, int]] = [("", posix.dup(root))]
        self.crossed: list[tuple[int, str]] = []
        self.links: list[tuple[int, str]] = []

    def path(self) -> str:
        return "/".join(name for name, _ in self.stack) or "/"

    def cross(self, fd: int, path: str) -> tuple[int, str]:
        """Note what the walk goes through."""
        self.crossed.append((mount_id(fd), path))
        return self.crossed[-1]

    def back(self, depth: int) -> None:
        """Leave the directories beyond a depth."""
        while len(self.stack) > depth:
            posix.close(self.stack.pop()[1])


def walk(root: int, path: str, everywhere: bool = False) -> Place:
    """Walk an absolute path from a root. Raises Misled for one into /proc, /sys or /dev, OSError.

    `everywhere`: into these too.
    """
    way = _Way(root)
    pending = _steps(path)
    hops = 0
    try:
        while pending:
            part = pending.pop()
            directory = way.stack[-1][1]
            way.cross(directory, way.path())
            if part == "..":
                way.back(max(len(way.stack) - 1, 1))
                continue
            here = way.path().rstrip("/") + "/" + part
            if not everywhere and any(here == tree or is_below(here, tree) for tree in BUILT_BY_THE_RUNTIME):
                raise Misled(f"leads to {_written(here, pending)}, in a tree that the runtime builds")
            try:
                fd = posix.open(part, posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=directory)
            except FileNotFoundError:
                return Place(-1, _written(here, pending), [part, *reversed(pending)], posix.dup(directory), way)
            if posix.fstat(fd).st_mode & _S_IFMT != _S_IFLNK:
                way.stack.append((part, fd))
                continue
            hops += 1
            target = _target(way, fd, here)
            if hops > SYMLINK_LIMIT:
                raise OSError(errno.ELOOP, posix.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                way.back(1)
            pending += _steps(target)
        return Place(posix.dup(way.stack[-1][1]), way.path(), [], -1, way)
    finally:
        way.back(0)


def _steps(path: str) -> list[str]:
    return [step for step in reversed(path.split("/")) if step not in ("", ".")]


def _target(way: _Way, fd: int, here: str) -> str:
    try:
        way.links.append(way.cross(fd, here))
        return posix.readlink("", dir_fd=fd)
    finally:
        posix.close(fd)


def _written(here: str, pending: list[str]) -> str:
    return clean("/".join([here, *reversed(pending)]))


class Row:
    """A line of /proc/PID/mountinfo (proc(5)). `point`: from that process's root."""

    __slots__ = ("_rest", "device", "id", "parent", "point", "root")

    def __init__(self, line: str) -> None:
        number, parent, self.device, root, point, self._rest = line.split(" ", 5)
        self.id, self.parent = int(number), int(parent)
        self.root, self.point = _plain(root), _plain(point)

    @property
    def options(self) -> list[str]:
        """Of the mount, not of the file system."""
        return self._rest.split(" ", 1)[0].split(",")

    @property
    def unbindable(self) -> bool:
        """Whether `rbind` leaves it out."""
        return "unbindable" in self._rest.partition(" - ")[0].split(" ")[1:]

    @property
    def filesystem(self) -> str:
        """Its type."""
        fields = self._rest.split(" ")
        return fields[fields.index("-") + 1]


def mount_table(pid: int) -> dict[int, Row]:
    """The mounts of a process's namespace by id; 0: this process's own. Raises OSError.

    Only a newline ends a line: the kernel leaves other separators of str.splitlines in a mount point as they are.
    """
    text = read_file(f"/proc/{pid or 'self'}/mountinfo", _TABLE_LIMIT).decode("utf-8", "surrogateescape")
    rows = [Row(line) for line in text.split("\n") if line]
    return {row.id: row for row in rows}


def _plain(field: str) -> str:
    """Without the octal escapes that proc(5) lists."""
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
