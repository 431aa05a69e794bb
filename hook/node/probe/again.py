"""Test containers are started again if they did not start, or if something else ended them before they were examined.

kubelet ends pods that the API server does not know, and test pods are such pods. It looks for them every two seconds
(housekeeping).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hook.core.base.errors import ReassertError
from hook.node.probe.refusal import refusal
from hook.node.probe.starter import Gone, Lacking, NotStarted, Running

STARTS = 3
"""Attempts while the engine does not start the container: a busy engine may fail once, a broken one fails each time."""

LIVES = 10
"""Attempts while something else ends the container.

Housekeeping ends one of two pods whose examination takes one second, and ten in a row in one of a thousand cases. On a
busy node it takes longer, but a pod that replaces an ended one starts just after housekeeping and has nearly two
seconds. Ten such pods and their removals take about half a minute.
"""

_DYING_SECONDS = 0.3
"""How long a process may still be in /proc after an engine has answered that its container is ending."""

_T = TypeVar("_T")


def examined(start: Callable[[], Running], examine: Callable[[Running], _T]) -> _T:
    """Starts a container, returns what `examine` returns of it, and removes it. Starts another one where that fails.

    Raises what `start` or `examine` raises: NotStarted after STARTS attempts, or at once if reassert refused the
    container; Gone after LIVES attempts; Lacking, NodeError and OSError at once. Raises Stays.
    """
    failed = gone = 0
    while True:
        try:
            running = start()
            try:
                with held(running):
                    return examine(running)
            finally:
                running.remove()
        except NotStarted as error:
            failed += 1
            if failed == STARTS or refusal(str(error)):
                raise
        except Gone as error:
            gone += 1
            if gone == LIVES:
                raise Gone(f"each of {LIVES} times, {error}") from None


@contextmanager
def held(running: Running) -> Iterator[None]:
    """Raises Gone or NotStarted for any error of the block that comes of the end of the container (`Running.ended`)."""
    try:
        yield
    except NotStarted:
        raise
    except (ReassertError, OSError) as error:
        if _is_alive(running.pid, 0 if isinstance(error, Lacking) else _DYING_SECONDS):
            raise
        ended = running.ended(error)
        if ended is error:
            raise
        raise ended from error


def _is_alive(pid: int, seconds: float) -> bool:
    """Whether a process is there, and still there after a time. One that is ending has no program any more."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.readlink(f"/proc/{pid}/exe")
        except (FileNotFoundError, ProcessLookupError):
            return False
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.02)
