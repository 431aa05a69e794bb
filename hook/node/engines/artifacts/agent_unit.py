"""The resident agent on a node: its systemd units, and the text file that hook entries execute (docs/agent.md)."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from hook.emit.front import warm_hook
from hook.node import systemd
from hook.node.change.files import Change, State, link
from hook.node.change.program import installed
from hook.node.engines.artifacts.dispatchers import WHERE, hook_file
from hook.node.engines.base import HOOK, NRI, RUNTIME, Choice, Wiring
from hook.node.errors import NodeError

SOCKET, SERVICE = "reassert-agent.socket", "reassert-agent.service"
UNITS = (SOCKET, SERVICE)

AGENT_IS_WANTED = "agent"
"""In an engine's notes, with the value False: no agent is wanted (`--no-agent`)."""

_DIRECTORY = "/etc/systemd/system"
_PACKAGED = "/usr/lib/systemd/system"
_WANTED_BY = {SOCKET: "sockets.target", SERVICE: "multi-user.target"}


def add_agent(wiring: Wiring, choice: Choice) -> None:
    """Add what an agent needs to an engine's wiring; nothing where starts are to be cold.

    The hook file comes before the dispatchers, which name it, and goes after them.
    """
    if not choice.agent:
        wiring.notes[AGENT_IS_WANTED] = False
    if choice.front and {RUNTIME, HOOK, NRI} & set(choice.adapters):
        wiring.artifacts[:0] = [*_units(choice.program), _hook_file(choice)]
        wiring.units = [*UNITS, *wiring.units]


def why_cold(wanted: bool, front: str) -> str:
    """Why there can be no agent on this node; "" where there can. `front`: its path, "" where it was not built."""
    if not wanted:
        return "--no-agent"
    if not systemd.available():
        return "this node's init is not systemd"
    return "" if front else "front was not built: packaging/build.sh builds it where musl-gcc is (Debian: musl-tools)"


def is_wanted(notes: dict[str, Any]) -> bool:
    """What the last install was told, by an engine's notes."""
    return bool(notes.get(AGENT_IS_WANTED, True))


def _hook_file(choice: Choice) -> Change:
    text = warm_hook(choice.program, choice.front, WHERE, [], installed(choice.program))
    return hook_file(), State(text.encode(), mode=0o755)


def _units(program: str) -> list[Change]:
    """The unit files, and what `systemctl enable` would make. A package has the files: then only that."""
    found: list[Change] = []
    for name in UNITS:
        path = f"{_PACKAGED}/{name}"
        if not (program.startswith("/usr/lib/") and os.path.exists(path)):
            path = f"{_DIRECTORY}/{name}"
            found.append((path, State(_text(name, program).encode())))
        found.append((f"{_DIRECTORY}/{_WANTED_BY[name]}.wants/{name}", link(path)))
    return found


def _text(name: str, program: str) -> str:
    template = Path(__file__).with_name(name)
    source = template if template.exists() else template.parents[4] / "packaging/systemd" / name
    try:
        lines = source.read_text().splitlines(keepends=True)
    except OSError as error:
        raise NodeError(f"{source}: {error.strerror}") from None
    command = f"ExecStart={shlex.join([program, 'agent'])}\n"
    return "".join(command if line.startswith("ExecStart=") else line for line in lines)
