"""Runs what parses certificates in a child without rights.

Root reads the sources before that, and writes the files after it. So a certificate that exploits the parser gets the
rights of an ordinary user without capabilities, who can open no file for writing and start no process. What the child
answers is checked like input: it is JSON of strings.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from typing import Any, NoReturn

from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import write_all
from hook.node.rights import keep
from hook.ops.trust.certificate import TrustError

OVERFLOW_UID = 65534
"""What the kernel shows for a uid that a user namespace does not map (proc(5)). It owns no file of the node."""

_ANSWER = 256 << 20
"""The most bytes of an answer."""

_LIMITS = {
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_CPU: 300,
}
"""What the child may use (getrlimit(2)): no file, no process, and so many seconds of CPU time."""

_ALL_UIDS = (1 << 32) - 1


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns what a function returns in the child. Raises TrustError, also for what the child raises; OSError."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, writer)
    os.close(writer)
    with open(reader, "rb") as stream:
        data = stream.read(_ANSWER + 1)
    _, status = os.waitpid(pid, 0)
    try:
        if status or len(data) > _ANSWER:
            raise ValueError
        answer = json.loads(data)
        if "error" in answer:
            raise TrustError(str(answer["error"]), [str(line) for line in answer["details"]])
        return dict(answer)
    except (ValueError, TypeError, KeyError):
        text = f"the child process that reads the certificates failed (status {status})"
        raise TrustError(f"{text}; one of the sources may be made to crash it") from None


def _child(work: Callable[[], dict[str, Any]], writer: int) -> NoReturn:
    status = 1
    try:
        os.dup2(writer, 1)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.closerange(3, 1 << 20)  # the lock of the store, and the caller's other descriptors
        _drop()
        try:
            answer = work()
        except (ReassertError, OSError) as error:
            answer = {"error": describe(error), "details": getattr(error, "details", [])}
        write_all(1, json.dumps(answer).encode())
        status = 0
    finally:
        os._exit(status)  # also after an exception: no code of the parent may run twice


def _drop() -> None:
    """Give up every right, for ever. Raises OSError if that fails, but for ids that a user namespace does not have."""
    for kind, limit in _LIMITS.items():
        resource.setrlimit(kind, (limit, limit))
    if os.geteuid() == 0:
        with open("/proc/self/uid_map") as file:
            is_nodes = int(file.readline().split()[2]) == _ALL_UIDS
        changes: list[tuple[Callable[..., None], list[Any]]] = [
            (os.setgroups, [[]]),
            (os.setresgid, [OVERFLOW_UID] * 3),
            (os.setresuid, [OVERFLOW_UID] * 3),
        ]
        for change, arguments in changes:
            try:
                change(*arguments)
            except OSError:
                if is_nodes:
                    raise
    keep(())
