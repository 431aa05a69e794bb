"""docker: `runtimes` and `default-runtime` in daemon.json, which dockerd reloads while containers keep running.

And a drop-in of its unit, for the RUN steps of BuildKit, which dockerd reads when it starts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from hook.core.policy.model import Policy
from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, is_wired, real_of
from hook.node.artifacts.specs import cdi_file
from hook.node.change.files import State, look, put
from hook.node.engines import dockerd as dockerapi
from hook.node.engines import shims, toml
from hook.node.engines.base import (
    BYPASSES,
    CDI,
    LOADED_SECONDS,
    NOT_INSTALLED,
    RUNC_TYPES,
    RUNTIME,
    Base,
    Choice,
    Config,
    Daemon,
    Handler,
    Wiring,
)
from hook.node.engines.dockerd import parse, render
from hook.node.engines.shims import listed
from hook.node.errors import NodeError
from hook.node.nodefiles import THIS_NODE, NodeFiles
from hook.node.systemd import option, strings_of
from hook.resident.terminal import counted

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

_SERVICE = "docker.service"
CONFIG = "/etc/docker/daemon.json"
NAME = "reassert"
"""The name of the runtime that wraps runc: dockerd reserves the name `runc` for itself."""

BUILDER = "buildkit"
"""The handler of the RUN steps of BuildKit, which is `docker build` since docker 23: no runtime of daemon.json runs
them."""

_BUILDER_RUNTIME = "DOCKER_BUILDKIT_RUNC_COMMAND"
"""A variable of dockerd: the program that its BuildKit calls in place of runc (moby, builder-next/executor_linux.go).
dockerd reads it when it starts."""

_READ_SINCE = (26, 0)
DROP_IN = "/etc/systemd/system/docker.service.d/reassert.conf"

_STOCK = ("runc", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux")
_BEGINNING_SECONDS, _STARTING_SECONDS, _LATELY_SECONDS = 0.5, 10.0, 30.0
"""Seconds until dockerd lists the container of a start that has begun; the longest wait for the end of that start;
the age from which a created container is not about to be started."""

_STATES = ("/run/containerd", "/run/docker/containerd/daemon")
"""State directories of the containerd that dockerd uses: the node's, or dockerd's own."""


@dataclass(frozen=True)
class Builder:
    """dockerd's BuildKit."""

    calls: str = ""
    """The runtime that the running dockerd has it call, "" where none runs."""

    can_be_told: bool = False
    """Whether this version reads _BUILDER_RUNTIME."""

    has_unit: bool = False
    """Whether dockerd is a unit of systemd's, so that DROP_IN counts."""


@dataclass(frozen=True)
class DockerConfig(Config):
    """The daemon.json of a dockerd. The attributes are what it depends on."""

    file: str
    """Its path."""

    state: State | None
    """What lies there; None if nothing does."""

    values: dict[str, Any]
    """Its settings."""

    arguments: list[str]
    """The command line of the running dockerd, [] if it does not run."""

    builder: Builder = Builder()

    node: NodeFiles = field(default=THIS_NODE, compare=False)
    """Where programs and dispatchers are looked for."""

    @classmethod
    def of(
        cls,
        file: str,
        state: State | None,
        arguments: list[str],
        node: NodeFiles = THIS_NODE,
        builder: Builder | None = None,
    ) -> Self:
        """Returns the configuration of a file's content. Raises NodeError for one that dockerd would not read."""
        values = parse(state.content if state else b"", file)
        return cls(file, state, values, arguments, builder or Builder(), node)

    def runtimes(self) -> dict[str, Any]:
        """Returns the entries of `runtimes`, by name."""
        found: dict[str, Any] = self.values.get("runtimes", {})
        return found

    def default(self) -> str:
        """Returns the name of the default runtime."""
        return str(self.values.get("default-runtime") or "runc")

    def address(self) -> str:
        """Returns dockerd's unix socket. Raises NodeError if it listens on none."""
        hosts = option(self.arguments, "--host", "-H")
        hosts = hosts or [str(host) for host in self.values.get("hosts", [])]
        sockets = [host.removeprefix("unix://") for host in hosts if host.startswith("unix://")]
        if sockets or not hosts or "fd://" in hosts:
            return (sockets or [""])[0] or "/run/docker.sock"
        raise NodeError(f"dockerd listens at {', '.join(hosts)} only; add unix:///run/docker.sock to its hosts")

    # -- what is

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        """Returns the runtimes in daemon.json, and runc if it is the default.

        Where reassert is wired, dockerd's own runc, which no setting redirects, and its BuildKit are handlers too.
        """
        default = self.default()
        found = [Handler("runc", self.node.which("runc") or "runc", (), "the default")] if default in _STOCK else []
        for name, entry in self.runtimes().items():
            called = _called(entry)
            if called is None:
                kind = str(entry.get("runtimeType", ""))
                found.append(Handler(name, "", (), f"{kind or 'neither path nor runtimeType'}: calls no OCI runtime"))
            else:
                path = self.node.which(called) or called
                wired = (RUNTIME,) if is_wired(path, self.node) else ()
                there = self.node.which(behind(path, self.node)) is not None
                notices = ["the default"] if name == default else []
                notices += [] if there else [NOT_INSTALLED]
                found.append(Handler(name, behind(path, self.node), wired, "; ".join(notices), is_installed=there))
        if any(handler.wired for handler in found):
            if default not in _STOCK:
                found.append(Handler("runc", "", (), BYPASSES))
            found.append(self._builds())
        return found

    def _builds(self) -> Handler:
        """The handler of BuildKit's RUN steps."""
        runs, calls = "RUN steps of docker build", self.builder.calls or self._told() or "runc"
        real = self.node.which(behind(calls, self.node)) or calls
        if is_wired(self.node.which(calls) or calls, self.node):
            return Handler(BUILDER, real, (RUNTIME,), runs)
        if why := self._untold():
            return Handler(BUILDER, "", (), f"{runs}: {why}")
        if is_wired(self._told(), self.node):
            note = f"{runs}: dockerd reads {DROP_IN} when it starts, which ends containers without live-restore"
            return Handler(BUILDER, real, (), note, remedy=f"systemctl restart {_SERVICE}")
        return Handler(BUILDER, real, (), runs)

    def _untold(self) -> str:
        """Why an install cannot tell BuildKit what to call; "" if it can."""
        if not self.builder.can_be_told:
            return f"BuildKit calls runc itself before docker {'.'.join(map(str, _READ_SINCE))}"
        dockerd = f"dockerd is no unit of systemd: set {_BUILDER_RUNTIME} to the dispatcher of runc in its environment"
        return "" if self.builder.has_unit else dockerd

    def _told(self) -> str:
        """What DROP_IN has BuildKit call, "" without one."""
        found = re.search(rb"^Environment=\w+=(.+)$", self.node.content(DROP_IN) or b"", re.MULTILINE)
        return found[1].decode("utf-8", "replace") if found else ""

    def warnings(self) -> list[str]:
        """Returns a warning if the node is wired but the default runtime is dockerd's own runc, or not installed."""
        default = self.default()
        for handler in self.handlers({}):
            if handler.name == default and not handler.is_installed:
                return [f"the default runtime {default} calls {handler.runtime}, which is not installed"]
        names = [name for name, entry in self.runtimes().items() if is_wired(_called(entry) or "", self.node)]
        if NAME in names and default in _STOCK:
            return [f"{self.file}: default-runtime is {default}, so containers bypass {NAME}; name {NAME} there"]
        return []

    # -- the wanted settings

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns a daemon.json with a dispatcher for every runtime, and with a runtime of ours that wraps runc."""
        wiring = Wiring(files=self.node)
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
            wiring.remarks.append('docker 25 to 28.2 needs "features": {"cdi": true} in daemon.json, and a restart')
        if RUNTIME not in choice.adapters:
            return wiring
        self._check_flags()
        before = base(self.file)
        values = parse(before.content if before else b"", self.file)
        edited = self._edited(values, choice, wiring)
        if edited != values:
            content = render(edited, before.content if before else b"")
            wiring.references.append((self.file, before.with_content(content) if before else State(content)))
            wiring.notes["settings"] = _differences(values, edited)
        if choice.runtime_class is None:
            self._wire_builder(choice, wiring)
        return wiring

    def _wire_builder(self, choice: Choice, wiring: Wiring) -> None:
        """A dispatcher for BuildKit, in DROP_IN: dockerd has no setting for it."""
        if why := self._untold():
            wiring.remarks.append(f"RUN steps of docker build with BuildKit bypass reassert: {why}")
            return
        calls = self.node.which(behind(self.builder.calls or self._told() or "runc", self.node))
        path = self._dispatcher(calls or "runc", choice, wiring)
        text = f"# written by reassert; do not edit\n[Service]\nEnvironment={_BUILDER_RUNTIME}={path}\n"
        wiring.references.append((DROP_IN, State(text.encode())))
        if self.builder.calls not in ("", path):
            wiring.remarks.append(
                f"RUN steps of docker build bypass reassert until dockerd has read {DROP_IN}: systemctl restart "
                "docker, which ends containers without live-restore"
            )

    def _edited(self, values: dict[str, Any], choice: Choice, wiring: Wiring) -> dict[str, Any]:
        edited = deepcopy(values)
        runtimes: dict[str, Any] = edited.get("runtimes", {})
        default, wanted = str(values.get("default-runtime") or "runc"), choice.runtime_class
        if wanted in _STOCK:
            raise NodeError(f"--runtime-class {wanted}: dockerd reserves this name; choose another, for example {NAME}")
        for name, entry in runtimes.items():
            if wanted in (None, name):
                self._wrap(name, entry, choice, wiring)
        added = NAME if wanted is None and default in _STOCK else wanted
        if added and added not in runtimes:
            runtimes[added] = {"path": self._dispatcher("runc", choice, wiring)}
            wiring.notes["created"] = added
        elif added == NAME and wanted is None:
            raise NodeError(f"{self.file} has a runtime {NAME} that is not ours; rename it")
        if wanted is None and default in _STOCK:
            edited["default-runtime"] = NAME
            wiring.remarks.append("`docker run --runtime runc` bypasses reassert: dockerd reserves that name")
        if runtimes:
            edited["runtimes"] = runtimes
        return edited

    def _wrap(self, name: str, entry: dict[str, Any], choice: Choice, wiring: Wiring) -> None:
        """A dispatcher replaces what the entry calls, and gets its runtimeArgs and options."""
        called = _called(entry)
        if called is None:
            kind = entry.get("runtimeType") or "without a path"
            wiring.remarks.append(f"runtime {name} ({kind}) calls no OCI runtime and stays as it is")
            return
        real = self.node.which(called)
        path = wiring.add_handlers(name, real or called, real is not None, choice)
        if not path:
            return
        if "path" in entry:
            entry["path"] = path
        else:
            entry["options"] = {**entry.get("options", {}), "BinaryName": path}

    @staticmethod
    def strip(path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns an edited file with our settings restored, except those that were changed since."""
        if path == DROP_IN:
            return None
        values = parse(content, path)
        for setting in notes.get("settings", []):
            key = tuple(setting["key"])
            if toml.get(values, key) == setting["ours"]:
                toml.put(values, key, setting["was"])
        if not values.get("runtimes", True):
            del values["runtimes"]
        return render(values, content) if values else None

    def _check_flags(self) -> None:
        """Raises NodeError if dockerd's command line sets what the file must set: it would refuse the file then."""
        for flag in ("--add-runtime", "--default-runtime"):
            if option(self.arguments, flag):
                raise NodeError(
                    f"dockerd was started with {flag}, and then refuses the same setting in {self.file}; "
                    f"move it there from the command line (systemctl cat {_SERVICE}) and restart dockerd"
                )

    def _dispatcher(self, called: str, choice: Choice, wiring: Wiring) -> str:
        """Adds the dispatcher for a runtime to the artifacts. Returns its path."""
        real = self.node.which(called)
        if real is None:
            raise NodeError(f"the OCI runtime {called}, which dockerd calls, is not installed on this node")
        return wiring.add_dispatcher(real, choice)


class Docker(Daemon[DockerConfig]):
    """The dockerd of this node. `arguments`: of the running daemon, [] if it does not run."""

    name = "docker"
    adapters = (RUNTIME, CDI)
    service = _SERVICE
    config_class = DockerConfig
    verb = "reload"

    def __init__(self, version: tuple[int, ...], arguments: list[str]) -> None:
        self.version = version
        self.title = f"docker {'.'.join(map(str, version))}"
        self._arguments = arguments
        self._file = (option(arguments, "--config-file") or [CONFIG])[-1]

    @classmethod
    def find(cls) -> Self:
        """Returns the dockerd of this node, by `dockerd --version` and the running daemon's command line."""
        return cls(systemd.version_of("dockerd", (0, 0)), strings_of(_pid(), "cmdline"))

    def read(self) -> DockerConfig:
        """Returns daemon.json as it is now."""
        return DockerConfig.of(self._file, look(self._file), self._arguments, builder=self._builder())

    def _builder(self) -> Builder:
        calls, name = "", f"{_BUILDER_RUNTIME}="
        if pid := _pid():
            told = [entry.removeprefix(name) for entry in strings_of(pid, "environ") if entry.startswith(name)]
            calls = (told or [""])[0] or "runc"
        has_unit = systemd.load_state(_SERVICE) == "loaded"
        return Builder(calls, self.version >= _READ_SINCE, has_unit)

    def loaded(self, config: DockerConfig) -> DockerConfig:
        """Returns runtimes and default runtime of the running dockerd. Raises NodeError."""
        info = dockerapi.get("/info", config.address(), LOADED_SECONDS)
        runtimes = {name: entry for name, entry in info["Runtimes"].items() if name not in _STOCK}
        said = {"runtimes": runtimes, "default-runtime": info["DefaultRuntime"]}
        return replace(config, values={**config.values, **said})

    def check(self, config: DockerConfig, wiring: Wiring) -> None:
        """Checks the file with `dockerd --validate`, from 23.0 on. Earlier versions check it when they reload."""
        if self.version >= (23, 0) and config.values:
            validate = ["dockerd", "--validate", "--config-file", self._file]
            systemd.output(validate, f"dockerd does not accept {self._file}")

    def running(self) -> bool:
        """Whether the daemon runs."""
        return bool(_pid())

    def restart(self) -> None:
        """Makes dockerd reload its configuration. A restart would end containers, unless live-restore is on.

        A reload does not unset settings that the file no longer has. So to remove runtimes, the file states all
        settings explicitly during one reload. An earlier reload keeps our runtimes but not as the default, because
        `docker run` creates a container with a runtime's name first and starts it later.
        """
        now = self.read()
        state, address = now.state, now.address()
        stated = {**now.values, "runtimes": now.runtimes(), "default-runtime": now.default()}
        going = self._going(stated, address)
        if not going and (now.values == stated or self._is_in_force(stated, address)):
            self._reload(stated, address)
            return
        try:
            for runtimes in ([{**stated["runtimes"], **going}] if going else []) + [stated["runtimes"]]:
                step = {**stated, "runtimes": runtimes}
                content = render(step, state.content if state else b"")
                put(self._file, state.with_content(content) if state else State(content))
                self._reload(step, address)
        finally:
            put(self._file, state)

    def _going(self, values: dict[str, Any], address: str) -> dict[str, dict[str, Any]]:
        """Returns our runtimes that dockerd knows now and that `values` no longer has."""
        now = dockerapi.get("/info", address)["Runtimes"] if _pid() else {}
        gone = {name: str(entry.get("path", "")) for name, entry in now.items() if name not in values["runtimes"]}
        return {name: {"path": path} for name, path in gone.items() if path and real_of(path)}

    def _reload(self, values: dict[str, Any], address: str) -> None:
        pid = _pid()
        if not pid:
            raise NodeError(f"{self.title} does not run")
        dockerapi.wait_for_reload(lambda: os.kill(pid, signal.SIGHUP), address)
        if not self._is_in_force(values, address):
            said = systemd.last_lines(self.service)
            raise NodeError(f"{self.title} did not apply the runtimes of {self._file}{said}")
        self._wait_for_starts(address)

    def _wait_for_starts(self, address: str) -> None:
        """Waits for containers that were created before the reload and are about to be started."""
        time.sleep(_BEGINNING_SECONDS)
        if starting := self._created(address):
            systemd.wait_until(lambda: not starting & self._created(address), _STARTING_SECONDS)

    def _created(self, address: str) -> set[str]:
        """Returns the ids of containers that were created lately and not started yet."""
        filters = quote(json.dumps({"status": ["created"]}))
        found = dockerapi.get(f"/containers/json?all=1&filters={filters}", address)
        return {one["Id"] for one in found if one["Created"] > time.time() - _LATELY_SECONDS}

    def _is_in_force(self, values: dict[str, Any], address: str) -> bool:
        """Whether the daemon has exactly these runtimes and this default."""
        info = dockerapi.get("/info", address)
        now = {name: entry for name, entry in info["Runtimes"].items() if name not in _STOCK}
        wanted: dict[str, Any] = values.get("runtimes", {})
        same = all(now.get(name, {}).get("path", "") == entry.get("path", "") for name, entry in wanted.items())
        return same and set(now) == set(wanted) and info["DefaultRuntime"] == values.get("default-runtime", "runc")

    # -- its containers

    def preexisting(self, config: DockerConfig, policy: Policy, hooked: bool) -> list[str]:
        """Returns a warning about containers that were created with dockerd's own runc. Raises NodeError."""
        names = [name for name, runtime in self._containers(config) if runtime in _STOCK]
        if not names:
            return []
        return [
            f"{counted(len(names), 'container')} created with dockerd's runc: each start bypasses reassert until the "
            f"container is recreated: {listed(names)}"
        ]

    def uninstall_notes(self, before: Callable[[], DockerConfig], notes: dict[str, Any]) -> list[str]:
        """Returns a note about containers whose runtime the uninstall removes. Raises NodeError without an answer."""
        created = notes.get("created")
        names = [name for name, runtime in self._containers(before()) if runtime == created] if created else []
        if not names:
            return []
        return [
            f"{counted(len(names), 'container')} created with the runtime {created} cannot be started again without "
            f'it; recreate each, or keep "{created}": {{"path": "runc"}} in runtimes of {self._file}: {listed(names)}'
        ]

    def _containers(self, config: DockerConfig) -> list[tuple[str, str]]:
        """Returns name and runtime of every container, running or not."""
        if not self.running():
            return []
        found = []
        address = config.address()
        for entry in dockerapi.get("/containers/json?all=1", address):
            try:
                one = dockerapi.get(f"/containers/{entry['Id']}/json", address)
            except dockerapi.NotThere:  # the container was removed
                continue
            found.append((str(one["Name"]).lstrip("/"), str(one["HostConfig"].get("Runtime", ""))))
        return found

    def starter(self, config: DockerConfig) -> Starter:
        """Returns a starter that uses the docker command."""
        from hook.node.probe.builds import DockerStarter

        return DockerStarter(BUILDER, _pid())

    def users(self, config: DockerConfig, path: str) -> int:
        """Returns how many running containers have a shim that calls this runtime, and BuildKit if it calls it."""
        return sum(shims.users(path, state) for state in _STATES) + (config.builder.calls == path)

    def called_for(self, config: DockerConfig, container_id: str) -> str:
        """The value that its shim was started with."""
        return next(filter(None, (shims.called_for(container_id, state) for state in _STATES)), "")


def _pid() -> int:
    """Returns dockerd's pid, from systemd or from its pid file; 0 if it does not run."""
    pid = systemd.main_pid(Docker.service)
    if not pid:
        try:
            pid = int(Path("/run/docker.pid").read_text())
            pid = pid if Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd" else 0
        except (OSError, ValueError):
            return 0
    return pid


def _called(entry: dict[str, Any]) -> str | None:
    """Returns the OCI runtime that an entry of `runtimes` calls, as written; None if it calls none."""
    if entry.get("path"):
        return str(entry["path"])
    if entry.get("runtimeType") in RUNC_TYPES:
        return str(entry.get("options", {}).get("BinaryName") or "runc")
    return None


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns each setting that we change, with its old value; `runtimes` entry by entry."""
    found: list[dict[str, Any]] = []
    if after.get("default-runtime") != before.get("default-runtime"):
        found.append(
            {"key": ["default-runtime"], "ours": after["default-runtime"], "was": before.get("default-runtime")}
        )
    for name, entry in after.get("runtimes", {}).items():
        was = before.get("runtimes", {}).get(name)
        if was is None:
            found.append({"key": ["runtimes", name], "ours": entry, "was": None})
            continue
        found += [
            {"key": ["runtimes", name, key], "ours": entry[key], "was": was.get(key)}
            for key in ("path", "options")
            if entry.get(key) != was.get(key)
        ]
    return found
