"""What the plugin says: JSON lines to standard output, the same events to the node's event log, and metrics."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any

import structlog

from hook import audit
from hook.adapters.nri.metrics import NoMetrics
from hook.system import timestamp

ADAPTER = "nri"
CONNECTED, DISCONNECTED, VIOLATION, RELIEVED = "nri.connected", "nri.disconnected", "nri.violation", "nri.slow"
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
        self._lines: deque[dict[str, Any]] = deque()
        structlog.configure(
            processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory(sys.stdout)
        )
        self._log = structlog.get_logger()
        threading.Thread(target=self._print, name="log", daemon=True).start()

    def container(self, event: dict[str, Any]) -> None:
        """An event about a container (hook.audit): to the event log and to standard output."""
        audit.write(self.events, event)
        self._say(event)

    def plugin(self, event: str, level: str, message: str, **more: object) -> None:
        """An event about the plugin itself."""
        record = {
            "timestamp": timestamp(time.time_ns()),
            "adapter": ADAPTER,
            "event": event,
            "level": level,
            "message": message,
            **more,
        }
        self.container(record)

    def _say(self, event: dict[str, Any]) -> None:
        if len(self._lines) < _BACKLOG:
            self._lines.append(event)
        else:
            self.metrics.error("log")

    def _print(self) -> None:
        """In a thread of its own: a pipe that nobody empties must not hold up a container.

        Not woken for each line, or it would fight the thread that decides for the interpreter at every system call.
        """
        while True:
            time.sleep(_PAUSE)
            while self._lines:
                event = dict(self._lines[0])
                try:
                    self._log.msg(event.pop("event"), **event)
                    sys.stdout.flush()
                except (OSError, ValueError):
                    self.metrics.error("log")
                self._lines.popleft()

    def close(self, seconds: float = 1.0) -> None:
        """Give standard output a moment to take what was said."""
        deadline = time.monotonic() + seconds
        while self._lines and time.monotonic() < deadline:
            time.sleep(0.01)
