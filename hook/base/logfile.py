"""A log file that rotates by itself, whoever appends. Part of the start path: builtins only.

Many processes append at once: container starts, hooks, the NRI plugin. Each opens the file, writes one line with one
write(2) and closes it, so nobody has to be told of a rotation. A line of a process that had the file open while it was
renamed goes into the renamed file. Nothing here waits: the lock is tried once, and whoever does not get it appends.
"""

import posix

from hook.base.system import is_file, make_directory

LIMIT = 64 << 20
"""Bytes that a log file may have; the line that would exceed them begins a new one."""

KEPT = 4
"""Old files that are kept, `PATH.1` (the newest) to `PATH.4`."""

_FLAGS = (
    posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOCTTY
    | posix.O_NOFOLLOW | posix.O_NONBLOCK  # a FIFO would be waited for
)  # fmt: skip


def append(path: str, line: bytes, limit: int = LIMIT, kept: int = KEPT) -> None:
    """Append a line, and a newline, making the file and its directory if needed. Raises OSError."""
    line += b"\n"
    fd, status = _open(path)
    try:
        if status.st_size + len(line) > limit and status.st_size:
            fd = _rotated(path, fd, status, kept)
        _write(fd, line)
    finally:
        posix.close(fd)


def _open(path: str) -> "tuple[int, posix.stat_result]":
    """The file to append to and its status. Raises OSError, for what is not a regular file of root's or ours too."""
    try:
        fd = posix.open(path, _FLAGS, 0o600)
    except FileNotFoundError:
        make_directory(path.rpartition("/")[0] or "/", 0o750)
        fd = posix.open(path, _FLAGS, 0o600)
    status = posix.fstat(fd)
    if is_file(status) and status.st_uid in (0, posix.geteuid()):
        return fd, status
    posix.close(fd)
    raise OSError(22, "not a regular file of root's", path)


def _rotated(path: str, fd: int, status: posix.stat_result, kept: int) -> int:
    """The descriptor to append to after a rotation: the new file's, or the same where nothing could be renamed."""
    if not _rename(path, fd, status, kept):
        return fd
    try:
        new, fresh = _open(path)
    except OSError:  # the renamed file takes the line
        return fd
    try:  # who may read the log, may read the new one
        if (fresh.st_uid, fresh.st_gid) != (status.st_uid, status.st_gid):
            posix.fchown(new, status.st_uid, status.st_gid)
        if fresh.st_mode != status.st_mode:
            posix.fchmod(new, status.st_mode & 0o777)
    except OSError:
        pass
    posix.close(fd)
    return new


def _rename(path: str, fd: int, status: posix.stat_result, kept: int) -> bool:
    """Whether the file at `path` is another one now than the one that is open.

    Only who holds the lock on the file that `path` names renames anything, and that file is the last to be renamed:
    two processes never move the old files at the same time. The lock is flock(2)'s, which belongs to the descriptor,
    so threads exclude each other too; it ends with the descriptor, so nobody who dies leaves it behind.
    """
    try:
        import fcntl  # an extension module for some Pythons, and needed once in LIMIT bytes

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here = posix.lstat(path)
    except FileNotFoundError:
        return True  # another rotation is between its rename and the new file
    except (OSError, ImportError):
        return False  # somebody else is at it
    if (here.st_dev, here.st_ino) != (status.st_dev, status.st_ino):
        return True
    try:
        free = 1
        while free < kept and _exists(f"{path}.{free}"):
            free += 1
        for number in range(free - 1, 0, -1):
            posix.rename(f"{path}.{number}", f"{path}.{number + 1}")
        posix.rename(path, f"{path}.1")
    except OSError:
        return False
    return True


def _exists(path: str) -> bool:
    try:
        posix.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _write(fd: int, line: bytes) -> None:
    """Write the line, wholly or not at all: half a line would spoil the next one as well. Raises OSError."""
    written = posix.write(fd, line)
    try:
        while written < len(line):
            written += posix.write(fd, line[written:])
    except OSError:  # the disk is full
        end = posix.lseek(fd, 0, 1)
        if posix.fstat(fd).st_size == end:  # nobody has appended since
            posix.ftruncate(fd, end - written)
        raise
