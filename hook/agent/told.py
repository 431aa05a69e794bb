"""What the agent says in the operation log about a request and who made it (docs/events.md)."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from hook.agent import answers
from hook.core.base.system import is_shortage
from hook.entry.cmdline import VERBS, Invocation
from hook.entry.protocol import RUNTIME, Request
from hook.resident import oplog

_EXPECTED = (
    answers.MOUNT,
    answers.SIZE,
    answers.STAGE,
    answers.PIPE,
    answers.BUNDLE,
    answers.PROBE,
    answers.PATH,
    answers.POLICY,
)
"""Reasons for a cold start that the agent has by design. Any other one is a warning."""

_STATE = 1 << 18
"""Bytes of the OCI state in which a container's id is looked for."""

_STAT, _CGROUP = 4096, 4096

_proc = -1


def begin() -> None:
    """Opens /proc. A thread that answers requests may have a container's root directory when it says something."""
    global _proc  # noqa: PLW0603  # one for each process
    _proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def tell_cold(
    reason: str, request: Request, *, given: int, pid: int, began: float, error: BaseException | None = None
) -> None:
    """Says that a start is cold, and why. Lines of one reason and runtime are counted.

    `given`: the descriptor that came with the request. `pid`: of front. `began`: when it connected.
    """
    log = oplog.info if reason in _EXPECTED else oplog.warning
    log(
        "start.cold",
        key=(reason, request.real),
        reason=reason,
        exc_info=error,
        shortage=is_shortage(error) or None,
        runtime=request.real or None,
        duration_ms=round((time.monotonic() - began) * 1000, 1),
        who=lambda: {**_asked(request, given), **caller(pid)},
    )


_LOOKS = 20
"""How many callers are looked at in a second to say who they are: a container can connect ten thousand times."""

_looks = [0.0, 0]  # when the second began, and how many there were


def tell_unanswered(reason: str, pid: int, uid: int = 0, error: BaseException | None = None) -> None:
    """Says that a caller gets no answer, or "start cold" without a look at its request, and why."""
    now = time.monotonic()
    if now - _looks[0] > 1.0:
        _looks[:] = now, 0
    _looks[1] += 1
    who = caller(pid) if _looks[1] <= _LOOKS else {}
    key = (reason, uid, who.get("exe"), who.get("cgroup"))
    oplog.warning("caller.refused", key=key, reason=reason, exc_info=error, uid=uid, **who)


def caller(pid: int) -> dict[str, object]:
    """Who has connected: its program and cgroup, which names a container and its pod, and its parent's program."""
    if not pid or _proc < 0 or not oplog.is_active():
        return {}
    found: dict[str, object] = {"pid": pid}
    with suppress(OSError, ValueError, IndexError):  # it has ended
        found["exe"] = os.readlink(f"{pid}/exe", dir_fd=_proc)
        found["cgroup"] = _read(f"{pid}/cgroup", _CGROUP).partition("\n")[0].rpartition(":")[2]
        parent = int(_read(f"{pid}/stat", _STAT).rpartition(") ")[2].split()[1])
        found["parent"] = os.readlink(f"{parent}/exe", dir_fd=_proc)
    return found


def _asked(request: Request, given: int) -> dict[str, object]:
    """What an engine wants: of its arguments only the verb and the container's id, if both are certain."""
    if request.kind != RUNTIME:
        with suppress(OSError, ValueError, AttributeError):
            state = json.loads(os.pread(given, _STATE, 0))
            return {"verb": "hook", "id": state.get("id")}
        return {"verb": "hook"}
    invocation = Invocation(request.arguments)
    if invocation.verb not in VERBS or invocation.doubt():
        return {}
    return {"verb": invocation.verb, "id": invocation.container_id or None}


def _read(path: str, size: int) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=_proc)
    try:
        return os.read(fd, size).decode("utf-8", "replace")
    finally:
        os.close(fd)
