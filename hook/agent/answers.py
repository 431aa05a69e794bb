"""What the agent answers, why it does not (docs/internals/agent.md), and how often."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from hook.resident.metrics import NoMetrics

GO, CHANGED, REFUSED, COLD = "go", "changed", "refused", "cold"

VERSION, OPTIONS, CALLER, POLICY, PATH, SIZE = "version", "options", "caller", "policy", "path", "size"
STAGE, MOUNT, PIPE, BUNDLE, LATE, BUSY, ERROR = "stage", "mount", "pipe", "bundle", "late", "busy", "error"
PROBE, LONG = "probe", "long"
REASONS = (VERSION, OPTIONS, CALLER, POLICY, PATH, SIZE, STAGE, MOUNT, PIPE, BUNDLE, LATE, BUSY, ERROR, PROBE, LONG)
"""The agent's reasons not to answer: words of the event's `cold` (internals/agent.md). front has more of its own."""


class Fallback(BaseException):  # a BaseException: no `except Exception` may report it as an error of the container
    """The agent answers this request with "start cold". Its argument is one of REASONS."""


class Counters:
    """What was answered: for `reassert status -o json` and the event at its end."""

    def __init__(self, metrics: NoMetrics) -> None:
        self.metrics = metrics
        """What counts the same for Prometheus, with --metrics."""
        self._warm: Counter[str] = Counter()
        self._cold: Counter[str] = Counter()
        self._dropped = 0
        self._new_drops: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.count = 0
        """The number of all answers."""
        self._began = time.monotonic()

    def answered(self, answer: str, reason: str, seconds: float) -> None:
        """One request. `reason`: why the answer is COLD."""
        with self._lock:
            self.count += 1
            if answer == COLD:
                self._cold[reason] += 1
            else:
                self._warm[answer] += 1
        self.metrics.answer(answer, reason, seconds)

    def dropped(self, reason: str) -> None:
        """A client that is not a front."""
        with self._lock:
            self._dropped += 1
            self._new_drops[reason] += 1
        self.metrics.dropped()

    def new_drops(self) -> Counter[str]:
        """The clients that were dropped since the last call, by reason."""
        with self._lock:
            found, self._new_drops = self._new_drops, Counter()
        return found

    def as_json(self) -> dict[str, Any]:
        """All counts since the agent started, and for how long it runs."""
        return {
            "seconds": round(time.monotonic() - self._began, 1),
            "warm": {name: self._warm[name] for name in (GO, CHANGED, REFUSED)},
            "cold": dict(self._cold),
            "dropped": self._dropped,
        }
