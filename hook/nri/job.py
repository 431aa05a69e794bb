"""A request of a runtime that is being answered, by one of two threads."""

from __future__ import annotations

import threading
import time


class Job:
    """A request in progress. The first thread that claims it answers it, and no other does."""

    def __init__(self, stream: int, method: str, limit: float) -> None:
        self.stream = stream
        self.method = method
        self.started = time.monotonic()
        self.deadline = self.started + limit
        self.container = ""
        self._answered = threading.Lock()

    def claim(self) -> bool:
        """Claim the right to answer. False if another thread has it already."""
        return self._answered.acquire(blocking=False)

    def answered(self) -> bool:
        """Whether a thread has claimed the answer."""
        return self._answered.locked()
