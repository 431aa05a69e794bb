"""Files through `posix` alone. Part of the start path: builtins only.

`os`, `tempfile` and `pathlib` would be nicer to read and cost more than the whole decision
(docs/performance.md); these few functions are what the start path needs of them.
"""

import posix
import time

from hook.base.errors import ReassertError, TooLarge, Undecided
from hook.base.text import message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SYMLINK_LIMIT = 40
"""Hops after which a path counts as a loop; Linux's own limit, see path_resolution(7)."""

_S_IFMT, _S_IFLNK, _S_IFREG, _S_IFDIR = 0o170000, 0o120000, 0o100000, 0o040000
_WRITABLE_BY_GROUP, _WRITABLE_BY_OTHERS = 0o020, 0o002


class Untrusted(ReassertError):
    """A file that somebody other than root could have written."""


def is_file(status: posix.stat_result) -> bool:
    """A regular file, by `st_mode`."""
    return status.st_mode & _S_IFMT == _S_IFREG


def is_directory(status: posix.stat_result) -> bool:
    """A directory, by `st_mode`."""
    return status.st_mode & _S_IFMT == _S_IFDIR


def _foreign(path: str, status: posix.stat_result) -> str:
    if status.st_uid != 0:
        return f"{path} belongs to uid {status.st_uid}; it must be root's (chown root {path})"
    if status.st_mode & _S_IFMT == _S_IFLNK:
        return ""  # a link's mode bits mean nothing; its directory is checked
    if status.st_mode & _WRITABLE_BY_OTHERS or (status.st_mode & _WRITABLE_BY_GROUP and status.st_gid != 0):
        mode = f"{status.st_mode & 0o7777:04o}"
        return f"{path} is writable by others (mode {mode}); only root may write it (chmod go-w {path})"
    return ""


def trusted(path: str) -> posix.stat_result:
    """The status of the file at an absolute path, if nobody but root can change what is read there.

    Every directory on the way, every symbolic link and the file itself must belong to root and must not be
    writable by others; links are followed by hand so that no step goes unchecked.

    Raises Untrusted for a foreign owner or mode, OSError where the path does not lead anywhere.
    """
    pending = [part for part in path.split("/") if part not in ("", ".")]
    pending.reverse()
    at, hops = "/", 0
    status = posix.lstat("/")
    while True:
        problem = _foreign(at, status)
        if problem:
            raise Untrusted(problem)
        if status.st_mode & _S_IFMT == _S_IFLNK:
            hops += 1
            if hops > SYMLINK_LIMIT:
                raise OSError(40, "Too many levels of symbolic links", path)
            target = posix.readlink(at)
            pending.extend(reversed([part for part in target.split("/") if part not in ("", ".")]))
            at = "/" if target.startswith("/") else (at.rpartition("/")[0] or "/")
            status = posix.lstat(at)
            continue
        if not pending:
            return status
        part = pending.pop()
        if part == "..":
            at = at.rpartition("/")[0] or "/"
        else:
            at = at.rstrip("/") + "/" + part
        status = posix.lstat(at)


_CHUNK = 64 * 1024
"""Bytes per read(2): below malloc's threshold for asking the kernel for memory each time."""


def read_fd(fd: int, limit: int, what: str, expected: int = 0) -> bytes:
    """All bytes of a descriptor, at most `limit`; best in one piece, if their number is `expected`.

    Raises TooLarge beyond the limit, OSError.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        chunk = posix.read(fd, max(_CHUNK, min(expected, limit) + 1 - size))
        if not chunk:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"{what} is larger than the limit of {limit} bytes")
        chunks.append(chunk)


def read_file(path: str, limit: int) -> bytes:
    """All bytes of a regular file, at most `limit`. Raises Undecided beyond it or for another kind of file, OSError."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)  # a FIFO would be waited for
    try:
        status = posix.fstat(fd)
        if not is_file(status):
            raise Undecided(f"{path} is not a regular file")
        return read_fd(fd, limit, path, status.st_size)
    finally:
        posix.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, whatever a single write(2) takes."""
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def replace_file(
    path: str, data: bytes, mode: int = 0o600, before_rename: "Callable[[str], None] | None" = None
) -> None:
    """Put `data` at `path` at once: a temporary file beside it, fsync, rename.

    An existing file's owner and mode are kept; a new one gets `mode`. Whoever reads sees the old bytes or the
    new ones. On an error the old file is untouched and the temporary one is gone. `before_rename`: is told the
    temporary file's path, and may raise. Raises OSError.
    """
    directory, _, name = path.rpartition("/")
    temporary = f"{directory or '.'}/.{name}.reassert-{posix.getpid()}-{time.monotonic_ns()}"
    owner: posix.stat_result | None = None
    try:
        owner = posix.stat(path)
    except FileNotFoundError:
        pass
    fd = posix.open(
        temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600
    )
    try:
        try:
            write_all(fd, data)
            if owner is not None:
                posix.fchown(fd, owner.st_uid, owner.st_gid)
                mode = owner.st_mode & 0o7777
            posix.fchmod(fd, mode)
            posix.fsync(fd)
        finally:
            posix.close(fd)
        if before_rename:
            before_rename(temporary)
        posix.rename(temporary, path)
    except BaseException:
        try:
            posix.unlink(temporary)
        except OSError:
            pass
        raise


def make_directory(path: str, mode: int) -> None:
    """A directory and those above it, if they are missing. Raises OSError."""
    try:
        posix.mkdir(path, mode)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_directory(path.rstrip("/").rpartition("/")[0] or "/", mode)
        try:
            posix.mkdir(path, mode)
        except FileExistsError:  # another start was faster
            pass


def append_line(path: str, line: bytes, mode: int = 0o600) -> None:
    """Append one whole line to a file of an engine's, making it and its directory if needed. Raises OSError."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC
    try:
        fd = posix.open(path, flags, mode)
    except FileNotFoundError:
        make_directory(path.rpartition("/")[0] or "/", 0o750)
        fd = posix.open(path, flags, mode)
    try:
        write_all(fd, line + b"\n")
    finally:
        posix.close(fd)


def say(text: str) -> None:
    """One line on standard error, if there is one, with nothing in it that a terminal could act on."""
    try:
        write_all(2, f"reassert: {message(text)}\n".encode())
    except OSError:
        pass


def print_to_nobody() -> None:
    """Standard output cannot be written; what is still to be printed goes nowhere."""
    posix.dup2(posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC), 1)


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 in UTC with microseconds, from nanoseconds since the epoch."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 1_000_000_000))
    return f"{seconds}.{nanoseconds // 1000 % 1_000_000:06d}Z"
