"""The systemd service that runs the NRI plugin: the resident agent's, or where there is no agent one of its own."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hook.node import systemd
from hook.node.change.files import Change, State, link
from hook.node.change.units import AGENT, DROP_IN
from hook.node.change.units import PLUGIN as NAME
from hook.node.engines.base import Choice
from hook.node.errors import NodeError

TEMPLATE = Path(__file__).with_name(NAME)
"""The unit of packaging/systemd; the frozen program has it beside this module."""

PLUGIN_IS_OURS = "unit"
"""A key in an engine's notes. False: something else than a service of this node runs the plugin (`--no-unit`)."""

PLUGIN_NOT_SEEN = "something else runs the NRI plugin (--no-unit); its state is not known here"
"""The note of `status` on each handler in that case."""

_DIRECTORY = "/etc/systemd/system"
_SOCKET = "/var/run/nri/nri.sock"

_WITH_PLUGIN = f"""\
# Written by `reassert node`: the agent runs the NRI plugin too (docs/agent.md).
[Unit]
# NRI refuses a container for which two plugins set the same name, so only one of the two services runs.
Conflicts={NAME}
After={NAME}

[Service]
Environment="NRI=OPTIONS"
# The service is ready when a runtime has connected, which may take any time.
TimeoutStartSec=infinity
"""


def nri_unit(choice: Choice, socket: str) -> tuple[list[Change], list[str]]:
    """Returns the changes that make a service run the plugin, and the units to start besides the agent's.

    `socket`: the engine's. Raises NodeError.
    """
    if choice.front:
        where = ["--nri-socket", socket] if socket != _SOCKET else []
        text = _WITH_PLUGIN.replace("OPTIONS", " ".join(["--nri", *where]))
        return [(DROP_IN, State(text.encode()))], []
    command = [choice.program, "nri", *(["--socket", socket] if socket != _SOCKET else [])]
    source = TEMPLATE if TEMPLATE.exists() else TEMPLATE.parents[3] / "packaging/systemd" / NAME
    try:
        lines = source.read_text().splitlines(keepends=True)
    except OSError as error:
        raise NodeError(f"{source}: {error.strerror}") from None
    text = "".join(f"ExecStart={shlex.join(command)}\n" if line.startswith("ExecStart=") else line for line in lines)
    path = f"{_DIRECTORY}/{NAME}"
    enabled = link(path)
    return [(path, State(text.encode())), (f"{_DIRECTORY}/multi-user.target.wants/{NAME}", enabled)], [NAME]


def plugin_runs() -> bool:
    """Whether the service that runs the plugin is active: a runtime has connected since it was started."""
    return systemd.is_active(NAME) or (os.path.exists(DROP_IN) and systemd.is_active(AGENT))
