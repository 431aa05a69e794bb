"""Looks at containers in child processes.

A container can make a read of its memory or of its mounts wait for ever. Then its worker is killed, that container is
reported as not looked at, and another worker goes on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hook.linux.mountns import own_directories

SECONDS = 10.0
"""How long one container may take."""

AT_ONCE = 4
"""Workers at most; there are no more than processors."""

_CHUNK = 1 << 16


@dataclass
class _Worker:
    """A child process. `job`: the number that it works on, -1 for none. `since`: of the monotonic clock."""

    pid: int
    jobs: int
    results: int
    job: int = -1
    since: float = 0.0
    text: bytes = b""


def each(count: int, work: Callable[[int], Any], seconds: float = SECONDS) -> Iterator[tuple[int, Any]]:
    """The number and the JSON result of `work` for each number below `count`, in the order in which they are done.

    The result is None for a number whose worker took longer than `seconds`, or ended.
    """
    todo = iter(range(count))
    workers = [_started(work) for _ in range(min(AT_ONCE, os.cpu_count() or 1, count))]
    try:
        for worker in workers:
            _give(worker, todo)
        while any(worker.job >= 0 for worker in workers):
            ready, _, _ = select.select([worker.results for worker in workers if worker.job >= 0], [], [], 0.1)
            for index, worker in enumerate(workers):
                ended = worker.results in ready and not _receive(worker)
                if worker.text.endswith(b"\n"):
                    yield worker.job, json.loads(worker.text)
                elif worker.job >= 0 and (ended or time.monotonic() - worker.since > seconds):
                    yield worker.job, None
                    _end(worker)
                    workers[index] = _started(work)
                else:
                    continue
                _give(workers[index], todo)
    finally:
        for worker in workers:
            _end(worker)


def _started(work: Callable[[int], Any]) -> _Worker:
    jobs_out, jobs = os.pipe()
    results, results_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(jobs)
            os.close(results)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
            own_directories()  # setns(2) needs it, should a library start a thread here
            while number := os.read(jobs_out, 8):
                _send(results_in, json.dumps(work(int.from_bytes(number))).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(jobs_out)
    os.close(results_in)
    os.set_blocking(results, False)
    return _Worker(pid, jobs, results)


def _send(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _give(worker: _Worker, todo: Iterator[int]) -> None:
    worker.job, worker.since, worker.text = next(todo, -1), time.monotonic(), b""
    if worker.job >= 0:
        try:
            os.write(worker.jobs, worker.job.to_bytes(8))
        except BrokenPipeError:  # it was killed; its results end
            pass


def _receive(worker: _Worker) -> bool:
    """Read what there is; whether the worker still runs."""
    try:
        data = os.read(worker.results, _CHUNK)
    except BlockingIOError:
        return True
    worker.text += data
    return bool(data)


def _end(worker: _Worker) -> None:
    """End a worker. One that cannot be killed, because its read waits for a file system, is not waited for."""
    os.close(worker.jobs)
    os.close(worker.results)
    os.kill(worker.pid, signal.SIGKILL)
    for _ in range(20):
        if os.waitpid(worker.pid, os.WNOHANG)[0]:
            return
        time.sleep(0.005)
