"""Where the plugin reports: events as JSON lines to standard output and to the node's event log, and metrics."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from hook.core.base.logfile import try_to_append
from hook.core.events import line, of_adapter
from hook.resident import oplog
from hook.resident.metrics import NoMetrics

ADAPTER = "nri"
CONNECTED, DISCONNECTED, VIOLATION = "nri.connected", "nri.disconnected", "nri.violation"
RELIEVED = "nri.slow"

_BACKLOG = 1000
"""Lines kept for a standard output that is not read. Further lines are dropped there, but never in the event log."""

_PAUSE = 0.05
"""Seconds between two writes to standard output."""


class Report:
    """Writes events and holds the metrics."""

    def __init__(self, events: str, metrics: NoMetrics) -> None:
        self.events = events
        """The path of the node's event log."""
        self.metrics = metrics
        self._lines: deque[str] = deque()
        self._closed = False
        self._printer = threading.Thread(target=self._print, name="log", daemon=True)
        self._printer.start()

    def plugin(self, event: str, level: str, message: str, settings: Sequence[Any] = (), **more: object) -> None:
        """Write an event about the plugin itself. `settings`: as for hook.core.events.write."""
        self.line(line(of_adapter(ADAPTER, event, level, message, **more)), settings)
        log = {"error": oplog.error, "warning": oplog.warning}.get(level, oplog.info)
        log(event, key=message, message=message, **more)

    def line(self, text: str, settings: Sequence[Any] = ()) -> None:
        """Write one line to the event log and, in the background, to standard output. `settings`: as for `plugin`."""
        if not try_to_append(self.events, text, *settings):
            self.metrics.error("log")
        if len(self._lines) < _BACKLOG:
            self._lines.append(text + "\n")
        else:
            self.metrics.error("log")

    def _print(self) -> None:
        """Write lines to standard output, in a thread of its own: a full pipe must not delay a container.

        The thread polls. If it were woken for each line, it would compete with the deciding thread for the interpreter.
        """
        while True:
            time.sleep(_PAUSE)
            lines = self._lines.copy()
            if not lines:
                if self._closed:
                    return
                continue
            try:
                if sys.stdout:  # None if descriptor 1 was closed when the plugin started
                    sys.stdout.write("".join(lines))
                    sys.stdout.flush()
            except (OSError, ValueError):
                self.metrics.error("log")
            for _ in lines:
                self._lines.popleft()

    def close(self, seconds: float = 1.0) -> None:
        """Wait up to `seconds` until standard output has taken all lines. No line may come after this call."""
        self._closed = True
        self._printer.join(seconds)
