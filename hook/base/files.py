"""Operations on files and descriptors that few container starts need. Part of the start path: builtins only."""

import errno
import posix

from hook.base.system import write_all
from hook.base.text import message

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
    """Why a user other than root can change a file for which this is so (hook.base.system.trusted)."""
    if status.st_uid != 0:
        return f"{path} belongs to uid {status.st_uid}; it must belong to root (chown root {path})"
    mode = f"{status.st_mode & 0o7777:04o}"
    return f"{path} is writable by others (mode {mode}); only root may write it (chmod go-w {path})"


def say(text: str, is_hook: bool = False) -> None:
    """Print one line on standard error, with control characters escaped. A closed standard error is no error.

    `is_hook`: on the runtime's, if this process is a hook that has none.
    """
    try:
        if is_hook and (stderr := parents_stderr("self")) >= 0:
            posix.dup2(stderr, 2)
        write_all(2, f"reassert: {message(text)}\n".encode())
    except OSError:
        pass


def parents_stderr(pid: "int | str") -> int:
    """Opens the standard error of a process's parent if the process's own is /dev/null, else returns -1.

    crun starts hooks with /dev/null, and engines read crun's own. `pid`: of the process, or "self".
    """
    try:
        if posix.stat(f"/proc/{pid}/fd/2").st_rdev == posix.stat("/dev/null").st_rdev:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])  # proc(5); its name may have any byte
            if parent > 1:
                flags = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
                return posix.open(f"/proc/{parent}/fd/2", flags)
    except (OSError, ValueError, IndexError):
        pass
    return -1


def discard_output() -> None:
    """Redirect standard output to /dev/null. For a standard output that cannot be written: closed, or a full disk."""
    posix.dup2(posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC), 1)
