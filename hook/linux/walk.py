"""Resolves a path inside a container component by component, on descriptors, as the container's processes will do it.

openat2(2) with RESOLVE_IN_ROOT ends at the same place, but does not tell which mounts it passed through.
"""

import errno
import posix

from hook.base.compare import clean, is_below
from hook.base.errors import named
from hook.base.system import SYMLINK_LIMIT, read_fd, read_file
from hook.linux.mountns import mount_id
from hook.reserve.places import BUILT_BY_THE_RUNTIME

DIRECTORIES = 1000
"""Maximum number of directories in which a container has devices. Each is walked to."""

_KEPT = 16
"""Directories that `Walks` keeps open."""

_S_IFMT, _S_IFLNK = 0o170000, 0o120000
_TABLE_LIMIT = 1 << 28
"""Bytes of a mountinfo: 100,000 mounts (fs.mount-max) with paths of 4 KiB do not get there."""


class Misled(Exception):
    """A symbolic link of the image leads the path into a tree in which nothing may be reserved."""


class NotSo(Exception):
    """A reserved mount is not what the policy wants. `can_place`: mounting it on top would correct that.

    `row`: the only mount at its path, if there is one.
    """

    def __init__(self, message: str, can_place: bool = False, row: "Row | None" = None) -> None:
        super().__init__(message)
        self.can_place = can_place
        self.row = row


class Place:
    """The place that a path leads to. `close` closes its descriptors.

    `fd`: descriptor of the last component, -1 if a component is missing. `path`: the path from the container's root,
    with symbolic links resolved; missing components are taken as they are written. `missing`: the components from the
    first missing one on. `parent`: descriptor of the directory that holds the first missing component, else -1.
    `crossed`: (mount id, path) of every directory and symbolic link that the walk passed through, in order. `links`:
    the entries of `crossed` that are symbolic links.
    """

    def __init__(self, fd: int, path: str, missing: list[str], parent: int, way: "_Way") -> None:
        self.fd = fd
        self.path = path
        self.missing = missing
        self.parent = parent
        self.crossed = way.crossed
        self.links = way.links

    def close(self) -> None:
        """Close the descriptors."""
        for fd in {self.fd, self.parent} - {-1}:
            posix.close(fd)


class _Way:
    """The state of a walk: a stack of opened directories and at last the last component, the root first."""

    def __init__(self, root: int) -> None:
        self.stack: list[tuple[str, int]] = [("", posix.dup(root))]
        self.crossed: list[tuple[int, str]] = []
        self.links: list[tuple[int, str]] = []

    def path(self) -> str:
        return "/".join(name for name, _ in self.stack) or "/"

    def cross(self, fd: int, path: str) -> tuple[int, str]:
        """Record a directory or symbolic link that the walk passes through."""
        self.crossed.append((mount_id(fd), path))
        return self.crossed[-1]

    def back(self, depth: int) -> None:
        """Close and remove the directories beyond a depth."""
        while len(self.stack) > depth:
            posix.close(self.stack.pop()[1])


def walk(root: int, path: str, everywhere: bool = False) -> Place:
    """Walk an absolute path from a root. Raises OSError; Misled for a path into /proc, /sys or /dev.

    `everywhere`: walk into these trees too.
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
                raise Misled(f"leads to {named(_written(here, pending))}, in a tree that the runtime builds")
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


def open_walked(root: int, path: str) -> int:
    """As open_in_root, without openat2(2), whose flags no filter of system calls can see (hook.linux.rights)."""
    place = walk(root, path, everywhere=True)
    if place.fd < 0:
        place.close()
        raise FileNotFoundError(errno.ENOENT, posix.strerror(errno.ENOENT), path)
    return place.fd


class Walks:
    """Walks to many paths, also in /proc, /sys and /dev: those in one directory have the way to it in common.

    At most _KEPT directories are kept open: a container can have devices in very many.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._directories: dict[str, tuple[Place, list[tuple[int, str]]]] = {}

    def to(self, path: str) -> tuple[str, list[tuple[int, str]], list[tuple[int, str]]]:
        """`path`, `crossed` and `links` of the place that an absolute path leads to. Raises OSError, Misled."""
        above, _, name = path.rpartition("/")
        directory, crossed = self._directory(above)
        if name not in ("", ".", "..") and directory.fd >= 0:
            try:
                is_link = posix.stat(name, dir_fd=directory.fd, follow_symlinks=False).st_mode & _S_IFMT == _S_IFLNK
            except FileNotFoundError:
                is_link = False
            if not is_link:
                return directory.path.rstrip("/") + "/" + name, crossed, directory.links
        place = walk(self._root, path, everywhere=True)
        place.close()
        return place.path, place.crossed, place.links

    def _directory(self, path: str) -> tuple[Place, list[tuple[int, str]]]:
        found = self._directories.get(path)
        if found is None:
            place = walk(self._root, path, everywhere=True)
            own = [(mount_id(place.fd), place.path)] if place.fd >= 0 else []
            if len(self._directories) >= _KEPT:
                self._directories.pop(next(iter(self._directories)))[0].close()
            found = self._directories[path] = place, place.crossed + own
        return found

    def close(self) -> None:
        """Close the descriptors."""
        for place, _ in self._directories.values():
            place.close()


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
    """A line of /proc/PID/mountinfo (proc(5)). `point`: the mount point, from that process's root."""

    __slots__ = ("_rest", "device", "id", "parent", "point", "root")

    def __init__(self, line: str) -> None:
        number, parent, self.device, root, point, self._rest = line.split(" ", 5)
        self.id, self.parent = int(number), int(parent)
        self.root, self.point = (_plain(root), _plain(point)) if "\\" in line else (root, point)

    @property
    def options(self) -> list[str]:
        """Options of the mount, not of its file system."""
        return self._rest.split(" ", 1)[0].split(",")

    @property
    def shared(self) -> bool:
        """Whether what is mounted on it appears in other mount namespaces (mount_namespaces(7))."""
        return " shared:" in self._rest.partition(" - ")[0]

    @property
    def unbindable(self) -> bool:
        """Whether the mount is unbindable: `rbind` does not copy it."""
        return "unbindable" in self._rest.partition(" - ")[0].split(" ")[1:]

    @property
    def filesystem(self) -> str:
        """Type of the file system."""
        fields = self._rest.split(" ")
        return fields[fields.index("-") + 1]


def mount_table(pid: int) -> dict[int, Row]:
    """The mounts of a process's mount namespace by id; 0: of this process. Raises OSError."""
    return _table(read_file(f"/proc/{pid or 'self'}/mountinfo", _TABLE_LIMIT))


def mount_table_at(fd: int) -> dict[int, Row]:
    """The mounts in an opened mountinfo. Raises OSError."""
    return _table(read_fd(fd, _TABLE_LIMIT, "mountinfo"))


def _table(data: bytes) -> dict[int, Row]:
    """Lines are split at newlines only: the kernel does not escape the other separators of str.splitlines."""
    rows = [Row(line) for line in data.decode("utf-8", "surrogateescape").split("\n") if line]
    return {row.id: row for row in rows}


def _plain(field: str) -> str:
    """Without the octal escapes that proc(5) lists."""
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
