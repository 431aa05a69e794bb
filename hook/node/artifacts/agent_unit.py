"""The resident agent on a node: its systemd units, and the text file that hook entries execute (docs/agent.md)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hook.core.base.errors import Usage
from hook.node import systemd
from hook.node.artifacts.dispatchers import WHERE, hook_file
from hook.node.artifacts.front import warm_hook
from hook.node.change.files import Change, State, link
from hook.node.change.tree import is_installed
from hook.node.change.units import AGENT
from hook.node.engines.base import HOOK, NRI, RUNTIME, Choice, Wiring
from hook.node.errors import NodeError
from hook.node.metrics import check_address, check_directory

SOCKET, SERVICE = "reassert-agent.socket", AGENT
UNITS = (SOCKET, SERVICE)

AGENT_IS_WANTED = "agent"
"""In an engine's notes, with the value False: no agent is wanted (`--no-agent`)."""

METRICS = "metrics"
"""In an engine's notes: the agent's options for metrics, by name. Empty if they were taken back."""

_DIRECTORY = "/etc/systemd/system"
_DROP_IN = f"{_DIRECTORY}/{SERVICE}.d/metrics.conf"
_PACKAGED = "/usr/lib/systemd/system"
_WANTED_BY = {SOCKET: "sockets.target", SERVICE: "multi-user.target"}


def add_agent(wiring: Wiring, choice: Choice) -> None:
    """Add what an agent needs to an engine's wiring; nothing where starts are to be cold.

    The hook file comes before the dispatchers, which name it, and goes after them.
    """
    if not choice.agent:
        wiring.notes[AGENT_IS_WANTED] = False
    if choice.metrics is not None:
        wiring.notes[METRICS] = choice.metrics
    if choice.front and {RUNTIME, HOOK, NRI} & set(choice.adapters):
        wiring.artifacts[:0] = [*_drop_in(choice.metrics), *_units(choice.program), _hook_file(choice)]
        wiring.units = [*UNITS, *wiring.units]
    elif choice.metrics:
        wiring.remarks.append("no metrics are served, because there is no agent")


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


def metrics_of(
    given: dict[str, str | None], notes: dict[str, Any], others: Iterable[dict[str, Any]]
) -> dict[str, str] | None:
    """The agent's options for metrics. `given`: by this install; None as before, "" no more. Raises Usage.

    `notes`: the engine's. `others`: those of other engines, which have the same agent.
    """
    before = next((found[METRICS] for found in (notes, *others) if METRICS in found), None)
    said = {name: value for name, value in given.items() if value is not None}
    if not said or (before is None and not any(said.values())):
        return before
    if address := said.get("metrics"):
        check_address(address)
    if directory := said.get("textfile"):
        check_directory(directory)
    for name, value in said.items():
        if not re.fullmatch(r"[\w./:\[\]@+-]*", value, re.ASCII):
            raise Usage(f"--{name} {value!r}: a systemd unit cannot pass on this text")
    return {name: value for name, value in {**(before or {}), **said}.items() if value}


def _drop_in(metrics: dict[str, str] | None) -> list[Change]:
    """A drop-in stays when its options are taken back: the service is restarted where the file has changed."""
    if metrics is None:
        return []
    words = " ".join(f"--{name} {value}" for name, value in metrics.items())
    return [(_DROP_IN, State(f'# By `reassert node install`\n[Service]\nEnvironment="METRICS={words}"\n'.encode()))]


def _hook_file(choice: Choice) -> Change:
    text = warm_hook(choice.program, choice.front, WHERE, [], is_installed(choice.program))
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
    source = template if template.exists() else template.parents[3] / "packaging/systemd" / name
    try:
        lines = source.read_text().splitlines(keepends=True)
    except OSError as error:
        raise NodeError(f"{source}: {error.strerror}") from None
    command = f"ExecStart={shlex.join([program, 'agent'])} $NRI $METRICS $OPTIONS\n"
    return "".join(command if line.startswith("ExecStart=") else line for line in lines)
