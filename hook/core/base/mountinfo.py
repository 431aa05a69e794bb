"""Mounts as the kernel lists them, in /proc/PID/mountinfo. Part of the start path: builtins only."""

from hook.core.base.system import read_fd, read_file

_TABLE_LIMIT = 1 << 28
"""Bytes of a mountinfo: 100,000 mounts (fs.mount-max) with paths of 4 KiB do not get there."""


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


def mount_table(pid: "int | str") -> dict[int, Row]:
    """The mounts of a process's mount namespace by id; 0: of this process, "thread-self": of this thread.

    Raises OSError.
    """
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
