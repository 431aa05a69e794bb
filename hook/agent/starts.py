"""Counts what the agent answered and what leaves no event: containers that needed nothing, and execs."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from hook.core import events
from hook.core.decide import Case
from hook.core.metrics import NoMetrics
from hook.entry.caller import RUNTIME, Options
from hook.entry.write_spec import FLAG

LAST = 20
"""The last starts that are kept of each real runtime, and as many execs."""

_RUNTIMES = 32
"""The most real runtimes whose starts or execs are kept, so that a status fits into a frame."""


class WarmStarts:
    """Counts them, and keeps when the last ones were."""

    def __init__(self) -> None:
        self.metrics = NoMetrics()
        self._last: dict[tuple[bool, str], deque[tuple[float, str]]] = {}  # the time, and a hook's container id

    def add(self, options: Options, case: Case, is_exec: bool) -> None:
        """Count one that was answered just now. Probes are not counted: no user of the node started them."""
        adapter = case.adapter
        if FLAG in options.flags:  # the hook completes the work of the wrapper, which alone tells it the path
            adapter = RUNTIME if options.config else "precreate"
        probe = events.is_probe(case.adapter, case.container_id, case.identity)
        if not is_exec:
            self.metrics.unchanged(adapter, probe)
        elif not probe:
            self.metrics.executed("warm", "")
        if probe:
            return
        last = self._last.get((is_exec, options.real))
        if last is None:
            if len(self._last) >= _RUNTIMES:
                return
            last = self._last.setdefault((is_exec, options.real), deque(maxlen=LAST))
        last.append((time.time(), "" if options.real else case.container_id[:128]))

    def as_json(self) -> list[dict[str, Any]]:
        """The last starts and execs without an event, by real runtime; "" if it is not known (a hook)."""
        return [
            {
                "runtime": runtime,
                "exec": is_exec,
                "starts": [
                    {"time": round(when, 3), "start": "warm", **({"id": whose} if whose else {})}
                    for when, whose in list(last)
                ],
            }
            for (is_exec, runtime), last in list(self._last.items())
        ]
