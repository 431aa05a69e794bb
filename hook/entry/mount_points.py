"""Mount points that a runtime makes for reserved mounts in the root of a build: the next layer must not have them.

A builder takes what a RUN step has left in the root file system for the image. BuildKit removes the empty mount points
of its own mounts (executor/stubs.go), and this does the same for reassert's. BuildKit calls `run`, so the wrapper stays
until the runtime has ended. buildah, also in podman, calls `create`, so a poststop hook does it. crun calls no such
hook for a container that it fails to create, so the wrapper stays for `create` too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # a builtin that typeshed does not know
import posix
from collections.abc import Sequence

from hook.core.base.errors import ReassertError, describe
from hook.core.linux import libc
from hook.core.linux.mountns import open_without_links, same_file, status_without_wait
from hook.core.linux.walk import PathEscapes, Steps, Walks

_S_IFMT, _S_IFDIR, _S_IFREG = 0o170000, 0o040000, 0o100000
_DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC

_PASSED_ON = (1, 2, 3, 10, 12, 15, 28)
"""HUP, INT, QUIT, USR1, USR2, TERM, WINCH: a runtime passes them on to the container."""

_PR_SET_PDEATHSIG, _SIGKILL = 1, 9  # prctl(2)


def missing(rootfs: str, paths: Sequence[str]) -> list[str]:
    """The directories and files that a runtime will make for mounts at some paths, without links. Raises nothing."""
    found: dict[str, None] = {}
    try:
        root = posix.open(rootfs, _DIRECTORY)
    except OSError:
        return []
    walks = Walks(root, Steps())
    try:
        for path in paths:
            try:
                node = walks.to(path).node
            except (ReassertError, PathEscapes, OSError):  # the runtime or the hook refuses it
                continue
            found |= {str(each): None for each in node.upwards() if each.missing}
    finally:
        walks.close()
        posix.close(root)
    return [*found]


def remove(rootfs: str, made: Sequence[str]) -> None:
    """Removes mount points from the root file system of a container that has ended, those below first. Raises OSError.

    What the build has put there stays, and so does a directory to which it gave another owner or mode. The times of the
    directory above stay too. All stay in a root that another container has too (two `buildah run` at once): with the
    mount point, the kernel takes its mount away.
    """
    root = posix.open(rootfs, _DIRECTORY)
    below: dict[str, posix.stat_result] = {}  # of what was removed last in a directory
    try:
        for path in [] if _is_used(root) else sorted(made, key=len, reverse=True):
            above, _, name = path.rpartition("/")
            try:
                below[above] = _remove(root, above.lstrip("/") or ".", name, below.get(path))
            except (ReassertError, OSError):  # not empty, or the build has put something in its place
                continue
    finally:
        posix.close(root)


def _is_used(root: int) -> bool:
    """Whether a process has a directory as its root. Raises OSError."""
    own = status_without_wait(root)
    for name in filter(str.isdigit, posix.listdir("/proc")):
        try:
            its_root = posix.open(f"/proc/{name}/root", posix.O_PATH | posix.O_CLOEXEC)
        except OSError:  # it has ended
            continue
        try:
            if same_file(own, status_without_wait(its_root)):
                return True
        finally:
            posix.close(its_root)
    return False


def _remove(root: int, above: str, name: str, below: posix.stat_result | None) -> posix.stat_result:
    """`below`: the status of what was in it. The runtime made both alike. Raises ReassertError, OSError."""
    place = open_without_links(root, above)
    try:
        directory = posix.open(".", _DIRECTORY, dir_fd=place)
    finally:
        posix.close(place)
    try:
        times = posix.fstat(directory)
        status = posix.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = status.st_mode & _S_IFMT
        if (below and not _is_alike(status, below)) or (kind == _S_IFREG and status.st_size):
            raise FileExistsError
        if kind == _S_IFDIR:
            posix.rmdir(name, dir_fd=directory)
        elif kind == _S_IFREG:
            posix.unlink(name, dir_fd=directory)
        posix.utime(directory, ns=(times.st_atime_ns, times.st_mtime_ns))
        return status
    finally:
        posix.close(directory)


def _is_alike(one: posix.stat_result, other: posix.stat_result) -> bool:
    """Whether two have one owner and, as directories, one mode. crun makes some of them sticky."""
    differs = (one.st_mode ^ other.st_mode) & (_S_IFMT | 0o777)
    return (one.st_uid, one.st_gid) == (other.st_uid, other.st_gid) and (not differs or bool(differs & _S_IFMT))


def execute(
    real: str, arguments: list[str], environment: dict[bytes, bytes], *, rootfs: str, made: list[str], stays: bool
) -> int:
    """Executes the real runtime in a child, and removes mount points when it has ended. Returns its exit status.

    Signals that this process gets are the child's. It ends with this process, however that ends. `stays`: a container
    uses the mount points, unless the runtime has failed.
    """
    own = posix.getpid()
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _PASSED_ON)  # until there is a handler: one would end us
    child = posix.fork()
    if not child:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
        _become(real, arguments, environment, own)
    for number in _PASSED_ON:
        _signal.signal(number, lambda signal, _: posix.kill(child, signal))
    _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    posix.waitid(posix.P_PID, child, posix.WEXITED | posix.WNOWAIT)  # it can have signals until it is waited for
    for number in _PASSED_ON:
        _signal.signal(number, _signal.SIG_IGN)
    _, status = posix.waitpid(child, 0)
    try:
        if status or not stays:
            remove(rootfs, made)
    except OSError:  # the builder has unmounted it already
        pass
    return 128 + posix.WTERMSIG(status) if posix.WIFSIGNALED(status) else posix.WEXITSTATUS(status)


def _become(real: str, arguments: list[str], environment: dict[bytes, bytes], parent: int) -> None:
    """As hook.entry.runtime executes the runtime. Does not return."""
    try:
        libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if posix.getppid() == parent:
            posix.execve(real, [real, *arguments], environment)
    except OSError as error:
        posix.write(2, f"reassert: cannot run the real runtime {real}: {describe(error)}\n".encode())
    posix._exit(127)
