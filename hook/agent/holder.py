"""Keeps files open that starts and containers read, and the event log, so that no container gets a lease on them.

A container's root owns the files of root that it sees, also where it sees them read-only. A lease (fcntl(2),
F_SETLEASE) lets each open(2) of others wait for up to fs.lease-break-time, 45 seconds, or fail with O_NONBLOCK. The
kernel gives no write lease on a file that another process has open, and no read lease on one that is open for writing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import threading
from collections.abc import Iterator
from itertools import islice

from hook.core.policy.entries import FILE
from hook.core.policy.model import Policy

MOST = 1000
"""The most files of a policy that are kept open; at most an eighth of all descriptors."""

_Key = tuple[int, int]


class Holder:
    """Files that are kept open, by path. A thread opens them: open(2) waits for the end of a container's lease."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[_Key, int]] = {}
        self._thread: threading.Thread | None = None

    def hold(self, policy: Policy, compiled: str, log: str) -> None:
        """Keep open the policy, its compiled form, what it names, and the event log; close others. Does not wait."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._hold, args=(policy, compiled, log), name="holder", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads; the next call tries again
                self._thread.start()

    def _hold(self, policy: Policy, compiled: str, log: str) -> None:
        most = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        wanted = dict.fromkeys([policy.path, compiled, *islice(named(policy), most)], os.O_RDONLY)
        wanted[log] = os.O_WRONLY | os.O_APPEND
        for path in self._held.keys() - wanted:
            os.close(self._held.pop(path)[1])
        for path, flags in wanted.items():
            with contextlib.suppress(OSError):  # it is missing, or no descriptor is free
                self._keep(path, flags)

    def _keep(self, path: str, flags: int) -> None:
        status = os.stat(path)
        key = status.st_dev, status.st_ino
        key_before, before = self._held.get(path, (None, -1))
        if key == key_before or not stat.S_ISREG(status.st_mode):
            return
        self._held[path] = key, os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY)
        if before >= 0:
            os.close(before)


def named(policy: Policy) -> Iterator[str]:
    """The files of the node that a policy's rules reserve and containers only read; of directories, MOST entries."""
    rules = policy.candidates(None)
    yield from {str(env.text) for rule in rules for env in rule.env if env.source == FILE}
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
