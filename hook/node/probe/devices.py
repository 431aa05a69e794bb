"""What a running test container can do with devices that it must not have."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hook.container.nodes import words
from hook.linux.lookdevices import look_at_devices
from hook.node.errors import NodeError
from hook.reserve.exclusive import Closed

_CGROUPS = Path("/sys/fs/cgroup")


def reached(pid: int, closed: Closed) -> list[str]:
    """The closed devices that a container has in its file system, or that its cgroup lets a process use.

    A child process does it: it enters the container's cgroup and mount namespace. Raises NodeError, OSError.
    """
    cgroups = _cgroups(pid)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            try:
                said = _look(pid, closed, cgroups)
            except Exception as error:  # of any type: the parent is told
                said = {"error": str(error) or type(error).__name__}
            os.write(writer, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        text = os.fdopen(reader, "rb").read()
    finally:
        os.waitpid(child, 0)
    answer = json.loads(text or b'{"error": "the look at its devices failed"}')
    if "error" in answer:
        raise NodeError(f"the container's devices cannot be looked at: {answer['error']}")
    return list(answer["found"])


def _look(pid: int, closed: Closed, cgroups: list[Path]) -> dict[str, object]:
    for cgroup in cgroups:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    found = []
    for number, (_, path) in sorted(closed.nodes.items()):
        # access(2) asks the device cgroup without opening the device: root is denied by nothing else.
        may = "".join(letter for letter, mode in (("r", os.R_OK), ("w", os.W_OK)) if os.access(path, mode))
        if may:
            found.append(f"its cgroup gives {may} access to {path} ({words(number)})")
    reasons = look_at_devices(pid, "/", closed)
    return {"found": [reason.message.removeprefix("not allocated: ") for reason in reasons] + found}


def _cgroups(pid: int) -> list[Path]:
    """The cgroups of a process whose rules for devices apply: cgroup v1's, or the unified one. Raises NodeError."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if "devices" in names.split(","):
            return [_CGROUPS / "devices" / path.lstrip("/")]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        if line.startswith("0::") and (_CGROUPS / "cgroup.controllers").exists():
            return [_CGROUPS / line[3:].lstrip("/")]
    raise NodeError("the container's device cgroup was not found")
