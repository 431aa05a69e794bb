"""What the plugin says: JSON lines to standard output, the same events to the node's event log, and metrics."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any

import structlog

from hook import events
from hook.adapters.nri.metrics import NoMetrics
from hook.base.excerpt import line
from hook.base.system import timestamp

ADAPTER = "nri"
CONNECTED, DISCONNECTED, VIOLATION = "nri.connected", "nri.disconnected", "nri.violation"
RELIEVED, UNREAD = "nri.slow", "nri.unread"
POLICY = "policy.loaded"

_BACKLOG = 1000
"""Lines that wait for a standard output that nobody reads; what comes after is dropped there, never in the log."""

_PAUSE = 0.05
"""Seconds between two looks at what is to be printed."""


class Report:
    """Where events go. `events`: path of the node's event log."""

    def __init__(self, events: str, metrics: NoMetrics) -> None:
        self.events = events
        self.metrics = metrics
        self._lines: deque[str] = deque()
        renderer = structlog.processors.JSONRenderer(serializer=lambda record, **_: line(record))
        self._log = structlog.wrap_logger(_Lines(self), processors=[renderer])
        threading.Thread(target=self._print, name="log", daemon=True).start()

    def container(self, event: dict[str, Any]) -> None:
        """An event about a container (hook.events): to the event log and to standard output."""
        self.line(line(event))  # not by way of structlog, which takes longer than that

    def plugin(self, event: str, level: str, message: str, **more: object) -> None:
        """An event about the plugin itself."""
        now = timestamp(time.time_ns())
        self._log.info(event, timestamp=now, adapter=ADAPTER, level=level, message=message, **more)

    def line(self, text: str) -> None:
        """An event as it is to be written."""
        events.append(self.events, text)
        if len(self._lines) < _BACKLOG:
            self._lines.append(text + "\n")
        else:
            self.metrics.error("log")

    def _print(self) -> None:
        """In a thread of its own: a pipe that nobody empties must not hold up a container.

        Not woken for each line, or it would fight the thread that decides for the interpreter at every system call.
        """
        while True:
            time.sleep(_PAUSE)
            lines = self._lines.copy()
            if not lines:
                continue
            try:
                if sys.stdout:  # None where descriptor 1 was closed when we were started
                    sys.stdout.write("".join(lines))
                    sys.stdout.flush()
            except (OSError, ValueError):
                self.metrics.error("log")
            for _ in lines:
                self._lines.popleft()

    def close(self, seconds: float = 1.0) -> None:
        """Give standard output a moment to take what was said."""
        deadline = time.monotonic() + seconds
        while self._lines and time.monotonic() < deadline:
            time.sleep(0.01)


class _Lines:
    """What structlog writes to."""

    def __init__(self, report: Report) -> None:
        self.info = report.line
