"""Our systemd units around a change: started after the files are there, stopped before they go."""

from __future__ import annotations

import os
from contextlib import suppress
from glob import glob

from hook.node import systemd
from hook.node.change.journal import remove_directories

_SOCKET = ".socket"
_AGENT = ("reassert-agent.socket", "reassert-agent.service")
"""They are ready within a second. The NRI plugin is ready when a runtime has connected, so it is not waited for."""

_RUN = ["/run/reassert", "/run/reassert/agent"]
_LISTENING = "/run/reassert/agent/agent.sock"
"""Made by the agent's socket unit. systemd leaves them where it has lost the unit's file."""


def start(units: list[str], moved: bool, different: list[str]) -> None:
    """Starts units, or restarts them if the program was `moved`. Raises NodeError if one does not start.

    `different`: paths that have changed. A socket is restarted only if its own file has: requests that come while the
    agent is restarted wait in it.
    """
    if units:
        systemd.run("daemon-reload")
    changed = {os.path.basename(path) for path in different}
    for unit in units:
        again = unit in changed if unit.endswith(_SOCKET) else moved
        systemd.run("restart" if again else "start", *_patience(unit), unit)


def stop(units: list[str]) -> None:
    """Stop units that are not needed any more. Raises NodeError."""
    for unit in units:
        systemd.run("stop", unit)
    if any(unit.endswith(_SOCKET) for unit in units):
        with suppress(FileNotFoundError):
            os.unlink(_LISTENING)
        remove_directories(_RUN)


def roll_back(units: list[str]) -> None:
    """After the files were put back: restart the units that were there before, stop the others. Raises NodeError."""
    systemd.run("daemon-reload")
    new = [unit for unit in units if not glob(f"/etc/systemd/system/*.wants/{unit}")]
    for unit in units:
        if unit not in new:
            systemd.run("start" if unit.endswith(_SOCKET) else "restart", "--no-block", unit)
    stop([unit for unit in new if systemd.is_active(unit)])


def _patience(unit: str) -> list[str]:
    return [] if unit in _AGENT else ["--no-block"]
