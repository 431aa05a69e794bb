"""Events about containers that were answered and that are not written yet, in the order of the answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from hook.core.base.errors import describe
from hook.core.base.system import say
from hook.nri.report import Report

MOST = 8
"""Events that may wait for a pause. With more, they are written before the next request is read."""

QUIET = 1
"""Milliseconds without a request that are a pause. The kernel rounds them up to its clock's ticks (SO_RCVTIMEO)."""

LIMIT = 1000
"""Events that may wait for an event log that hangs. Further ones are lost, and counted as errors."""


class PendingEvents:
    """Events are written while the runtime asks for nothing, so that no container waits for the event of another.

    One thread writes at a time: if the event log hangs, it keeps that thread only.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._writing = threading.Lock()

    def add(self, container_id: str, tell: Callable[[], object]) -> None:
        """Let `tell` be called soon, which writes the event about a container."""
        if len(self._waiting) < LIMIT:
            self._waiting.append((container_id, tell))
        else:
            self._failed(container_id, "the event log hangs")

    def count(self) -> int:
        """How many events wait; 0 while a thread writes them."""
        return 0 if self._writing.locked() else len(self._waiting)

    def write(self) -> None:
        """Write all events, unless another thread does. This may hang. Never raises."""
        while self._waiting and self._writing.acquire(blocking=False):
            try:
                while self._waiting:
                    self._write_one(*self._waiting.popleft())
            finally:
                self._writing.release()

    def wait(self, seconds: float) -> None:
        """Wait at most so long until all events are written."""
        deadline = time.monotonic() + seconds
        while (self._waiting or self._writing.locked()) and time.monotonic() < deadline:
            time.sleep(0.002)

    def _write_one(self, container_id: str, tell: Callable[[], object]) -> None:
        try:
            tell()
        except Exception as error:  # no reason to disconnect from the runtime
            self._failed(container_id, describe(error))

    def _failed(self, container_id: str, why: str) -> None:
        self._report.metrics.error("log")
        say(f"no event for {container_id}: {why}")
