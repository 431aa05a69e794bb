"""Operations on files and descriptors that few container starts need. Part of the start path: builtins only."""

import posix

from hook.base.system import write_all
from hook.base.text import message


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


def say(text: str) -> None:
    """Print one line on standard error, with control characters escaped. A closed standard error is no error."""
    try:
        write_all(2, f"reassert: {message(text)}\n".encode())
    except OSError:
        pass


def use_parents_stderr() -> None:
    """Make standard error the parent's if it is /dev/null: crun starts hooks so, and engines read crun's own."""
    parent = posix.getppid()
    try:
        if parent > 1 and posix.fstat(2).st_rdev == posix.stat("/dev/null").st_rdev:
            flags = posix.O_WRONLY | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
            posix.dup2(posix.open(f"/proc/{parent}/fd/2", flags), 2)
    except OSError:
        pass


def discard_output() -> None:
    """Redirect standard output to /dev/null. For a standard output that cannot be written: closed, or a full disk."""
    posix.dup2(posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC), 1)
