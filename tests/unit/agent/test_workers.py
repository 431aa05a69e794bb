"""Few threads work, stuck ones are relieved, and those beyond the usual number end."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import marks
import pytest

from hook.agent import workers
from hook.agent.workers import READY, Workers

pytestmark = marks.promise(
    "A stuck request holds no other one up, and SIGTERM ends the agent while all hang", about="Agent"
)


def threads() -> int:
    return sum(thread.name == "work" for thread in threading.enumerate())


def until(condition: object) -> None:
    deadline = time.monotonic() + 600
    while not condition():  # type: ignore[operator]  # any callable
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Pool(Workers[int]):
    """Workers that end with their test."""

    made: ClassVar[list[Pool]] = []

    def __init__(
        self,
        limit: int,
        work: Callable[[int], bool],
        prepare: Callable[[], None],
        take: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self.poll = select.epoll()
        super().__init__(limit, poll=self.poll, take=take, work=work, prepare=prepare, idle=0.1)
        self.made.append(self)


@pytest.fixture(autouse=True)
def pools_end() -> Iterator[None]:
    yield
    for pool in Pool.made:
        pool.close()
    Pool.made.clear()


def served(pool: Workers[int], count: int) -> None:
    for number in range(count):
        assert pool.submit(number)
        pool.look_after()
    while pool.count():
        pool.look_after()
        time.sleep(0.001)


def test_stuck_requests_hold_nobody_up_and_their_threads_end() -> None:
    before, go, done = threads(), threading.Event(), []

    def work(job: int) -> bool:
        if job:
            go.wait(20)
        done.append(job)
        return True

    pool = Pool(50, work, lambda: None)
    for _ in range(30):
        assert pool.submit(1)
    assert pool.submit(0)
    while 0 not in done:
        pool.look_after()
        time.sleep(0.001)
    assert not done.count(1), "they still hang"
    go.set()
    pool.wait(20)
    assert done.count(1) == 30
    until(lambda: threads() - before <= READY)
    served(pool, 20)


def test_an_idle_thread_takes_a_request_itself_and_says_when_none_is_idle() -> None:
    go, done = threading.Event(), []
    events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)

    def take(fd: int) -> int | None:
        assert fd == events
        try:
            return os.eventfd_read(fd)
        except BlockingIOError:  # another thread was faster
            return None

    def work(job: int) -> bool:
        go.wait(20)
        done.append(job)
        return True

    pool = Pool(10, work, lambda: None, take)
    pool.poll.register(events, select.EPOLLIN)
    pool.start()
    until(lambda: not pool.is_crowded())
    os.eventfd_write(events, READY)
    assert pool.crowded.wait(20)
    until(lambda: pool.count() == READY)
    assert pool.is_crowded()
    go.set()
    pool.wait(20)
    assert done == [1] * READY
    until(lambda: not pool.is_crowded())
    assert pool.submit(2)  # a request that the main thread took wakes an idle one
    pool.wait(20)
    assert done[-1] == 2


def test_threads_that_hang_before_their_first_request_are_no_more_than_the_limit() -> None:
    before, go = threads(), threading.Event()
    pool = Pool(READY + 3, lambda _: True, lambda: assert_set(go))
    for _ in range(READY + 3):
        assert pool.submit(1)
    for _ in range(10):
        time.sleep(2 * workers.RELIEF)
        pool.look_after()
    assert threads() - before == READY + 3
    go.set()
    pool.wait(20)


def assert_set(event: threading.Event) -> None:
    assert event.wait(20)


def test_a_thread_that_may_not_go_on_is_replaced() -> None:
    seen = set()

    def work(_: int) -> bool:
        seen.add(threading.current_thread())
        time.sleep(0.002)
        return False

    pool = Pool(100, work, lambda: None)
    served(pool, 50)
    assert len(seen) == 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_cannot_be_prepared_takes_no_request() -> None:
    prepared = []

    def prepare() -> None:
        prepared.append(1)
        if len(prepared) < 3:
            raise OSError

    pool = Pool(10, lambda _: True, prepare)
    served(pool, 5)
    assert len(prepared) >= 3
