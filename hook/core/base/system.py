"""File operations with `posix` alone: importing `os` or `pathlib` costs more than a decision."""

from __future__ import annotations

import posix
import sys
import time
from collections.abc import Callable

from hook.core.base.errors import ReassertError, TooLarge, Undecided
from hook.core.base.text import message

SYMLINK_LIMIT = 40
"""Maximum number of symbolic links in a path; Linux's own limit, see path_resolution(7)."""

_S_IFMT, _S_IFLNK, _S_IFREG, _S_IFDIR = 0o170000, 0o120000, 0o100000, 0o040000
_WRITABLE_BY_GROUP, _WRITABLE_BY_OTHERS = 0o020, 0o002


class Untrusted(ReassertError):
    """A user other than root can write to a file or replace it."""

    def __init__(self, why: str, remedy: str) -> None:
        self.why = why
        """The reason."""
        self.remedy = remedy
        """The command against it."""
        super().__init__(f"{why} ({remedy})")


def is_file(status: posix.stat_result) -> bool:
    """Whether it is a regular file."""
    return status.st_mode & _S_IFMT == _S_IFREG


def is_directory(status: posix.stat_result) -> bool:
    """Whether it is a directory."""
    return status.st_mode & _S_IFMT == _S_IFDIR


def is_link(path: str) -> bool:
    """Whether a path is a symbolic link."""
    try:
        return posix.lstat(path).st_mode & _S_IFMT == _S_IFLNK
    except OSError:
        return False


def exists(path: str) -> bool:
    """Whether something is at a path, also a dangling symbolic link. Raises OSError if that is unknown."""
    try:
        posix.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _is_roots(status: posix.stat_result) -> bool:
    """Whether only root can change a file. The mode of a symbolic link has no effect; its directory is checked."""
    writable = status.st_mode & _WRITABLE_BY_OTHERS or (status.st_mode & _WRITABLE_BY_GROUP and status.st_gid != 0)
    return status.st_uid == 0 and (not writable or status.st_mode & _S_IFMT == _S_IFLNK)


def trusted(path: str) -> posix.stat_result:
    """The status of the file at an absolute path, if only root can change what is read there.

    Every directory of the path, every symbolic link and the file itself must be owned by root and not writable by
    others. Symbolic links are resolved here, one component at a time, so that every directory is checked.

    Raises Untrusted for another owner or mode, OSError if the path does not exist.
    """
    pending = path.split("/")[::-1]
    current, hops = "/", 0
    while True:
        status = posix.lstat(current)
        above = current.rpartition("/")[0] or "/"
        if not _is_roots(status):
            raise Untrusted(*ownership_problem(current, status))
        if status.st_mode & _S_IFMT == _S_IFLNK:
            hops += 1
            if hops > SYMLINK_LIMIT:
                raise OSError(40, "Too many levels of symbolic links", path)
            target = posix.readlink(current)
            pending += target.split("/")[::-1]
            current = "/" if target.startswith("/") else above
            continue
        while pending and pending[-1] in ("", "."):
            pending.pop()
        if not pending:
            return status
        part = pending.pop()
        current = above if part == ".." else current.rstrip("/") + "/" + part


_CHUNK = 64 * 1024
"""Bytes per read(2). It is below the size from which malloc calls mmap(2) for each buffer."""


def read_fd(fd: int, limit: int, name: str, expected: int = 0) -> bytes:
    """All bytes of a descriptor, at most `limit`; with one read(2) if their number is `expected`.

    `name`: the name in the error message. Raises TooLarge, OSError.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        chunk = posix.read(fd, max(_CHUNK, min(expected, limit) + 1 - size))
        if expected and not chunks and len(chunk) == expected <= limit:
            return chunk  # fewer bytes than were asked for: the end of a regular file
        if not chunk:
            return b"".join(chunks)
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"{name} is larger than the limit of {limit} bytes")
        chunks.append(chunk)


_WAITING: list[bool] = []


def wait_for_leases() -> None:
    """From now on `read_file` may wait for the end of a lease (fcntl(2), F_SETLEASE), up to fs.lease-break-time.

    A cold start does: it answers no other start. The agent then lets one read the file, and the NRI plugin refuses
    the container, because a runtime disconnects a plugin that does not answer in time.
    """
    _WAITING.append(True)


def _opened_to_read(path: str, waits: bool) -> int:
    """A descriptor of a file. Does not wait for a FIFO's writer. Raises Undecided, OSError."""
    try:
        return posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except BlockingIOError:
        if not (waits and _WAITING):
            raise
    leased = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
    try:
        if not is_file(posix.fstat(leased)):
            raise Undecided(f"{path} is not a regular file")
        return posix.open(f"/proc/self/fd/{leased}", posix.O_RDONLY | posix.O_CLOEXEC)
    finally:
        posix.close(leased)


def read_file(path: str, limit: int, waits: bool = False) -> bytes:
    """All bytes of a regular file, at most `limit`. Raises TooLarge, Undecided for another type of file, OSError.

    `waits`: for the end of a lease, after `wait_for_leases`. Without it an open(2) fails that would wait.
    """
    fd = _opened_to_read(path, waits)
    try:
        status = posix.fstat(fd)
        if not is_file(status):
            raise Undecided(f"{path} is not a regular file")
        return read_fd(fd, limit, path, status.st_size)
    finally:
        posix.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, with as many write(2) calls as that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def temporary_of(path: str, pid: int) -> str:
    """The temporary file that the agent writes for a process, and that the same process removes in a cold start."""
    directory, _, name = path.rpartition("/")
    return f"{directory or '.'}/.{name}.reassert-{pid}"


def replace_file(
    path: str,
    data: bytes,
    *,
    mode: int = 0o600,
    temporary: str = "",
    before_rename: Callable[[], None] | None = None,
) -> None:
    """Replace a file's content atomically: temporary file in the same directory, fsync, rename.

    An existing file's owner, mode and SELinux label are kept; a new file gets `mode`. A reader gets either the old
    bytes or the new ones. On an error the old file is unchanged and the temporary file is removed. `temporary`: its
    path, "" for one of its own. `before_rename`: may raise. Raises OSError.
    """
    temporary = temporary or f"{temporary_of(path, posix.getpid())}-{time.monotonic_ns()}"
    try:
        owner = posix.stat(path)
    except FileNotFoundError:
        owner = None
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    fd = posix.open(temporary, flags, 0o600)
    try:
        try:
            write_all(fd, data)
            if owner is not None:
                posix.fchown(fd, owner.st_uid, owner.st_gid)
                mode = owner.st_mode & 0o7777
                _keep_label(path, fd)
            posix.fchmod(fd, mode)
            posix.fsync(fd)
        finally:
            posix.close(fd)
        if before_rename:
            before_rename()
        posix.rename(temporary, path)
    except BaseException:
        try:
            posix.unlink(temporary)
        except OSError:
            pass
        raise


def _keep_label(path: str, fd: int) -> None:
    """Gives a new file the SELinux label of the one that it replaces.

    In /tmp a file has the label of its writer's domain. The engine may not read the agent's.
    """
    label = _label(path)
    if label in (b"", _label(fd)):
        return
    try:
        posix.setxattr(fd, "security.selinux", label)
    except OSError:  # the policy does not allow that
        pass


def _label(file: str | int) -> bytes:
    """The SELinux label of a file, by its path or descriptor; b"" for none."""
    try:
        return posix.getxattr(file, "security.selinux")
    except OSError:
        return b""


def own_command() -> list[str]:
    """The command that starts this program again: the frozen executable, or python and the package's path."""
    if hasattr(sys, "_MEIPASS"):
        return [sys.executable]
    return [sys.executable, __file__.rpartition("/core/")[0] + "/__main__.py"]


def timestamp(nanoseconds: int) -> str:
    """Nanoseconds since the epoch as an RFC 3339 timestamp in UTC with microseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 1_000_000_000))
    return f"{seconds}.{nanoseconds // 1000 % 1_000_000:06d}Z"


_SHORT = (24, 23, 12, 28, 122, 11)
"""EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT, and EAGAIN of fork(2), by number: a start would execute `errno` for these."""


def is_shortage(error: BaseException | None) -> bool:
    """Whether descriptors, memory, disk space or processes ran out, in an error or its cause, whatever its path."""
    if isinstance(error, OSError):
        return error.errno in _SHORT
    return error is not None and is_shortage(error.__cause__)


def make_directory(path: str, mode: int) -> None:
    """Make a directory, with its missing parents. An existing one is no error. Raises OSError."""
    try:
        posix.mkdir(path, mode)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_directory(path.rstrip("/").rpartition("/")[0] or "/", mode)
        try:
            posix.mkdir(path, mode)
        except FileExistsError:  # another process has made it
            pass


def open_to_append(path: str, mode: int, flags: int = 0, directory: int | None = None) -> int:
    """A descriptor to append to a file. A missing file or directory is made. Raises OSError.

    `directory`: a descriptor of the one in which the path begins.
    """
    flags |= posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC
    try:
        return posix.open(path, flags, mode, dir_fd=directory)
    except FileNotFoundError:
        if directory is not None:  # removed meanwhile
            raise
        make_directory(path.rpartition("/")[0] or "/", 0o750)
        return posix.open(path, flags, mode)


def append_line(path: str, line: bytes, mode: int = 0o600) -> None:
    """Append one line to an engine's file. A missing file or directory is made. Raises OSError."""
    fd = open_to_append(path, mode)
    try:
        write_all(fd, line + b"\n")
    finally:
        posix.close(fd)


def ownership_problem(path: str, status: posix.stat_result) -> tuple[str, str]:
    """Why a user other than root can change a file for which this is so (`trusted`), and the command against that."""
    if status.st_uid != 0:
        return f"{path} belongs to uid {status.st_uid}; it must belong to root", f"chown root {path}"
    mode = f"{status.st_mode & 0o7777:04o}"
    return f"{path} is writable by others (mode {mode}); only root may write it", f"chmod go-w {path}"


def say(text: str, is_hook: bool = False) -> None:
    """Print one line on standard error, with control characters escaped. A closed standard error is no error.

    `is_hook`: on the runtime's, if this process is a hook whose own the runtime may have opened for an annotation.
    """
    try:
        stderr = hooks_stderr("self") if is_hook else OWN_STDERR
        if stderr != NO_STDERR:
            write_all(2 if stderr == OWN_STDERR else stderr, f"reassert: {message(text)}\n".encode())
    except OSError:
        pass


def stat_of(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the state on (proc_pid_stat(5)). Raises OSError.

    The name of the program is before them, which may have any byte.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2].decode().split()


OWN_STDERR, NO_STDERR = -1, -2


def hooks_stderr(pid: int | str) -> int:
    """Where a hook may write: OWN_STDERR, a descriptor of its runtime's, which this opens, or NO_STDERR.

    runc gives hooks a pipe. crun gives them /dev/null, or a file of the node that the annotation run.oci.hooks.stderr
    names and that crun opens as root. Other hooks pass on their own, which is also the parent's. An engine reads the
    runtime's, and the runtime has it open for writing. `pid`: of the process, or "self".
    """
    try:
        if posix.readlink(f"/proc/{pid}/fd/2").startswith(("pipe:[", "socket:[")):
            return OWN_STDERR
        own = posix.stat(f"/proc/{pid}/fd/2")
        parent = int(stat_of(pid)[1])
        if parent <= 1:
            return NO_STDERR
        runtimes = posix.stat(f"/proc/{parent}/fd/2")
        if (own.st_dev, own.st_ino) == (runtimes.st_dev, runtimes.st_ino):
            return OWN_STDERR
        with open(f"/proc/{parent}/fdinfo/2", "rb") as file:
            access = int(file.read().partition(b"flags:")[2].split()[0], 8) & (posix.O_WRONLY | posix.O_RDWR)
        if access:
            flags = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
            return posix.open(f"/proc/{parent}/fd/2", flags)
    except (OSError, ValueError, IndexError):
        pass
    return NO_STDERR


def discard_output() -> None:
    """Redirect standard output to /dev/null, if it cannot be written: it is closed, or the disk is full."""
    posix.dup2(posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC), 1)
