"""The end of the event log."""

from __future__ import annotations

import json
import os
from typing import Any


def tail(path: str, size: int) -> list[dict[str, Any]]:
    """The events in the last `size` bytes, oldest first. Other lines than JSON objects are skipped."""
    try:
        with open(path, "rb", opener=_at_once) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - size))
            lines = log.read(size).splitlines()
    except OSError:
        return []
    return [event for event in map(_event, lines) if event]


def _at_once(path: str, flags: int) -> int:
    """Does not wait for a writer if the log is a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:  # the first one may have been cut
        return {}
    return event if isinstance(event, dict) else {}
