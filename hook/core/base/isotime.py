"""Times in ISO 8601, as events, compiled policies and runtimes' records have them. Not part of the start path."""

from __future__ import annotations

from datetime import datetime


def seconds_of(timestamp: object) -> float:
    """Seconds since the epoch of a time in ISO 8601; 0 for any other text."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return 0.0
