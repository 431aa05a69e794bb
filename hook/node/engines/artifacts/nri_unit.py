"""The systemd unit of the NRI plugin, and the link that starts it at boot."""

from __future__ import annotations

import shlex
from pathlib import Path

from hook.node.change.files import Change, State, link
from hook.node.errors import NodeError

NAME = "reassert-nri.service"
TEMPLATE = Path(__file__).with_name(NAME)
"""The unit of packaging/systemd; the frozen program has it beside this module."""

PLUGIN_IS_OURS = "unit"
"""A key in an engine's notes. False: something else than this unit runs the plugin (`--no-unit`)."""

PLUGIN_NOT_SEEN = "something else runs the NRI plugin (--no-unit); its state is not known here"
"""The note of `status` on each handler in that case."""

_DIRECTORY = "/etc/systemd/system"
_SOCKET = "/var/run/nri/nri.sock"


def nri_unit(program: str, socket: str) -> tuple[list[Change], list[str]]:
    """Returns the changes that write the unit for this program, and the units to start. `socket`: the engine's."""
    command = [program, "nri", *(["--socket", socket] if socket != _SOCKET else [])]
    source = TEMPLATE if TEMPLATE.exists() else TEMPLATE.parents[4] / "packaging/systemd" / NAME
    try:
        lines = source.read_text().splitlines(keepends=True)
    except OSError as error:
        raise NodeError(f"{source}: {error.strerror}") from None
    text = "".join(f"ExecStart={shlex.join(command)}\n" if line.startswith("ExecStart=") else line for line in lines)
    path = f"{_DIRECTORY}/{NAME}"
    enabled = link(path)
    return [(path, State(text.encode())), (f"{_DIRECTORY}/multi-user.target.wants/{NAME}", enabled)], [NAME]
