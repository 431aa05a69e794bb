"""Our systemd services on a node, the resident agent and the NRI plugin: their units, and their start and stop."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
from _socket import AF_UNIX, SOCK_SEQPACKET, socket  # `socket` itself loads slowly
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from glob import glob
from pathlib import Path
from typing import Any

from hook.core.base.errors import ReassertError, Usage, describe
from hook.entry import protocol
from hook.entry.dispatcher import warm_hook
from hook.node import systemd
from hook.node.artifacts.dispatchers import WHERE, hook_file
from hook.node.change.files import Change, State, link
from hook.node.change.journal import remove_directories
from hook.node.change.tree import is_installed
from hook.node.engines.base import HOOK, NRI, RUNTIME, Choice, Handler, Wiring
from hook.node.errors import NodeError

SOCKET, SERVICE, PLUGIN = "reassert-agent.socket", "reassert-agent.service", "reassert-nri.service"
UNITS = (SOCKET, SERVICE)
"""The agent's."""

TIMERS = ("reassert-status.timer", "reassert-verify.timer")
"""Each starts the service of its name: a look at the wiring each minute, and `verify` once a day."""

_COMMANDS = {
    SERVICE: "agent $LOG $NRI $METRICS $OPTIONS",
    "reassert-status.service": "node status --record $LOG",
    "reassert-verify.service": "node verify --again $LOG",
}
"""The arguments with which the services start the program. 0.3 knows these too, to which a package can go back."""

DROP_IN = f"/etc/systemd/system/{SERVICE}.d/nri.conf"
"""With this file the agent runs the NRI plugin. Then PLUGIN does not run: one of the two, never both."""

AGENT_IS_WANTED = "agent"
"""In an engine's notes, with the value False: no agent is wanted (`--no-agent`)."""

METRICS = "metrics"
"""In an engine's notes: the agent's options for metrics, by name. Empty if they were withdrawn."""

LOG = "log"
"""In an engine's notes: the services' options for the operation log, by name. Empty if they were withdrawn."""

UNIX = "unix:"
"""How a metrics address begins that is a socket's path."""

_DIRECTORY = "/etc/systemd/system"
_LOG = "--log-format=logfmt"
"""LOG of the units in packaging/systemd."""

_METRICS_DROP_IN = f"{_DIRECTORY}/{SERVICE}.d/metrics.conf"
_PACKAGED = "/usr/lib/systemd/system"
_WANTED_BY = {SOCKET: "sockets.target", SERVICE: "multi-user.target", **dict.fromkeys(TIMERS, "timers.target")}

PLUGIN_IS_OURS = "unit"
"""A key in an engine's notes. False: no service of this node runs the plugin (`--no-unit`)."""

PLUGIN_NOT_SEEN = "something else runs the NRI plugin (--no-unit); its state is not known here"
"""The note of `status` on each handler in that case."""

NRI_SOCKET = "/var/run/nri/nri.sock"
"""Where engines listen for NRI plugins if their configuration does not say."""

_WITH_PLUGIN = f"""\
# Written by `reassert install`: the agent runs the NRI plugin too (docs/internals/agent.md).
[Unit]
# NRI refuses a container for which two plugins set the same name, so only one of the two services runs.
Conflicts={PLUGIN}
After={PLUGIN}

[Service]
Environment="NRI=OPTIONS"
# The service is ready when a runtime has connected, which may take any time.
TimeoutStartSec=infinity
"""

_RUN = ["/run/reassert", "/run/reassert/agent"]

_LISTENING = "/run/reassert/agent/agent.sock"
"""Made by the agent's socket unit. systemd does not remove them once the unit's file is gone."""

_ANSWER_SECONDS = 5.0


def add_agent(wiring: Wiring, choice: Choice) -> None:
    """Add what an agent needs to an engine's wiring; nothing where starts are to be cold.

    The hook file comes before the dispatchers, which name it, and goes after them.
    """
    if not choice.agent:
        wiring.notes[AGENT_IS_WANTED] = False
    if choice.metrics is not None:
        wiring.notes[METRICS] = choice.metrics
    if choice.log is not None:
        wiring.notes[LOG] = choice.log
    if choice.front and {RUNTIME, HOOK, NRI} & set(choice.adapters):
        text = warm_hook(choice.program, choice.front, where=WHERE, extra=[], installed=is_installed(choice.program))
        hook = hook_file(), State(text.encode(), mode=0o755)
        wiring.artifacts[:0] = [
            *_drop_in(choice.metrics),
            *_log_drop_ins(choice.log, _COMMANDS),
            *_units(choice.program),
            hook,
        ]
        wiring.units = [*UNITS, *wiring.units, *TIMERS]
    elif choice.metrics:
        wiring.remarks.append("no metrics are served, because there is no agent")


NOT_WANTED = "--no-agent"
"""Why there is no agent where the last install was told so."""


def why_cold(wanted: bool, front: str) -> str:
    """Why there can be no agent on this node; "" where there can. `front`: its path, "" where it was not built."""
    if not wanted:
        return NOT_WANTED
    if not systemd.available():
        return "this node's init is not systemd"
    return "" if front else "front was not built: packaging/build.sh builds it where musl-gcc is (Debian: musl-tools)"


def is_wanted(notes: dict[str, Any]) -> bool:
    """The options of the last install, from an engine's notes."""
    return bool(notes.get(AGENT_IS_WANTED, True))


def plugin_is_ours(notes: dict[str, Any]) -> bool:
    """Whether the NRI plugin, if it is wired, runs as a service of this node. `notes`: the engine's."""
    return bool(notes.get(PLUGIN_IS_OURS, True))


def metrics_of(
    given: dict[str, str | None], notes: dict[str, Any], others: Iterable[dict[str, Any]]
) -> dict[str, str] | None:
    """The agent's options for metrics. `given`: by this install; None as before, "" no more. Raises Usage.

    `notes`: the engine's. `others`: those of other engines, which have the same agent.
    """
    merged = options_of(METRICS, given, notes, others)
    said = {name: value for name, value in given.items() if value}
    if address := said.get("metrics"):
        check_address(address)
    if directory := said.get("textfile"):
        check_directory(directory)
    for name, value in said.items():
        if not re.fullmatch(r"[\w./:\[\]@+-]*", value, re.ASCII):
            raise Usage(f"--{name} {value!r}: a systemd unit cannot pass on this text")
    return merged


def options_of(
    key: str, given: dict[str, str | None], notes: dict[str, Any], others: Iterable[dict[str, Any]]
) -> dict[str, str] | None:
    """A service's options of one kind after this install. `key`: in the notes. The others: as in `metrics_of`."""
    before: dict[str, str] | None = next((found[key] for found in (notes, *others) if key in found), None)
    said = {name: value for name, value in given.items() if value is not None}
    if not said or (before is None and not any(said.values())):
        return before
    return {name: value for name, value in {**(before or {}), **said}.items() if value}


def check_address(address: str) -> tuple[str, int] | None:
    """Host and port of --metrics, None for a socket (`unix:/PATH`). Raises Usage, also for what is not loopback."""
    if address.startswith(f"{UNIX}/"):
        return None
    host, _, port = address.rpartition(":")
    try:
        where = ipaddress.ip_address(host.strip("[]"))
        if not where.is_loopback or not 0 <= int(port) < 1 << 16:
            raise ValueError
        return str(where), int(port)
    except ValueError:
        raise Usage(f"--metrics takes 127.0.0.1:PORT, [::1]:PORT or unix:/PATH, not {address!r}") from None


def check_directory(path: str) -> None:
    """Raises Usage unless --textfile names a directory."""
    if not path.startswith("/") or not os.path.isdir(path):
        what = "is not an absolute path" if path[:1] != "/" else "is not a directory; create it, or correct the path"
        raise Usage(f"--textfile takes the directory of node_exporter's textfile collector: {path!r} {what}")


def _drop_in(metrics: dict[str, str] | None) -> list[Change]:
    """A drop-in stays when its options are withdrawn: the service is restarted if the file has changed."""
    if metrics is None:
        return []
    words = " ".join(f"--{name} {value}" for name, value in metrics.items())
    return [(_METRICS_DROP_IN, State(f'# By `reassert install`\n[Service]\nEnvironment="METRICS={words}"\n'.encode()))]


def _log_drop_ins(log: dict[str, str] | None, units: Iterable[str]) -> list[Change]:
    """One for each unit. As with metrics, it stays when its options are withdrawn."""
    if log is None:
        return []
    words = " ".join([_LOG, *(f"--{name}={value}" for name, value in log.items())])
    text = State(f'# By `reassert install`\n[Service]\nEnvironment="LOG={words}"\n'.encode())
    return [(f"{_DIRECTORY}/{unit}.d/log.conf", text) for unit in units]


def _units(program: str) -> Iterator[Change]:
    """The unit files, and what `systemctl enable` would make. A package has the files: then only that."""
    for name in dict.fromkeys((*_WANTED_BY, *_COMMANDS)):
        path = f"{_PACKAGED}/{name}"
        if not (program.startswith("/usr/lib/") and os.path.exists(path)):
            path = f"{_DIRECTORY}/{name}"
            yield path, _unit(name, f"{shlex.quote(program)} {_COMMANDS.get(name, '')}")
        if name in _WANTED_BY:
            yield f"{_DIRECTORY}/{_WANTED_BY[name]}.wants/{name}", link(path)


def _unit(name: str, start: str) -> State:
    """A unit of packaging/systemd, which the frozen program has beside this module. `start`: its ExecStart."""
    template = Path(__file__).with_name(name)
    source = template if template.exists() else template.parents[2] / "packaging/systemd" / name
    try:
        lines = source.read_text().splitlines(keepends=True)
    except OSError as error:
        raise NodeError(f"{source}: {error.strerror}") from None
    text = "".join(f"ExecStart={start}\n" if line.startswith("ExecStart=") else line for line in lines)
    return State(text.encode())


def add_plugin(
    wiring: Wiring, choice: Choice, address: str, handlers: Iterable[Handler] = (), default: str = ""
) -> None:
    """Makes a service run the plugin, unless others run it.

    `address`: the engine's NRI socket. `handlers`: the engine's. `default`: the name of the one that has no name in
    NRI's requests. Raises NodeError.
    """
    if not choice.unit:
        wiring.notes[PLUGIN_IS_OURS] = False
        return
    words = [one for one in handlers if re.fullmatch(r"[\w.-]+", one.name, re.ASCII)]  # no pod can name another one
    gvisor = [one.name for one in words if one.runtime and wiring.files.is_gvisor(one.runtime)]
    sentries = [f"--gvisor={name}" for name in [*gvisor, *([""] if default in gvisor else [])]]
    if choice.front:
        where = ["--nri-socket", address] if address != NRI_SOCKET else []
        text = _WITH_PLUGIN.replace("OPTIONS", " ".join(["--nri", *where, *sentries]))
        wiring.artifacts.append((DROP_IN, State(text.encode())))
        return
    where = ["--socket", address] if address != NRI_SOCKET else []
    command = f"{shlex.quote(choice.program)} nri $LOG {shlex.join([*where, *sentries])}".rstrip()
    path = f"{_DIRECTORY}/{PLUGIN}"
    enabled = f"{_DIRECTORY}/multi-user.target.wants/{PLUGIN}"
    wiring.artifacts += [*_log_drop_ins(choice.log, [PLUGIN]), (path, _unit(PLUGIN, command)), (enabled, link(path))]
    wiring.units = [PLUGIN]


def plugin_runs() -> bool:
    """Whether the service that runs the plugin is active: a runtime has connected since it was started."""
    return systemd.is_active(PLUGIN) or (os.path.exists(DROP_IN) and systemd.is_active(SERVICE))


def ask(path: str) -> dict[str, Any]:
    """The status of the agent at a socket. Raises ReassertError."""
    try:
        with closing(socket(AF_UNIX, SOCK_SEQPACKET)) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(path)
            connection.send(protocol.STATUS)
            answer = connection.recv(protocol.FRAME_LIMIT)
        found = json.loads(answer)
    except ValueError:
        raise ReassertError(f"{path}: an agent of another version, or no agent, listens there") from None
    except OSError as error:
        raise ReassertError(f"{path}: no agent answers: {describe(error)}") from None
    if not isinstance(found, dict):
        raise ReassertError(f"{path}: no agent listens there")
    return found


def has_units(paths: Iterable[str]) -> bool:
    """Whether one of some files is a drop-in of an engine's unit. `start` and `roll_back` know ours."""
    return any(path.startswith("/etc/systemd/system/") and "/reassert-" not in path for path in paths)


def start(units: list[str], moved: bool, different: list[str], stale: list[str]) -> None:
    """Starts units, or restarts them if the program was `moved`. Raises NodeError if one does not start.

    `different`: paths that have changed. A socket is restarted only if its own file has: requests that come while the
    agent is restarted wait in it. `stale`: units that are stopped later. If the plugin moves from the agent to a
    service of its own, the agent is stopped first: a request would start it again, and that would stop the service.
    """
    if units or has_units(different):
        systemd.run("daemon-reload")
    if PLUGIN in units:
        stop([unit for unit in stale if unit in UNITS])
    changed = {os.path.basename(path) for path in different}
    for unit in units:
        again = unit in changed if unit.endswith(".socket") else moved
        # What runs the plugin is ready when a runtime has connected, so it is not waited for here.
        is_waited_for = unit in UNITS and not os.path.exists(DROP_IN)
        systemd.run("restart" if again else "start", *([] if is_waited_for else ["--no-block"]), unit)


def stopped(units: list[str]) -> list[str]:
    """Those of some units that do not run, though they are to."""
    return [unit for unit in units if systemd.available() and not systemd.is_active(unit)]


def start_again(units: list[str], artifacts: list[str]) -> None:
    """Start units that an administrator, or a failure, stopped. Raises NodeError. `artifacts`: as for `wait`."""
    for unit in units:
        systemd.run("reset-failed", unit)
    start(units, False, [], [])
    wait(units, False, artifacts)


def wait(units: list[str], restarted: bool, artifacts: Iterable[str]) -> None:
    """Waits until all of them are active, and the engine's plugin is connected. Raises NodeError.

    `restarted`: whether the engine was restarted after their start. `artifacts`: the engine's, which with DROP_IN has
    the plugin. What runs the plugin stays active when a runtime ends, so it may not have connected again; an engine
    that requires the plugin refuses every container until then.
    """
    if restarted and PLUGIN in units:
        systemd.run("stop", PLUGIN)
        systemd.run("start", "--no-block", PLUGIN)
    for unit in units:
        systemd.wait_active(unit)
    must_connect = restarted and SERVICE in units and DROP_IN in artifacts
    if must_connect and not systemd.wait_until(_is_connected, systemd.SECONDS, 0.05):
        raise NodeError(f"the engine is not connected to the NRI plugin in {SERVICE}{systemd.last_lines(SERVICE)}")


def _is_connected() -> bool:
    """Whether a runtime is connected to the plugin in the agent."""
    try:
        return ask(WHERE["socket"]).get("nri") is True
    except ReassertError:  # it is being restarted
        return False


def stop(units: list[str]) -> None:
    """Stop units that are not needed any more. Raises NodeError.

    Sockets first: a request would start the service again, and systemd cancels the stop then. The service of a timer is
    stopped after it. One that does not run, and whose file is gone, systemd does not know.
    """
    for unit in sorted(units, key=lambda unit: not unit.endswith(".socket")):
        systemd.run("stop", unit)
        if unit in TIMERS:
            systemd.stop_what_runs(unit.replace(".timer", ".service"))
    if any(unit.endswith(".socket") for unit in units):
        with suppress(FileNotFoundError):
            os.unlink(_LISTENING)
        remove_directories(_RUN)


def roll_back(units: list[str]) -> None:
    """After the files were restored: stop the new units, and restart those that were there before. Raises NodeError.

    A socket that was there before is not stopped: requests wait in it. They start its service while it stops, which is
    why it is restarted by one job: systemd cancels a stop for a later start, but a restart includes it.
    """
    systemd.run("daemon-reload")
    old = [unit for unit in units if glob(f"/etc/systemd/system/*.wants/{unit}")]
    stop([unit for unit in units if unit not in old and systemd.is_active(unit)])
    for unit in old:
        systemd.run("start" if unit.endswith(".socket") else "restart", "--no-block", unit)
