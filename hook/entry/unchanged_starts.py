"""Counts starts that leave no event: of containers that needed nothing, and execs.

A cold one leaves a line in a file (hook.entry.start_counts). A warm one is counted by the agent that answers it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hook.core.base.system import make_directory
from hook.core.metrics import NoMetrics
from hook.entry.start_counts import EXEC, LIMIT, NAME, NO_REASON, PROBE

ADAPTERS = ("runtime", "hook", "precreate", "nri")

LAST = 20
"""The last starts that are kept of each real runtime, and as many execs."""

_RUNTIMES = 32
"""The most real runtimes of which starts or execs are kept, so that a status fits into a frame."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UnchangedStarts:
    """Takes the lines of the file away and counts them. The file itself tells starts that their lines are wanted."""

    def __init__(self, store: str, metrics: NoMetrics | None = None) -> None:
        self._store = store
        self._path = f"{store}/{NAME}"
        self.metrics = metrics or NoMetrics()
        self._taken = -1  # the last file that was taken away: a start may have opened it before
        # By whether they are execs, and by the real runtime: the time, warm or cold, the reason, a hook's container id.
        self._last: dict[tuple[bool, str], deque[tuple[float, str, str, str]]] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, probe: bool, cold: str | None, whose: str, when: float) -> None:
        """Count a start. `cold`: why, None for a warm one. `kind`, `whose`: as in a line; `when`: as time.time()."""
        start, reason = ("warm", "") if cold is None else ("cold", cold)
        is_exec = kind == EXEC
        if not is_exec:
            self.metrics.unchanged(kind, probe, start, reason)
        elif not probe:
            self.metrics.executed(start, reason)
        if probe:
            return
        runtime = whose if whose.startswith("/") else ""
        last = self._last.get((is_exec, runtime))
        if last is None:
            if len(self._last) >= _RUNTIMES:
                return
            last = self._last.setdefault((is_exec, runtime), deque(maxlen=LAST))
        last.append((when, start, reason, "" if runtime else whose))

    def as_json(self) -> list[dict[str, Any]]:
        """The last starts and execs without an event, by real runtime; "" if it is not known (a hook)."""
        return [
            {"runtime": runtime, "exec": is_exec, "starts": [_entry(*start) for start in list(last)]}
            for (is_exec, runtime), last in list(self._last.items())
        ]

    def count(self) -> None:
        """Count the lines since the last call. A file that cannot be read or made counts nothing."""
        with self._lock, suppress(OSError):
            self._finish()
            with suppress(FileNotFoundError):
                if os.lstat(self._path).st_size == 0:
                    return
                self._taken = os.open(self._path, _FLAGS)
            self._make()
            if self._taken >= 0:
                self._add(os.read(self._taken, 2 * LIMIT))

    def _finish(self) -> None:
        if self._taken >= 0:
            taken, self._taken = self._taken, -1
            try:
                self._add(os.read(taken, LIMIT))
            finally:
                os.close(taken)

    def _make(self) -> None:
        """Put an empty file in the place of the one that is being read."""
        make_directory(self._store, 0o700)
        temporary = f"{self._path}.new"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.rename(temporary, self._path)

    def _add(self, data: bytes) -> None:
        for kind, probe, cold, whose, when in _parsed(data):
            self.add(kind, probe, cold, whose, when)


def not_taken(store: str) -> list[dict[str, Any]]:
    """What no agent has taken, as `as_json` has it: where none runs."""
    waiting = UnchangedStarts(store)
    with suppress(OSError):
        fd = os.open(f"{store}/{NAME}", _FLAGS)
        try:
            waiting._add(os.read(fd, 2 * LIMIT))
        finally:
            os.close(fd)
    return waiting.as_json()


def _entry(when: float, start: str, cold: str, container_id: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"time": round(when, 3), "start": start}
    entry.update((key, value) for key, value in (("cold", cold), ("id", container_id)) if value)
    return entry


def _parsed(data: bytes) -> Iterator[tuple[str, bool, str, str, float]]:
    """Each line that is one."""
    for line in data.decode("utf-8", "replace").splitlines():
        probe = line.startswith(f"{PROBE} ")
        kind, *words = line.removeprefix(f"{PROBE} ").split(" ", 3)
        if kind in (*ADAPTERS, EXEC) and len(words) == 3 and words[1].isdecimal():
            cold, seconds, whose = words
            yield kind, probe, "" if cold == NO_REASON else cold, whose, float(seconds[:10])
