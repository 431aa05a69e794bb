"""One process of /proc, held by its directory, so that another process that gets its pid is never mistaken for it."""

from __future__ import annotations

import os
import posix
from contextlib import suppress
from functools import cache, partial
from types import TracebackType
from typing import Self

from hook.core.base.errors import ReassertError, Undecided
from hook.core.base.system import read_fd
from hook.inside import workers
from hook.inside.running import Taken

ENVIRON_LIMIT = 8 << 20
"""Bytes of env that are read. Linux starts no process with more than 6 MiB (execve(2)), but a process can move the
limits of what /proc shows (prctl(2), PR_SET_MM)."""

_SMALL = 1 << 16

_AT_ONCE = 200
"""Processes whose environment is opened at once: each takes two descriptors."""

HEADLESS = "its first process has ended its main thread, and with it what /proc shows of its env and mounts"
"""Why a container cannot be looked at whose other threads run on."""


class ContainerGone(ReassertError):
    """The process ended, or its number is another process's now.

    For a test container: something else ended it before it was looked at, as kubelet ends pods that it does not know.
    """


class Process:
    """A process. `started`: when it started, in clock ticks since the boot; 0: as it is now.

    Raises ContainerGone if there is no such process, or if it has ended.
    """

    def __init__(self, pid: int, started: int = 0) -> None:
        self.pid = pid
        self._opened: dict[str, int] = {}
        self._mounts: Taken | Exception | None = None
        try:
            self._directory = posix.open(f"/proc/{pid}", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
        except OSError:
            raise ContainerGone(f"process {pid} is gone") from None
        try:
            self.started = started or int(self._fields()[19])
            self.is_headless()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self._directory, *self._opened.values()):
            posix.close(fd)
        self._opened.clear()
        if isinstance(self._mounts, Taken):
            self._mounts.close()

    def hold(self) -> None:
        """Open what needs rights, so that it can be read later without them. Raises ContainerGone, OSError."""
        for name in ("stat", "environ"):
            self._opened[name] = self._open(name)
        if not posix.pread(self._opened["environ"], 1, 0):  # empty during execve(2), when the old program's env is gone
            posix.close(self._opened.pop("environ"))
            self._opened["environ"] = self._open("environ")
        try:
            self._mounts = Taken(self.pid, self.check)
        except ContainerGone:
            raise
        except (ReassertError, OSError) as error:
            self._mounts = error
        self.check()

    def mounts(self) -> Taken:
        """Its mount namespace's root and mounts. Raises ContainerGone, Undecided, OSError."""
        if self._mounts is None:
            self._mounts = Taken(self.pid, self.check)
        if isinstance(self._mounts, Exception):
            raise self._mounts
        return self._mounts

    def check(self) -> None:
        """Raises ContainerGone unless the process is there, and is the one that was meant; Undecided if headless."""
        if self.is_headless():
            raise Undecided(HEADLESS)

    def is_headless(self) -> bool:
        """Whether its main thread has ended and others run: a zombie to the eye. Raises ContainerGone as `check`."""
        fields = self._fields()
        is_zombie = fields[0] in "ZXx"
        if int(fields[19]) != self.started or (is_zombie and int(fields[17]) < 2):
            raise ContainerGone(f"process {self.pid} is gone")
        return is_zombie

    def environ(self) -> list[str]:
        """The env that its last execve(2) was given, as the kernel finds it in the process's memory.

        The process can overwrite that memory. Raises ContainerGone, TooLarge, OSError.
        """
        try:
            data = self._read("environ", ENVIRON_LIMIT) or self._read(
                "environ", ENVIRON_LIMIT
            )  # empty during execve(2)
        finally:
            self.check()  # only the node's root may read that of a zombie or of an ending process
        return data.decode("utf-8", "surrogateescape").rstrip("\0").split("\0") if data else []

    def cgroups(self) -> list[str]:
        """The paths of its cgroups, as this process sees them. Raises ContainerGone, OSError."""
        lines = self._read("cgroup", _SMALL).decode("utf-8", "surrogateescape").split("\n")
        return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]

    def mount_namespace(self) -> str:
        """Its mount namespace, as the kernel names it. Raises ContainerGone, OSError."""
        try:
            return posix.readlink("ns/mnt", dir_fd=self._directory)
        except (FileNotFoundError, ProcessLookupError):
            raise self._ended("ns/mnt") from None

    def parent(self) -> int:
        """The number of its parent process. Raises ContainerGone."""
        return int(self._fields()[1])

    def _fields(self) -> list[str]:
        """Its state and what follows in stat (proc(5)). The name before it can have any characters, also brackets."""
        return self._read("stat", _SMALL).rpartition(b")")[2].decode().split()

    def _ended(self, name: str) -> ReassertError:
        """Why there is no such file of it."""
        if name != "stat":
            self.check()
        return ContainerGone(f"process {self.pid} is gone")

    def _open(self, name: str) -> int:
        try:
            return posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=self._directory)
        except (FileNotFoundError, ProcessLookupError):
            raise self._ended(name) from None

    def _read(self, name: str, limit: int) -> bytes:
        held = self._opened.get(name, -1)
        fd = held if held >= 0 else self._open(name)
        try:
            posix.lseek(fd, 0, os.SEEK_SET)
            return read_fd(fd, limit, f"/proc/{self.pid}/{name}")
        except (FileNotFoundError, ProcessLookupError):
            raise self._ended(name) from None
        finally:
            if fd != held:
                posix.close(fd)


@cache
def _booted() -> float:
    with open("/proc/stat", "rb") as file:
        return float(next(line.split()[1] for line in file if line.startswith(b"btime ")))


def when(ticks: int) -> float:
    """A number of clock ticks since the boot, as seconds since the epoch."""
    return _booted() + ticks / os.sysconf("SC_CLK_TCK")


def is_gvisor(pid: int) -> bool:
    """Whether a process is gVisor's, whose kernel shows the container's env and mounts to the container alone.

    A process without rights reads the beginning of its command line (hook.inside.workers), which is the process's own
    memory: without an end, or on a file system that does not answer, if it likes (prctl(2), PR_SET_MM).
    """

    def take() -> int:
        try:
            return os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1

    name = b"runsc-sandbox\0"
    return workers.apart(take, lambda fd: fd >= 0 and os.read(fd, len(name)) == name) is True


def mount_namespace(pid: int) -> str:
    """A process's mount namespace, "" if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def processes() -> set[int]:
    """Returns the pids of all processes."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def environs(pids: set[int]) -> dict[int, list[str]]:
    """Returns the environment of each process that runs. Bytes that are not UTF-8 become surrogates.

    A process without rights reads it (hook.inside.workers).
    """
    found: dict[int, list[str]] = {}
    ordered = sorted(pids)
    for at in range(0, len(ordered), _AT_ONCE):
        some = ordered[at : at + _AT_ONCE]
        read = workers.apart(partial(_open_environs, some), _read_environs)
        found.update((int(pid), entries) for pid, entries in (read or {}).items())
    return found


def _open_environs(pids: list[int]) -> dict[int, tuple[int, int]]:
    opened = {}
    for pid in pids:
        with suppress(OSError):  # it has ended
            opened[pid] = os.open(f"/proc/{pid}/environ", os.O_RDONLY), os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    return opened


def _read_environs(opened: dict[int, tuple[int, int]]) -> dict[int, list[str]]:
    found = {}
    for pid, (environ, stat) in opened.items():
        with suppress(OSError, ReassertError):
            data = read_fd(environ, ENVIRON_LIMIT, "environ")
            if os.read(stat, 4096).rpartition(b") ")[2][:1] not in b"ZX":
                found[pid] = os.fsdecode(data).rstrip("\0").split("\0") if data else []
    return found
