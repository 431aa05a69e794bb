"""Run a command of this program in a child process, for work whose imports a container start cannot afford."""

from __future__ import annotations

import posix
import time

from hook.core.base.errors import ReassertError
from hook.core.base.system import own_command

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def output_of(arguments: list[str], deadline: float) -> bytes:
    """The standard output of `reassert ARGUMENTS`. The child is killed at `deadline`, a time of the monotonic clock.

    Raises ReassertError, OSError.
    """
    command = [*own_command(), *arguments]
    reader, writer = posix.pipe2(posix.O_CLOEXEC)
    try:
        actions = [(posix.POSIX_SPAWN_DUP2, writer, 1), (posix.POSIX_SPAWN_OPEN, 2, "/dev/null", posix.O_WRONLY, 0)]
        child = posix.posix_spawn(command[0], command, _ENVIRONMENT, file_actions=actions)
    except OSError:
        posix.close(reader)
        raise
    finally:
        posix.close(writer)
    try:
        posix.set_blocking(reader, False)
        return _read_until(reader, deadline)
    except TimeoutError:
        posix.kill(child, 9)
        raise ReassertError(f"{' '.join(command)} did not finish in time and was killed") from None
    finally:
        posix.close(reader)
        posix.waitpid(child, 0)


def _read_until(fd: int, deadline: float) -> bytes:
    chunks: list[bytes] = []
    while True:
        try:
            chunk = posix.read(fd, 1 << 20)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.002)
            continue
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
