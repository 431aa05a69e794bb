"""A log file with rotation by its writers. Part of the start path: builtins only.

Many processes append at once: container starts, hooks, the NRI plugin. Each opens the file, writes one line with one
write(2) and closes it, so no process has to be signalled after a rotation. A process that has the file open during the
rename writes its line into the renamed file. No call blocks: the lock is tried once, and a process that does not get it
appends its line without a rotation.
"""

import posix

from hook.core.base.system import append_line, exists, is_file, open_to_append

LIMIT = 64 << 20
"""Maximum size of a log file in bytes. A line that would exceed it goes into a new file."""

OVERDUE = 8 << 20
"""Bytes above its limit at which a log file is rotated even though another process, such as a reader, locks it."""

KEPT = 4
"""Number of rotated files that are kept: `PATH.1` (the newest) to `PATH.4`."""

LOST = "/run/reassert/lost-events"
"""Its size is the number of lines that the node's event log did not take since the node was booted."""

_OF_THE_NODE = "/var/log/reassert/"

_FLAGS = posix.O_NOCTTY | posix.O_NOFOLLOW | posix.O_NONBLOCK  # open(2) of a FIFO blocks without O_NONBLOCK


def append(path: str, line: bytes, limit: int = LIMIT, kept: int = KEPT) -> None:
    """Append a line and a newline. A missing file or directory is made. Raises OSError."""
    line += b"\n"
    fd, status = _open(path)
    try:
        if status.st_size + len(line) > limit and status.st_size:
            fd = _rotated(path, fd, status, kept, limit)
        _write(fd, line)
    finally:
        posix.close(fd)


def try_to_append(path: str, text: str, limit: int = LIMIT, kept: int = KEPT, journal: bool = False) -> bool:
    """Append a line of ASCII text; whether the file took it. A file or journal that cannot be written is no error.

    `journal`: send it to systemd's journal too, as each line that the node's event log does not take: a container that
    has the log as a read-only volume can get a lease on it (fcntl(2)). The last three are hook.core.events.SETTINGS.
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
            from hook.core.base.journal import send

            send(text)
        except Exception:  # noqa: S110  # nothing about a log stops a container
            pass
    return taken


def _open(path: str) -> "tuple[int, posix.stat_result]":
    """The log file, open, and its status. Raises OSError, also unless it is a regular file of root or of this user."""
    fd = open_to_append(path, 0o600, _FLAGS)
    status = posix.fstat(fd)
    if is_file(status) and status.st_uid in (0, posix.geteuid()):
        return fd, status
    posix.close(fd)
    raise OSError(22, "not a regular file owned by root", path)


def _rotated(path: str, fd: int, status: posix.stat_result, kept: int, limit: int) -> int:
    """The descriptor to append to after a rotation: the new file's, or `fd` if the file could not be renamed."""
    if not _rename(path, fd, status, kept, status.st_size > limit + OVERDUE):
        return fd
    try:
        new, fresh = _open(path)
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


def _rename(path: str, fd: int, status: posix.stat_result, kept: int, overdue: bool) -> bool:
    """Rotate the files. Returns whether `path` no longer names the open file, whichever process renamed it.

    Only the process that holds the lock on the current log file renames, and it renames that file last. So two
    processes never rename the rotated files at the same time. The lock is flock(2)'s: it belongs to the descriptor, so
    it works between threads, and it ends with the process. `overdue`: rename without it: a process that only reads the
    log can lock it too. Then the lock on this mount namespace's own file counts, which no container can open.
    """
    alone = -1
    try:
        import fcntl  # an extension module in some builds of Python, and rarely needed

        alone = posix.open("/proc/self/ns/mnt", posix.O_RDONLY | posix.O_CLOEXEC)
        for lock, is_needed in ((alone, overdue), (fd, not overdue)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if is_needed:
                    return False
        here = posix.lstat(path)
        if (here.st_dev, here.st_ino) != (status.st_dev, status.st_ino):
            return True
        free = 1
        while free < kept and exists(f"{path}.{free}"):
            free += 1
        for number in range(free - 1, 0, -1):
            posix.rename(f"{path}.{number}", f"{path}.{number + 1}")
        posix.rename(path, f"{path}.1")
    except FileNotFoundError:
        return not exists(path)  # another rotation is between its rename and the new file
    except (OSError, ImportError):
        return False
    finally:
        if alone >= 0:
            posix.close(alone)
    return True


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
