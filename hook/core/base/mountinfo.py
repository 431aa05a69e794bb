"""Mounts as the kernel lists them, in /proc/PID/mountinfo."""

from __future__ import annotations

import errno
import posix
from collections.abc import Callable, Iterable, Sequence

from hook.core.base.errors import TooLarge
from hook.core.base.system import SYMLINK_LIMIT, read_file

_CHUNK = 64 * 1024
_BYTES, _ROWS, _MEMORY = 64 << 20, 50_000, 32 << 20
"""How much of a mountinfo is read, and how much of that is kept, in mounts and in bytes of memory.

A pod's author multiplies mounts: each volume brings what the node has mounted below it, and a path has 4 KiB. A node
with 500 pods has some 10,000 mounts. Most bytes of their lines are options of overlay file systems: these are not kept.
"""


_NAMES = """
bcachefs bpf btrfs cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs erofs ext2 ext3 ext4 f2fs hugetlbfs iso9660
jfs mqueue nsfs overlay proc pstore ramfs reiserfs rootfs securityfs squashfs sysfs tmpfs tracefs udf vfat xfs zfs
"""
LOCAL = frozenset(_NAMES.split())
"""File systems that answer from this machine. Any other, such as nfs4, ceph, fuse and autofs, may wait for another
machine or for a process."""

_PATH = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
_S_IFMT, _S_IFLNK = 0o170000, 0o120000


class Row:
    """A line of /proc/PID/mountinfo (proc(5))."""

    __slots__ = ("_rest", "device", "id", "parent", "point", "root")

    def __init__(self, line: str) -> None:
        number, parent, self.device, root, point, self._rest = line.split(" ", 5)
        self.id, self.parent = int(number), int(parent)
        has_escapes = "\\" in line
        self.root = _plain(root) if has_escapes else root
        """The directory of its file system that is mounted."""
        self.point = _plain(point) if has_escapes else point
        """The mount point, from the process's root."""

    def bound(self, number: int, point: str, path: str, *, options: Sequence[str] = (), parent: int = 0) -> Row:
        """The row of a bind mount of a path in this mount that was not made. `path`: below its point.

        `options`: of the new mount; none: as of this one.
        """
        row = object.__new__(Row)
        row.id, row.parent, row.device, row.point = number, parent, self.device, point
        row.root = (self.root.rstrip("/") + path) or "/"
        row._rest = f"{','.join(options or self.options)} - {self.filesystem}"
        return row

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


def mount_table(pid: int | str, still_waits: Callable[[], None] = lambda: None) -> dict[int, Row]:
    """The mounts of a process's mount namespace by id; 0: of this process, "thread-self": of this thread.

    `still_waits`: called now and then, and may raise. Raises TooLarge, OSError.
    """
    fd = posix.open(f"/proc/{pid or 'self'}/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return mount_table_at(fd, still_waits)
    finally:
        posix.close(fd)


def mount_table_at(fd: int, still_waits: Callable[[], None] = lambda: None) -> dict[int, Row]:
    """The mounts in an opened mountinfo. Raises TooLarge, OSError."""
    rows: dict[int, Row] = {}
    rest, size, kept, asked_at = b"", 0, 0, 0
    while chunk := posix.read(fd, _CHUNK):
        size += len(chunk)
        lines, newline, after = chunk.rpartition(b"\n")
        if newline:
            kept += _add((rest + lines).decode("utf-8", "surrogateescape"), rows)
            rest = after
        else:
            rest += chunk
        if size > _BYTES or len(rows) > _ROWS or kept > _MEMORY:
            raise TooLarge(
                f"the container's mount namespace has too many mounts, or too long ones: {len(rows)} and more"
            )
        if size - asked_at > _CHUNK:
            asked_at = size
            still_waits()
    return rows


def _add(lines: str, rows: dict[int, Row]) -> int:
    """Add rows without source and options of the file system; returns how much memory their text takes.

    Lines are split at newlines only: the kernel does not escape the other separators of str.splitlines.
    """
    kept = 0
    for line in lines.split("\n"):
        text = line[: line.find(" ", line.find(" - ") + 3)]
        row = Row(text)
        rows[row.id] = row
        kept += text.__sizeof__()
    return kept


def overlay_directories(pid: int, number: int) -> list[tuple[str, bool]]:
    """The directories that an overlay is made of, and whether each is its workdir, by the options of its file system.

    `pid`: of a process in its mount namespace, 0: of this process. `number`: its id. Relative paths are left out.
    Raises TooLarge, OSError.
    """
    text = b"\n" + read_file(f"/proc/{pid or 'self'}/mountinfo", _BYTES)
    _, _, line = text.partition(b"\n%d " % number)
    options = line.partition(b"\n")[0].decode("utf-8", "surrogateescape").rpartition(" ")[2]
    directories: list[tuple[str, bool]] = []
    for option in options.split(","):
        name, _, value = option.partition("=")
        if name.rstrip("+") in ("upperdir", "workdir", "lowerdir"):
            paths = _plain(value).replace("\\:", "\0").split(":")  # `:` in a name is `\:` (overlay's lowerdir)
            directories += [(path.replace("\0", ":"), name == "workdir") for path in paths if path[:1] == "/"]
    return directories


def descendants(number: int, point: str, rows: Iterable[Row]) -> list[Row]:
    """Those of some mounts that are descendants of mount `number`, at a path below `point`; parents first."""
    children: dict[int, list[Row]] = {}
    for row in rows:
        if row.point.startswith(point + "/"):
            children.setdefault(row.parent, []).append(row)
    below, todo = [], [number]
    while todo:
        more = children.pop(todo.pop(), [])
        below += more
        todo += [row.id for row in more]
    return below


def _plain(field: str) -> str:
    """Without the octal escapes that proc(5) lists."""
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def reach(path: str, is_ours: bool = True) -> int:
    """An O_PATH descriptor of a file of the node, found without a wait for a file system that may never answer.

    Who may write to /dev can make a link there to such a file system. So after the first link no file system is entered
    that is not LOCAL; with `is_ours` False not before it either. Only the kernel's own records of a descriptor and of
    mounts are read before that. Raises OSError, with EXDEV at such a file system.
    """
    fd, links = posix.open("/", _PATH), 0
    mount = 0 if is_ours else _mount_of(fd)  # 0: any file system may be entered
    pending = path.split("/")[::-1]
    try:
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            above, fd = fd, posix.open(part, _PATH, dir_fd=fd)
            try:
                mount = _entered(mount, fd) if mount else 0
                if posix.fstat(fd).st_mode & _S_IFMT != _S_IFLNK:
                    continue
                links += 1
                if links > SYMLINK_LIMIT:
                    raise OSError(errno.ELOOP, "too many links", path)
                target = posix.readlink("", dir_fd=fd)
                pending += target.split("/")[::-1]
                posix.close(fd)
                fd = posix.open("/", _PATH) if target.startswith("/") else posix.dup(above)
                mount = _mount_of(fd)
            finally:
                posix.close(above)
    except BaseException:
        posix.close(fd)
        raise
    return fd


def _mount_of(fd: int) -> int:
    """The id of the mount that a descriptor is of (proc(5), fdinfo). Raises OSError."""
    fields = read_file(f"/proc/self/fdinfo/{fd}", 4096).split()
    return int(fields[fields.index(b"mnt_id:") + 1])


def _entered(mount: int, fd: int) -> int:
    """The id of a descriptor's mount. Raises OSError if it is not `mount` and of a file system that is not LOCAL."""
    entered = _mount_of(fd)
    if entered != mount:
        row = mount_table("thread-self").get(entered)
        if row is None or row.filesystem not in LOCAL:
            raise OSError(errno.EXDEV, "on a file system that may not answer")
    return entered


def status_of(path: str) -> posix.stat_result:
    """The status of a file of the node, as `reach` finds it. Raises OSError."""
    fd = reach(path)
    try:
        return posix.fstat(fd)
    finally:
        posix.close(fd)
