"""The end of the event log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def tail(path: str, size: int) -> list[dict[str, Any]]:
    """The events in the last `size` bytes, oldest first. Other lines than JSON objects are skipped."""
    try:
        with Path(path).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - size))
            lines = log.read().splitlines()
    except OSError:
        return []
    return [event for event in map(_event, lines) if event]


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:  # the first one may have been cut
        return {}
    return event if isinstance(event, dict) else {}
