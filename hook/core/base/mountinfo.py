"""Mounts as the kernel lists them, in /proc/PID/mountinfo. Part of the start path: builtins only."""

import posix

from hook.core.base.errors import TooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 64 * 1024
_BYTES, _ROWS, _MEMORY = 64 << 20, 50_000, 32 << 20
"""How much of a mountinfo is read, and how much of that is kept, in mounts and in bytes of memory.

A pod's author multiplies mounts: each volume brings what the node has mounted below it, and a path has 4 KiB. A node
with 500 pods has some 10,000 mounts. Most bytes of their lines are options of overlay file systems: these are not kept.
"""


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


def mount_table(pid: "int | str", still_waits: "Callable[[], None]" = lambda: None) -> dict[int, Row]:
    """The mounts of a process's mount namespace by id; 0: of this process, "thread-self": of this thread.

    `still_waits`: called now and then, and may raise. Raises TooLarge, OSError.
    """
    fd = posix.open(f"/proc/{pid or 'self'}/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return mount_table_at(fd, still_waits)
    finally:
        posix.close(fd)


def mount_table_at(fd: int, still_waits: "Callable[[], None]" = lambda: None) -> dict[int, Row]:
    """The mounts in an opened mountinfo. Raises TooLarge, OSError."""
    found: dict[int, Row] = {}
    rest, size, kept, asked_at = b"", 0, 0, 0
    while chunk := posix.read(fd, _CHUNK):
        size += len(chunk)
        lines, newline, after = chunk.rpartition(b"\n")
        if newline:
            kept += _add((rest + lines).decode("utf-8", "surrogateescape"), found)
            rest = after
        else:
            rest += chunk
        if size > _BYTES or len(found) > _ROWS or kept > _MEMORY:
            raise TooLarge(
                f"the container's mount namespace has too many mounts, or too long ones: {len(found)} and more"
            )
        if size - asked_at > _CHUNK:
            asked_at = size
            still_waits()
    return found


def _add(lines: str, found: dict[int, Row]) -> int:
    """Add rows without source and options of the file system; returns how much memory their text takes.

    Lines are split at newlines only: the kernel does not escape the other separators of str.splitlines.
    """
    kept = 0
    for line in lines.split("\n"):
        text = line[: line.find(" ", line.find(" - ") + 3)]
        row = Row(text)
        found[row.id] = row
        kept += text.__sizeof__()
    return kept


def _plain(field: str) -> str:
    """Without the octal escapes that proc(5) lists."""
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
