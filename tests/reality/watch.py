"""What a start cost, and which files of the node it changed that are not the container's own.

Each root file system that runtimes run in is an overlay over a Debian (reality.node). So whatever any process of a
start makes, changes or removes there is in the overlay's upper directory, or in a small file system at /run or /dev.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

Entries = dict[str, tuple[int, int, int, int]]


def entries(top: Path, skip: tuple[str, ...] = ()) -> Entries:
    """Inode, mode, size or device number, and time of change of everything below a directory, by relative name.

    `skip`: relative names that are left out, with what is below them.
    """
    found = {}
    for path, directories, files in os.walk(top):
        below = os.path.relpath(path, top)
        names = {name: os.path.normpath(os.path.join(below, name)) for name in [*directories, *files]}
        directories[:] = [name for name in directories if names[name] not in skip]
        for name, relative in names.items():
            if relative in skip:
                continue
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(path, name))
                is_directory = stat.S_ISDIR(status.st_mode)
                size = 0 if is_directory else status.st_rdev or status.st_size
                found[relative] = (status.st_ino, status.st_mode, size, 0 if is_directory else status.st_mtime_ns)
    return found


def differences(before: Entries, now: Entries) -> list[str]:
    """Names of what is new, gone or another."""
    return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))


DEVICE = " (a device)"


def told(name: str, there: Entries) -> str:
    """A name, and what is there now."""
    if name not in there:
        return f"{name} (gone)"
    kind, size = stat.S_IFMT(there[name][1]), there[name][2]
    return name + (DEVICE if kind in (stat.S_IFCHR, stat.S_IFBLK) else f" ({size} bytes)")


class Watch:
    """Everything of a root file system, and beside it what of the scratch directory is nobody's to change.

    `upper`: the overlay's. `lower`: the Debian. `pid`: of a process whose root it is.
    """

    def __init__(self, upper: Path, lower: Path, pid: int, scratch: Path) -> None:
        root = Path(f"/proc/{pid}/root")
        self._lower = lower
        self._root = root
        self._tops = {
            "": (upper, ()),
            "run": (root / "run", (str(scratch).removeprefix("/run/").split("/")[0], "runc", "crun")),
            "dev": (root / "dev", ("pts", "shm")),
        }
        self._before = self._now()

    def _now(self) -> dict[str, Entries]:
        found = {name: entries(top, skip) for name, (top, skip) in self._tops.items()}
        found[""] = {name: entry for name, entry in found[""].items() if not self._is_copy(name, entry[1])}
        return found

    def _is_copy(self, name: str, mode: int) -> bool:
        """Whether the overlay has a directory only because something was in it for a while."""
        try:
            return stat.S_ISDIR(mode) and os.lstat(self._lower / name).st_mode == mode
        except FileNotFoundError:
            return False

    def changed(self) -> list[str]:
        """Paths that are not as they were at the last call. What is new is removed again."""
        now = self._now()
        names = []
        for where, there in now.items():
            for name in differences(self._before[where], there):
                path = os.path.join("/", where, name)
                names.append(told(path, {path: there[name]} if name in there else {}))
                is_new = name not in self._before[where] and (where or not os.path.lexists(self._lower / name))
                if is_new and name in there:
                    _remove(self._root / path.lstrip("/"))
        if names:
            self._before = self._now()
        return names


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def waited(process: subprocess.Popen[bytes], timeout: float) -> tuple[int, float, int]:
    """Exit status, seconds of CPU and most KiB of a process and of those that it waited for; status 124: too long.

    What it started is ended with it when it takes too long.
    """
    ready = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    late = not poll.poll(timeout * 1000)
    os.close(ready)
    below = _descendants(process.pid) if late else []
    for pid in [process.pid] * late + below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = 124 if late else os.waitstatus_to_exitcode(status)
    seconds, most = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
    for pid in below:  # this program's to reap now (PR_SET_CHILD_SUBREAPER)
        with suppress(ChildProcessError):
            _, _, usage = os.wait4(pid, 0)
            seconds, most = seconds + usage.ru_utime + usage.ru_stime, max(most, usage.ru_maxrss)
    return process.returncode, seconds, most


def _descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started; parents first."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a running process and those that it waited for have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
