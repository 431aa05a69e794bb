"""The agent's threads: few that work at once, and more as soon as requests wait behind stuck ones.

Threads of Python run one at a time, so more of them only make each request slower. A request that hangs, on a
hostPath that does not answer, keeps its thread; RELIEF later another one takes the requests that wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

READY = 2
"""Threads that are always there, as soon as they were needed once."""

RELIEF = 0.01
"""Seconds for which no request was taken, while one waits, until another thread is started."""

_AT_ONCE = 4
"""Threads that are started then."""

_IDLE = 5.0
"""Seconds after which a thread beyond READY ends."""

T = TypeVar("T")


class Workers(Generic[T]):
    """At most `limit` requests at once: those that are worked on and those that wait.

    `work`: does one; it never raises, and returns whether its thread may do another one. `prepare`: called in each new
    thread.
    """

    def __init__(self, limit: int, work: Callable[[T], bool], prepare: Callable[[], None]) -> None:
        self._limit = limit
        self._work = work
        self._prepare = prepare
        self._queue: SimpleQueue[T | None] = SimpleQueue()  # None: end
        self._lock = threading.Lock()
        self._count = 0  # requests
        self._threads = 0
        self._idle = 0
        self._taken = 0.0
        self._closed = False

    def submit(self, job: T) -> bool:
        """Whether there was room for it, and a thread that will do it."""
        with self._lock:
            if self._count >= self._limit:
                return False
            self._count += 1
            starts = self._queue.qsize() >= self._idle and self._threads < READY
            self._threads += starts
        if starts and not self._start() and not self._threads:
            with self._lock:
                self._count -= 1
            return False
        if self._queue.empty():
            self._taken = time.monotonic()  # nothing waited until now
        self._queue.put(job)
        return True

    def look_after(self) -> float | None:
        """Relieve stuck threads. The seconds until the next look, None if no request waits."""
        if self._queue.empty():
            return None
        if time.monotonic() - self._taken > RELIEF:
            self._taken = time.monotonic()
            with self._lock:
                count = min(self._queue.qsize(), _AT_ONCE, self._limit - self._threads)
                self._threads += count
            for _ in range(count):
                self._start()
        return RELIEF

    def wait(self, seconds: float) -> None:
        """Until all requests are done, at most so long."""
        deadline = time.monotonic() + seconds
        while self._count and time.monotonic() < deadline:
            time.sleep(0.01)

    def count(self) -> int:
        """Requests that are worked on or wait."""
        return self._count

    def close(self) -> None:
        """End every thread after its request. No request may be submitted any more."""
        with self._lock:
            self._closed = True
            count = self._threads
        for _ in range(count):
            self._queue.put(None)

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._run, name="work", daemon=True).start()
        except RuntimeError:  # no more threads
            with self._lock:
                self._threads -= 1
            return False
        return True

    def _run(self) -> None:
        goes_on = prepared = False
        try:
            self._prepare()
            goes_on = prepared = True
            while goes_on:
                with self._lock:
                    self._idle += 1
                    lasts = self._threads <= READY
                try:
                    job = self._queue.get(timeout=None if lasts else _IDLE)
                except Empty:
                    job = None
                self._taken = time.monotonic()
                with self._lock:
                    self._idle -= 1
                if job is None:
                    goes_on = False
                    continue
                try:
                    goes_on = self._work(job)
                finally:
                    with self._lock:
                        self._count -= 1
        finally:
            if not prepared:  # the next thread may fail as well
                time.sleep(RELIEF)
            with self._lock:
                self._threads -= 1
                starts = not self._threads and not self._queue.empty() and not self._closed
                self._threads += starts
            if starts:
                self._start()
