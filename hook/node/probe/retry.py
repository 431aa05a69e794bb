"""Test containers are started again if they did not start, or if something else ended them before they were examined.

kubelet ends pods that the API server does not know, and test pods are such pods. It looks for them every two seconds
(housekeeping). A refusal of reassert is no reason to try again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hook.core.base.errors import ReassertError
from hook.inside.process import ContainerGone
from hook.node.probe.starter import NotStarted, Running, Unsupported
from hook.node.systemd import wait_until

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

_OURS = re.compile(
    r"reassert: refused"
    r"|executing hook `[^`]*/reassert(-hook)?` \(exit code: 1\)"
    r"|executing \[reassert hook [^]]*\]: exit status 1"
)
"""Matches a refusal of reassert in an engine's message. crun leaves out the hook's output."""

_APPENDED = r"(: unknown)?( Error: failed to start containers: \S+)?( time=\"[^\"]*\" level=.*)?$"
"""What containerd 1.x, docker and podman append."""


def run_probe(start: Callable[[], Running], examine: Callable[[Running], _T]) -> _T:
    """Starts a container, returns what `examine` returns of it, and removes it. Starts another one where that fails.

    Raises what `start` or `examine` raises: NotStarted after STARTS attempts, or at once if reassert refused the
    container; ContainerGone after LIVES attempts; Unsupported, NodeError and OSError at once. Raises NotRemoved.
    """
    failed = gone = 0
    while True:
        try:
            running = start()
            try:
                with translate_exit(running):
                    return examine(running)
            finally:
                running.remove()
        except NotStarted as error:
            failed += 1
            if failed == STARTS or refusal(str(error)):
                raise
        except ContainerGone as error:
            gone += 1
            if gone == LIVES:
                raise ContainerGone(f"each of {LIVES} times, {error}") from None


@contextmanager
def translate_exit(running: Running) -> Iterator[None]:
    """Raises ContainerGone or NotStarted for an error that comes of the end of the container (`Running.ended`)."""
    try:
        yield
    except NotStarted:
        raise
    except (ReassertError, OSError) as error:
        seconds = 0 if isinstance(error, Unsupported) else _DYING_SECONDS
        if not wait_until(lambda: _has_ended(running.pid), seconds, 0.02):
            raise
        ended = running.ended(error)
        if ended is error:
            raise
        raise ended from error


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or is ending: then it has no program any more."""
    try:
        return not os.readlink(f"/proc/{pid}/exe")
    except (FileNotFoundError, ProcessLookupError):
        return True


def refusal(message: str) -> str:
    """Returns reassert's part of an engine's message, "" if reassert did not refuse the container."""
    if not _OURS.search(message):
        return ""
    at = message.find("reassert: refused")
    if at < 0:
        return "refused by the hook; the reason is in the event log, the engine does not show it"
    return re.sub(_APPENDED, "", message[at:])
