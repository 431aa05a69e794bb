"""Operations on files and descriptors that few container starts need. Part of the start path: builtins only."""

import errno
import posix

from hook.core.base.system import write_all
from hook.core.base.text import message

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)  # EAGAIN: fork(2)


def is_shortage(error: "BaseException | None") -> bool:
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
        except FileExistsError:  # another process made it meanwhile
            pass


def open_to_append(path: str, mode: int, flags: int = 0) -> int:
    """A descriptor to append to a file. A missing file or directory is made. Raises OSError."""
    flags |= posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC
    try:
        return posix.open(path, flags, mode)
    except FileNotFoundError:
        make_directory(path.rpartition("/")[0] or "/", 0o750)
        return posix.open(path, flags, mode)


def append_line(path: str, line: bytes, mode: int = 0o600) -> None:
    """Append one line to an engine's file. A missing file or directory is made. Raises OSError."""
    fd = open_to_append(path, mode)
    try:
        write_all(fd, line + b"\n")
    finally:
        posix.close(fd)


def ownership_problem(path: str, status: posix.stat_result) -> str:
    """Why a user other than root can change a file for which this is so (hook.core.base.system.trusted)."""
    if status.st_uid != 0:
        return f"{path} belongs to uid {status.st_uid}; it must belong to root (chown root {path})"
    mode = f"{status.st_mode & 0o7777:04o}"
    return f"{path} is writable by others (mode {mode}); only root may write it (chmod go-w {path})"


def say(text: str, is_hook: bool = False) -> None:
    """Print one line on standard error, with control characters escaped. A closed standard error is no error.

    `is_hook`: on the runtime's, if this process is a hook whose own the runtime may have opened for an annotation.
    """
    try:
        stderr = hooks_stderr("self") if is_hook else OWN
        if stderr != NONE:
            write_all(2 if stderr == OWN else stderr, f"reassert: {message(text)}\n".encode())
    except OSError:
        pass


OWN, NONE = -1, -2


def hooks_stderr(pid: "int | str") -> int:
    """Where a hook may write: OWN standard error, a descriptor of its runtime's, which this opens, or NONE.

    runc gives hooks a pipe. crun gives them /dev/null, or a file of the node that the annotation run.oci.hooks.stderr
    names and that crun opens as root. Others pass on their own, which is the parent's too. An engine reads the
    runtime's, and the runtime has it open for writing. `pid`: of the process, or "self".
    """
    try:
        if posix.readlink(f"/proc/{pid}/fd/2").startswith(("pipe:[", "socket:[")):
            return OWN
        own = posix.stat(f"/proc/{pid}/fd/2")
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])  # proc(5); its name may have any byte
        if parent <= 1:
            return NONE
        runtimes = posix.stat(f"/proc/{parent}/fd/2")
        if (own.st_dev, own.st_ino) == (runtimes.st_dev, runtimes.st_ino):
            return OWN
        with open(f"/proc/{parent}/fdinfo/2", "rb") as file:
            access = int(file.read().partition(b"flags:")[2].split()[0], 8) & (posix.O_WRONLY | posix.O_RDWR)
        if access:
            flags = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
            return posix.open(f"/proc/{parent}/fd/2", flags)
    except (OSError, ValueError, IndexError):
        pass
    return NONE


def discard_output() -> None:
    """Redirect standard output to /dev/null. For a standard output that cannot be written: closed, or a full disk."""
    posix.dup2(posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC), 1)
