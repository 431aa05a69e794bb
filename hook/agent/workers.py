"""The agent's threads: few that work at once, and more as soon as requests wait behind stuck ones.

Threads of Python run one at a time, so more of them only make each request slower. An idle thread takes a request
itself, so no request waits for a second thread to wake up. Where no thread is idle, the main thread queues requests. A
request that hangs, on a hostPath that does not answer, keeps its thread. After RELIEF another thread takes those that
wait.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

READY = 2
"""Threads that are always there."""

RELIEF = 0.01
"""Seconds for which no request was taken, while one waits, until another thread is started."""

_AT_ONCE = 4
"""Threads that are started then."""

_IDLE = 5.0
"""Seconds after which a thread beyond READY ends."""

T = TypeVar("T")


class Workers(Generic[T]):
    """At most `limit` requests at once: those that are worked on and those that wait.

    `poll`: what idle threads wait for. `take`: returns the request behind a descriptor that is ready, or None; it never
    raises. `work`: does one; it never raises, and returns whether its thread may do another one. `prepare`: called in
    each new thread. `idle`: seconds after which a thread beyond READY ends.
    """

    def __init__(
        self,
        limit: int,
        *,
        poll: select.epoll,
        take: Callable[[int], T | None],
        work: Callable[[T], bool],
        prepare: Callable[[], None],
        idle: float = _IDLE,
    ) -> None:
        self._limit = limit
        self._longest_idle = idle
        self._poll = poll
        self._take = take
        self._work = work
        self._prepare = prepare
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        self._count = 0  # requests
        self._threads = 0
        self._idle = 0
        self._taken = 0.0
        self._closed = False
        self._kick = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes one idle thread
        poll.register(self._kick, select.EPOLLIN | select.EPOLLET)
        self.crowded = threading.Event()
        """Set when no thread is idle any more; the thread that waits for it clears it."""

    def start(self) -> None:
        """Starts the threads that are always there, as far as they are missing."""
        with self._lock:
            count = 0 if self._closed else max(0, READY - self._threads)
            self._threads += count
        for _ in range(count):
            self._start()

    def is_crowded(self) -> bool:
        """Whether no thread is idle: the main thread has to take requests, and to `submit` them."""
        return not self._idle

    def submit(self, job: T) -> bool:
        """Queues a request; whether there was room for it."""
        with self._lock:
            if self._count >= self._limit:
                return False
            self._count += 1
        if not self._queue:
            self._taken = time.monotonic()  # nothing waited until now
        self._queue.append(job)
        self.start()
        if self._idle:
            self._wake()
        return True

    def look_after(self) -> None:
        """Relieve stuck threads."""
        if self._queue and time.monotonic() - self._taken > RELIEF:
            self._taken = time.monotonic()
            with self._lock:
                count = min(len(self._queue), _AT_ONCE, self._limit - self._threads)
                self._threads += count
            for _ in range(count):
                self._start()

    def wait(self, seconds: float) -> None:
        """Waits until all requests are done, at most so many seconds."""
        deadline = time.monotonic() + seconds
        while self._count and time.monotonic() < deadline:
            time.sleep(0.01)

    def count(self) -> int:
        """Requests that are worked on or wait."""
        return self._count

    def close(self) -> None:
        """End every thread after its request. No request may be submitted any more."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._kick, 1)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="work", daemon=True).start()
        except RuntimeError:  # no more threads
            with self._lock:
                self._threads -= 1

    def _run(self) -> None:
        prepared = False
        try:
            self._prepare()
            prepared = goes_on = True
            while goes_on and (job := self._next()) is not None:
                self._taken = time.monotonic()
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
            if prepared:
                self.start()
            if self._closed:
                self._wake()  # the next one

    def _next(self) -> T | None:
        """The next request, None if this thread is to end: all end, or no request came and there are enough threads."""
        while not self._closed:
            with self._lock:
                self._idle += 1
                lasts = self._threads <= READY
            found = [] if self._queue else self._poll.poll(None if lasts else self._longest_idle, 1)
            with self._lock:
                self._idle -= 1
                job = self._queue.popleft() if self._queue and not found else None
                enough = self._threads > READY
            if not self._idle and not self.crowded.is_set():
                self.crowded.set()
            if job is None and found and found[0][0] != self._kick:
                job = self._take(found[0][0])
                with self._lock:
                    self._count += job is not None
            if job is not None:
                return job
            if enough and not found:
                return None
        return None
