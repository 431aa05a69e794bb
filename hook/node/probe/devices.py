"""What a running test container can do with devices that it must not have."""

from __future__ import annotations

import os
from pathlib import Path

from hook.core.container.nodes import words
from hook.core.linux.lookdevices import devices_below
from hook.core.linux.walk import open_walked
from hook.core.reserve.exclusive import Closed
from hook.node.errors import NodeError
from hook.node.rights import DAC_OVERRIDE, ENTER
from hook.node.running import Taken
from hook.node.workers import apart

_CGROUPS = Path("/sys/fs/cgroup")


def reached(pid: int, closed: Closed) -> list[str]:
    """The closed devices that a container has in its file system, or that its cgroup lets a process use.

    A child process does it: it enters the container's cgroup, and takes its mounts. Raises NodeError, OSError.
    """
    cgroups = _cgroups(pid)
    # access(2) of root is denied by the device cgroup alone, if root may override the owner and mode of a device.
    answer = apart(lambda: _take(pid, closed, cgroups), lambda taken: _look(closed, taken), (*ENTER, DAC_OVERRIDE))
    if not isinstance(answer, list):
        raise NodeError(f"the container's devices cannot be looked at: {answer or 'the look at its devices failed'}")
    return answer


def _take(pid: int, closed: Closed, cgroups: list[Path]) -> tuple[Taken, list[str]] | str:
    """The container's root and mounts, and the devices that its cgroup gives; or what went wrong."""
    try:
        for cgroup in cgroups:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        found = []
        for number, (_, path) in sorted(closed.nodes.items()):
            # access(2) asks the device cgroup without opening the device.
            may = "".join(letter for letter, mode in (("r", os.R_OK), ("w", os.W_OK)) if os.access(path, mode))
            if may:
                found.append(f"its cgroup gives {may} access to {path} ({words(number)})")
        return Taken(pid, lambda: None), found
    except Exception as error:  # of any type: the parent is told
        return str(error) or type(error).__name__


def _look(closed: Closed, taken: tuple[Taken, list[str]] | str) -> list[str] | str:
    if isinstance(taken, str):
        return taken
    try:
        reasons = devices_below(taken[0].root, "", taken[0].table(), closed, open_walked)
    except Exception as error:
        return str(error) or type(error).__name__
    return [reason.message.removeprefix("not allocated: ") for reason in reasons] + taken[1]


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
