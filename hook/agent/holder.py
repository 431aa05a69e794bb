"""Keeps files open that starts and containers read, and the event log, so that no container gets a lease on them.

A container's root owns the files of root that it sees, also where it sees them read-only. A lease (fcntl(2),
F_SETLEASE) lets each open(2) of others wait for up to fs.lease-break-time, 45 seconds, or fail with O_NONBLOCK. The
kernel gives no write lease on a file that another process has open, and no read lease on one that is open for writing.
Also a process that waits in open(2) counts: no second lease comes between the end of the first one and its open.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from hook.core.container.allocation import checkpoint_path
from hook.core.container.cdi import CDI_DIRECTORIES, spec_files
from hook.core.policy.model import Policy
from hook.entry.dispatcher import FRONT

MOST = 1000
"""The most files of a policy that are kept open, and as many of the program; each at most an eighth of all
descriptors."""

WAITING = 256
"""The most threads that wait for the end of a lease."""

SECONDS = 1.0
"""Seconds between looks whether a file was replaced, by the times of directories."""

INTERPRETERS = ("/bin/sh", "/etc/ld.so.cache", "/usr/share/locale/locale.alias")
"""What a cold start opens of the node's own programs. Libraries and locales are mapped by this process too."""

DISPATCHERS = ("/opt/reassert", "/usr/local/sbin")
"""Where `install` puts what engines call, and reassert 0.3 did: files that begin with `reassert-`."""

_Key = tuple[int, int]


class Holder:
    """Files that are kept open, by path. A thread looks for them, others wait for the end of a container's lease.

    `called`: paths of dispatchers and hook files by which requests came, wherever they are.
    """

    def __init__(self, called: set[str]) -> None:
        self._called = called
        self._held: dict[str, tuple[_Key, int]] = {}
        self._waits: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted: Callable[[], dict[str, int]] | None = None

    def hold(self, policy: Policy, compiled: str, log: str) -> None:
        """Look at each file that starts open under a policy, and keep it open; close others. Does not wait.

        To be called now and then: a file can be replaced without a change of its directory, by a link above it, say.
        """
        self._wanted = lambda: opened(policy, compiled, log, self._called)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="holder", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads; the next call tries again
                self._thread.start()

    def _run(self) -> None:
        done, count, times = None, 0, dict[str, int]()
        while True:
            wanted = self._wanted
            if wanted and (wanted is not done or len(self._called) != count or times != _times(times)):
                done, count = wanted, len(self._called)
                times = self._look(wanted())
            time.sleep(SECONDS)

    def _look(self, wanted: dict[str, int]) -> dict[str, int]:
        """Open what is wanted and was replaced, close the others; returns the times of all directories of them."""
        places = {os.path.dirname(way) for path in wanted for way in (path, os.path.realpath(path))}
        times = _times([*places, *CDI_DIRECTORIES])  # before: what is replaced meanwhile is seen by the next look
        with self._lock:
            for path in self._held.keys() - wanted:
                os.close(self._held.pop(path)[1])
        for path, flags in wanted.items():
            with contextlib.suppress(OSError):  # it is missing, or no descriptor is free
                self._keep(path, flags)
        return times

    def _keep(self, path: str, flags: int) -> None:
        status = os.stat(path)
        key = status.st_dev, status.st_ino
        if path in self._waits or key == self._held.get(path, (None,))[0] or not stat.S_ISREG(status.st_mode):
            return
        flags |= os.O_CLOEXEC | os.O_NOCTTY
        try:
            self._took(path, os.open(path, flags | os.O_NONBLOCK))
        except BlockingIOError:  # a lease: the kernel has told its owner, and ends it in fs.lease-break-time
            if len(self._waits) < WAITING:
                self._waits.add(path)
                threading.Thread(target=self._wait, args=(path, flags), name="lease", daemon=True).start()

    def _wait(self, path: str, flags: int) -> None:
        try:
            with contextlib.suppress(OSError):
                self._took(path, os.open(path, flags))
        finally:
            self._waits.discard(path)

    def _took(self, path: str, fd: int) -> None:
        status = os.fstat(fd)
        with self._lock:
            _, before = self._held.get(path, (None, -1))
            self._held[path] = (status.st_dev, status.st_ino), fd
        if before >= 0:
            os.close(before)


def _times(directories: Iterable[str]) -> dict[str, int]:
    """When something was last made, renamed or removed in each directory; -1 for one that is not there."""
    found = {}
    for path in directories:
        try:
            found[path] = os.stat(path).st_mtime_ns
        except OSError:
            found[path] = -1
    return found


def opened(policy: Policy, compiled: str, log: str, called: set[str]) -> dict[str, int]:
    """Every file that a start opens, or this process for one, with flags of open(2).

    Not here: the bundle's files, which are the engine's, the real runtime and its libraries, and files in /proc and
    /sys, on which no lease is given.
    """
    most = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
    rows: list[Iterable[str]] = [
        [policy.path, compiled],
        islice(named(policy), most),
        [*sorted(called)[:most], *(entry for each in DISPATCHERS for entry in _in(each) if "/reassert-" in entry)],
        INTERPRETERS,
        islice(_program(), most),
        [checkpoint_path(policy.kubelet_root), f"{policy.kubelet_root}/dra_manager_state"],
        islice(_specs(), most),
    ]
    wanted = dict.fromkeys([path for row in rows for path in row], os.O_RDONLY)
    wanted[log] = os.O_WRONLY | os.O_APPEND
    return wanted


def _in(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]
    except OSError:
        return []


def _program() -> Iterator[str]:
    """The frozen program: its executable, front, what is in lib/, and `start` beside its directory."""
    if not hasattr(sys, "_MEIPASS"):
        return
    own = os.path.dirname(os.path.realpath(sys.executable))
    yield from (sys.executable, f"{own}/{FRONT}", f"{os.path.dirname(own)}/start")
    for directory, _, names in os.walk(own):
        yield from (f"{directory}/{name}" for name in names)


def _specs() -> Iterator[str]:
    for directory in CDI_DIRECTORIES:
        with contextlib.suppress(Exception):  # one that cannot be read refuses the containers that need it
            yield from spec_files(directory)


def named(policy: Policy) -> Iterator[str]:
    """The files of the node that a policy's rules reserve and containers only read; of directories, MOST entries."""
    rules = policy.candidates(None)
    yield from {path for rule in rules for env in rule.env for path in env.files}
    left = [mount.source for rule in rules for mount in rule.mounts if "ro" in mount.options and not mount.volume]
    for _ in range(MOST):
        if not left:
            return
        path = left.pop(0)
        with contextlib.suppress(OSError):  # a file, or it is missing
            with os.scandir(path) as entries:
                left += [entry.path for entry in islice(entries, MOST - len(left)) if not entry.is_symlink()]
            continue
        yield path
