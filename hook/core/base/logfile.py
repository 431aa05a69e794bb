"""A log file with rotation by its writers.

Many processes append at once: container starts, hooks, the NRI plugin. Each opens the file, writes one line with one
write(2) and closes it, so no process has to be signalled after a rotation. A process that has the file open during the
rename writes its line into the renamed file. No call blocks: the lock is tried once, and a process that does not get it
appends its line without a rotation.
"""

from __future__ import annotations

import fcntl
import posix

from hook.core.base import journal as journald
from hook.core.base.system import append_line, is_file, make_directory, open_to_append

LOG_LIMIT = 64 << 20
"""Maximum size of a log file in bytes. A line that would exceed it goes into a new file."""

OVERDUE = 8 << 20
"""Bytes above its limit at which a log file is rotated even though another process, such as a reader, locks it."""

LOGS_KEPT = 4
"""Number of rotated files that are kept: `PATH.1` (the newest) to `PATH.4`."""

LOST = "/run/reassert/lost-events"
"""Its size is the number of lines that the node's event log did not take since the node was booted."""

LOCK = "/run/reassert/private/log.lock"
"""What a process locks that rotates a log which another process locks."""

_OF_THE_NODE = "/var/log/reassert/"

_FLAGS = posix.O_NOCTTY | posix.O_NOFOLLOW | posix.O_NONBLOCK  # open(2) of a FIFO blocks without O_NONBLOCK


def append(path: str, line: bytes, limit: int = LOG_LIMIT, kept: int = LOGS_KEPT) -> None:
    """Append a line and a newline. A missing file or directory is made. Raises OSError.

    Also if the directory of the node's event log is a symbolic link: agents that write to /var/log run as root.
    """
    line += b"\n"
    directory = None
    try:
        if path.startswith(_OF_THE_NODE):
            directory, path = _directory(_OF_THE_NODE[:-1]), path.removeprefix(_OF_THE_NODE)
        fd, status = _open(path, directory)
        try:
            if status.st_size + len(line) > limit and status.st_size:
                fd = _rotated(path, directory, fd, status=status, kept=kept, limit=limit)
            _write(fd, line)
        finally:
            posix.close(fd)
    finally:
        if directory is not None:
            posix.close(directory)


def try_to_append(path: str, text: str, limit: int = LOG_LIMIT, kept: int = LOGS_KEPT, journal: bool = False) -> bool:
    """Append a line of ASCII text; whether the file took it. A file or journal that cannot be written is no error.

    `journal`: send it to systemd's journal too, as each line that the node's event log does not take: a container that
    has the log as a read-only volume can get a lease on it (fcntl(2)). The last three are `Policy.event_log`.
    """
    taken = True
    try:
        append(path, text.encode("ascii"), limit, kept)
    except OSError:
        taken = path == "/dev/null"
        if path.startswith(_OF_THE_NODE):
            journal = True
            try:
                append_line(LOST, b"")  # a byte: atomic, and in memory, where a full disk does not matter
            except OSError:
                pass
    if journal:
        try:
            journald.send(text)
        except Exception:  # noqa: S110  # nothing about a log stops a container
            pass
    return taken


def _directory(path: str) -> int:
    """A descriptor of a directory, which is made if it is missing. Raises OSError, also for a symbolic link."""
    flags = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        return posix.open(path, flags)
    except FileNotFoundError:
        make_directory(path, 0o750)
        return posix.open(path, flags)


def _open(path: str, directory: int | None) -> tuple[int, posix.stat_result]:
    """The log file, open, and its status. Raises OSError, also unless it is a regular file of root or of this user.

    `directory`: where the path begins, if not at the root or the current directory.
    """
    fd = open_to_append(path, 0o600, _FLAGS, directory)
    status = posix.fstat(fd)
    if is_file(status) and status.st_uid in (0, posix.geteuid()):
        return fd, status
    posix.close(fd)
    raise OSError(22, "not a regular file owned by root", path)


def _rotated(path: str, directory: int | None, fd: int, *, status: posix.stat_result, kept: int, limit: int) -> int:
    """The descriptor to append to after a rotation: the new file's, or `fd` if the file could not be renamed."""
    if not _rename(path, directory, fd, status=status, kept=kept, overdue=status.st_size > limit + OVERDUE):
        return fd
    try:
        new, fresh = _open(path, directory)
    except OSError:  # the line goes into the renamed file
        return fd
    try:  # the new file gets the owner and mode of the old one
        if (fresh.st_uid, fresh.st_gid) != (status.st_uid, status.st_gid):
            posix.fchown(new, status.st_uid, status.st_gid)
        if fresh.st_mode != status.st_mode:
            posix.fchmod(new, status.st_mode & 0o777)
    except OSError:
        pass
    posix.close(fd)
    return new


def _rename(path: str, directory: int | None, fd: int, *, status: posix.stat_result, kept: int, overdue: bool) -> bool:
    """Rotate the files. Returns whether `path` no longer names the open file, whichever process renamed it.

    Only the process that holds the lock on the current log file renames, and it renames that file last. So two
    processes never rename the rotated files at the same time. The lock is flock(2)'s: it belongs to the descriptor, so
    it works between threads, and it ends with the process. `overdue`: rename without it: a process that only reads the
    log can lock it too. Then the lock on another file counts (`_open_second_lock`).
    """
    second_lock = -1
    try:
        second_lock = _open_second_lock()
        for lock, is_needed in ((second_lock, overdue), (fd, not overdue)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if is_needed:
                    return False
        here = posix.lstat(path, dir_fd=directory)
        if (here.st_dev, here.st_ino) != (status.st_dev, status.st_ino):
            return True
        free = 1
        while free < kept and _exists(f"{path}.{free}", directory):
            free += 1
        for number in range(free - 1, 0, -1):
            _move(f"{path}.{number}", f"{path}.{number + 1}", directory)
        _move(path, f"{path}.1", directory)
    except FileNotFoundError:
        return not _exists(path, directory)  # another rotation is between its rename and the new file
    except OSError:
        return False
    finally:
        if second_lock >= 0:
            posix.close(second_lock)
    return True


def _exists(path: str, directory: int | None) -> bool:
    try:
        posix.lstat(path, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


def _move(old: str, new: str, directory: int | None) -> None:
    posix.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)


def _open_second_lock() -> int:
    """A file for a lock that no user of the node and no container without a volume of /run can hold. Raises OSError.

    A user who cannot open it, as of rootless podman, has a log of this user, and locks its mount namespace.
    """
    try:
        make_directory(LOCK.rpartition("/")[0], 0o700)
        return posix.open(LOCK, posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600)
    except OSError:
        return posix.open("/proc/self/ns/mnt", posix.O_RDONLY | posix.O_CLOEXEC)


def _write(fd: int, line: bytes) -> None:
    """Write the whole line or nothing: the next line would be appended to half a line. Raises OSError."""
    written = posix.write(fd, line)
    try:
        while written < len(line):
            written += posix.write(fd, line[written:])
    except OSError:  # the disk is full
        end = posix.lseek(fd, 0, 1)
        if posix.fstat(fd).st_size == end:  # no other process has appended since
            posix.ftruncate(fd, end - written)
        raise
