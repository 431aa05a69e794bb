"""Our systemd units around a change: started after the files are there, stopped before they go."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from glob import glob

from hook.core.base.errors import ReassertError
from hook.node import systemd
from hook.node.agent_status import ask
from hook.node.artifacts.dispatchers import WHERE
from hook.node.change.journal import remove_directories
from hook.node.errors import NodeError

AGENT, PLUGIN = "reassert-agent.service", "reassert-nri.service"
DROP_IN = f"/etc/systemd/system/{AGENT}.d/nri.conf"
"""With this file the agent runs the NRI plugin. Then PLUGIN does not run: one of the two, never both."""

_SOCKET = ".socket"
_AGENT = ("reassert-agent.socket", AGENT)

_RUN = ["/run/reassert", "/run/reassert/agent"]
_LISTENING = "/run/reassert/agent/agent.sock"
"""Made by the agent's socket unit. systemd leaves them where it has lost the unit's file."""


def start(units: list[str], moved: bool, different: list[str], stale: list[str]) -> None:
    """Starts units, or restarts them if the program was `moved`. Raises NodeError if one does not start.

    `different`: paths that have changed. A socket is restarted only if its own file has: requests that come while the
    agent is restarted wait in it. `stale`: units that are stopped later. If the plugin moves from the agent to a
    service of its own, the agent is stopped first: a request would start it again, and that would stop the service.
    """
    if units:
        systemd.run("daemon-reload")
    if PLUGIN in units:
        stop([unit for unit in stale if unit in _AGENT])
    changed = {os.path.basename(path) for path in different}
    for unit in units:
        again = unit in changed if unit.endswith(_SOCKET) else moved
        systemd.run("restart" if again else "start", *_patience(unit), unit)


def wait(units: list[str], restarted: bool, artifacts: Iterable[str]) -> None:
    """Waits until all of them are active, and the engine's plugin is connected. Raises NodeError.

    `restarted`: the engine was, after their start. `artifacts`: the engine's, which with DROP_IN has the plugin. What
    runs the plugin stays active when a runtime ends, so it may not have connected again; an engine that requires the
    plugin refuses every container until then.
    """
    if restarted and PLUGIN in units:
        systemd.run("stop", PLUGIN)
        systemd.run("start", "--no-block", PLUGIN)
    for unit in units:
        systemd.wait_active(unit)
    deadline = time.monotonic() + systemd.SECONDS
    while restarted and AGENT in units and DROP_IN in artifacts and not _is_connected():
        if time.monotonic() > deadline:
            raise NodeError(f"the engine is not connected to the NRI plugin in {AGENT}{systemd.last_lines(AGENT)}")
        time.sleep(0.05)


def _is_connected() -> bool:
    """Whether a runtime is connected to the plugin in the agent."""
    try:
        return ask(WHERE["socket"]).get("nri") is True
    except ReassertError:  # it is being restarted
        return False


def stop(units: list[str]) -> None:
    """Stop units that are not needed any more. Raises NodeError."""
    for unit in units:
        systemd.run("stop", unit)
    if any(unit.endswith(_SOCKET) for unit in units):
        with suppress(FileNotFoundError):
            os.unlink(_LISTENING)
        remove_directories(_RUN)


def roll_back(units: list[str]) -> None:
    """After the files were put back: stop all units, then start those that were there before. Raises NodeError.

    A socket that was there before is not stopped: requests wait in it.
    """
    systemd.run("daemon-reload")
    old = [unit for unit in units if glob(f"/etc/systemd/system/*.wants/{unit}")]
    stop([unit for unit in units if unit not in old and systemd.is_active(unit)])
    for unit in old:
        if not unit.endswith(_SOCKET):
            systemd.run("stop", unit)
    for unit in old:
        systemd.run("start", "--no-block", unit)


def without_plugin() -> None:
    """Restarts the agent after DROP_IN was removed. Raises NodeError."""
    systemd.run("daemon-reload")
    systemd.run("restart", AGENT)


def _patience(unit: str) -> list[str]:
    """What runs the plugin is ready when a runtime has connected, so it is not waited for here."""
    return [] if unit in _AGENT and not os.path.exists(DROP_IN) else ["--no-block"]
