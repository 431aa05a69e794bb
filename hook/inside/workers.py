"""Reads what others control in child processes, one for each container, which have given up their rights.

What a container controls is read by a process that can open no file for writing, start no program and reach no other
process: only opening the container's files needs rights, not reading them. A container can also make a read of its
memory or of its mounts wait for ever. Then its process is killed, and that container is reported as not looked at.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from hook.core.base.system import write_all
from hook.core.linux.mountns import own_directories
from hook.inside.rights import CHANGE_USER, ENTER, drop_all, filter_of, keep, only_read

SECONDS = 10.0
"""How long one container may take."""

AT_ONCE = 4
"""Processes at most; there are no more than processors."""

_CHUNK = 1 << 16

RESULT_LIMIT = 64 << 20
"""Bytes of a result."""

_POLL_SECONDS = 3600.0
"""The longest wait of one poll(2), whose argument is an int of milliseconds."""

_ENDING = 2.0
"""Seconds that killed processes get to end, at the end of a round."""

_killed: set[int] = set()
"""Processes that have not ended yet: a read that waits for a file system ends only when that answers."""

T = TypeVar("T")


@dataclass
class _Worker:
    """A child process. `number`: what it works on. `until`: by the monotonic clock. `limit`: bytes of a result."""

    number: int
    pid: int
    results: int
    until: float
    limit: int
    text: bytearray = field(default_factory=bytearray)

    def receive(self) -> bool:
        """Read what is there; returns whether more can follow."""
        try:
            data = os.read(self.results, _CHUNK)
        except BlockingIOError:
            return True
        self.text += data
        return bool(data) and len(self.text) <= self.limit

    def result(self) -> Any:
        """Its result, None if it has not sent all of it."""
        try:
            return json.loads(self.text) if self.text.endswith(b"\n") else None
        except ValueError:
            return None


def each(
    count: int,
    take: Callable[[int], T],
    look: Callable[[int, T], Any],
    seconds: float = SECONDS,
    rights: tuple[int, ...] = ENTER,
    drop: Callable[[], None] = only_read,
    limit: int = RESULT_LIMIT,
) -> Iterator[tuple[int, Any]]:
    """The number and the JSON result for each number below `count`, in the order in which they are done.

    `take` opens what `look` reads, which has no rights and makes the result. `rights`: the capabilities of `take`.
    `drop`: gives them up before `look`. The result is None for a number whose process took longer than `seconds`,
    ended, or sent more than `limit` bytes.
    """
    todo = iter(range(count))
    workers: dict[int, _Worker] = {}
    poll = select.poll()
    filter_of(os.uname().machine)
    try:
        while True:
            for number in islice(todo, min(AT_ONCE, os.cpu_count() or 1) - len(workers)):
                process = _started(number, take, look, rights, drop)
                worker = _Worker(number, *process, time.monotonic() + seconds, limit)
                workers[worker.results] = worker
                poll.register(worker.results, select.POLLIN)
            if not workers:
                return
            wait = min(worker.until for worker in workers.values()) - time.monotonic()
            ready = [fd for fd, _ in poll.poll(min(max(0, wait), _POLL_SECONDS) * 1000 + 1)]
            for worker in list(workers.values()):
                ended = worker.results in ready and not worker.receive()
                if ended or time.monotonic() > worker.until:
                    poll.unregister(worker.results)
                    del workers[worker.results]
                    _kill(worker)
                    yield worker.number, worker.result()
    finally:
        for worker in workers.values():
            _kill(worker)
        _reap(time.monotonic() + _ENDING)


def apart(take: Callable[[], T], look: Callable[[T], Any], rights: tuple[int, ...] = ENTER) -> Any:
    """The JSON result for one container, None as from `each`. `rights`: the capabilities that `take` has."""
    [(_, result)] = each(1, lambda _: take(), lambda _, taken: look(taken), rights=rights)
    return result


def without_any_right(work: Callable[[], Any], limit: int) -> Any:
    """The JSON result of `work` in a child with no right at all, not even a user's own; None as from `each`.

    It may take as much CPU time as hook.inside.rights.drop_all lets it. `limit`: bytes of the result.
    """
    took = each(1, lambda _: None, lambda *_: work(), math.inf, CHANGE_USER, drop_all, limit)
    [(_, result)] = took
    return result


def _started(
    number: int,
    take: Callable[[int], T],
    look: Callable[[int, T], Any],
    rights: tuple[int, ...],
    drop: Callable[[], None],
) -> tuple[int, int]:
    """The pid of a child and the descriptor of its results."""
    results, results_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            gc.disable()  # no finalizer runs while it is in a container's mount namespace
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
            _only_standard(results_in)
            own_directories()  # setns(2) needs it, should a library start a thread here
            keep(rights)
            taken = take(number)
            drop()
            write_all(1, json.dumps(look(number, taken)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(results_in)
    os.set_blocking(results, False)
    return pid, results


def _only_standard(results: int) -> None:
    """Make the results standard output, and close the parent's descriptors: terminals, logs, sockets of a service."""
    os.dup2(results, 1)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd in (0, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the listing's own
                os.close(int(name))


def _kill(worker: _Worker) -> None:
    os.close(worker.results)
    os.kill(worker.pid, signal.SIGKILL)
    _killed.add(worker.pid)
    _reap(0)


def _reap(until: float) -> None:
    """Wait for killed processes. One that cannot end yet is reaped at the end of a later round."""
    for pid in list(_killed):
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > until:
                break
            time.sleep(0.002)
        else:
            _killed.discard(pid)
