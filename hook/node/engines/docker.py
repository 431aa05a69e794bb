"""docker: `runtimes` and `default-runtime` in daemon.json, which dockerd reloads while containers keep running."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from hook.core.policy.model import Policy
from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, real_of
from hook.node.artifacts.specs import cdi_file
from hook.node.change.files import State, look, put
from hook.node.engines import dockerd as dockerapi
from hook.node.engines import shims, toml
from hook.node.engines.base import (
    BYPASSES,
    CDI,
    LOADED_SECONDS,
    RUNC_TYPES,
    RUNTIME,
    Base,
    Choice,
    Engine,
    Handler,
    Wiring,
)
from hook.node.engines.dockerd import parse, render
from hook.node.engines.shims import listed
from hook.node.errors import NodeError
from hook.node.systemd import option, strings_of
from hook.node.terminal import counted

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

CONFIG = "/etc/docker/daemon.json"
NAME = "reassert"
"""The name of the runtime that wraps runc: dockerd reserves the name `runc` for itself."""

_STOCK = ("runc", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux")
_BEGINNING_SECONDS, _STARTING_SECONDS, _LATELY_SECONDS = 0.5, 10.0, 30.0
"""Seconds until dockerd lists the container of a start that has begun; the longest wait for the end of that start;
the age from which a created container is not about to be started."""

_STATES = ("/run/containerd", "/run/docker/containerd/daemon")
"""State directories of the containerd that dockerd uses: the node's, or dockerd's own."""


@dataclass(frozen=True)
class Settings:
    """daemon.json. `state`: the file, None if it does not exist. `values`: its settings."""

    state: State | None
    values: dict[str, Any]

    def runtimes(self) -> dict[str, Any]:
        """Returns the entries of `runtimes`, by name."""
        found: dict[str, Any] = self.values.get("runtimes", {})
        return found

    def default(self) -> str:
        """Returns the name of the default runtime."""
        return str(self.values.get("default-runtime") or "runc")


class Docker(Engine[Settings]):
    """The dockerd of this node. `arguments`: of the running daemon, [] if it does not run."""

    name = "docker"
    adapters = (RUNTIME, CDI)
    service = "docker.service"
    verb = "reload"

    def __init__(self, version: tuple[int, ...], arguments: list[str]) -> None:
        self.version = version
        self.title = f"docker {'.'.join(map(str, version))}"
        self._arguments = arguments
        self._config = (option(arguments, "--config-file") or [CONFIG])[-1]

    @classmethod
    def find(cls) -> Self:
        """Returns the dockerd of this node, by `dockerd --version` and the running daemon's command line."""
        return cls(systemd.version_of("dockerd", (0, 0)), strings_of(_pid(), "cmdline"))

    def read(self) -> Settings:
        """Returns daemon.json as it is now."""
        return self._parsed(look(self._config))

    def _parsed(self, state: State | None) -> Settings:
        return Settings(state, parse(state.content if state else b"", self._config))

    # -- what is

    def handlers(self, now: Settings, notes: dict[str, Any]) -> list[Handler]:
        """Returns the runtimes in daemon.json, and runc if it is the default.

        dockerd's own runc, which no setting redirects, is a handler too (`wire` has a remark about it).
        """
        default = now.default()
        found = [Handler("runc", systemd.which("runc") or "runc", (), "the default")] if default in _STOCK else []
        for name, entry in now.runtimes().items():
            called = _called(entry)
            if called is None:
                kind = str(entry.get("runtimeType", ""))
                found.append(Handler(name, "", (), f"{kind or 'neither path nor runtimeType'}: calls no OCI runtime"))
            else:
                path = systemd.which(called) or called
                wired = (RUNTIME,) if real_of(path) else ()
                found.append(Handler(name, behind(path), wired, "the default" if name == default else ""))
        if default not in _STOCK and any(handler.wired for handler in found):
            found.append(Handler("runc", "", (), BYPASSES))
        return found

    def warnings(self, now: Settings) -> list[str]:
        """Returns a warning if the node is wired but the default runtime is dockerd's own runc."""
        default = now.default()
        names = [name for name, entry in now.runtimes().items() if real_of(_called(entry) or "")]
        if NAME in names and default in _STOCK:
            return [f"{self._config}: default-runtime is {default}, so containers bypass {NAME}; name {NAME} there"]
        return []

    def preexisting(self, now: Settings, policy: Policy, hooked: bool) -> list[str]:
        """Returns a warning about containers that were created with dockerd's own runc. Raises NodeError."""
        names = [name for name, runtime in self._containers(now) if runtime in _STOCK]
        if not names:
            return []
        return [
            f"{counted(len(names), 'container')} created with dockerd's runc: each start bypasses reassert until the "
            f"container is recreated: {listed(names)}"
        ]

    def uninstall_notes(self, before: Callable[[], Settings], notes: dict[str, Any]) -> list[str]:
        """Returns a note about containers whose runtime the uninstall removes. Raises NodeError without an answer."""
        created = notes.get("created")
        names = [name for name, runtime in self._containers(before()) if runtime == created] if created else []
        if not names:
            return []
        return [
            f"{counted(len(names), 'container')} created with the runtime {created} cannot be started again without "
            f'it; recreate each, or keep "{created}": {{"path": "runc"}} in runtimes of {self._config}: {listed(names)}'
        ]

    def _containers(self, now: Settings) -> list[tuple[str, str]]:
        """Returns name and runtime of every container, running or not."""
        if not self.running():
            return []
        found = []
        address = self._address(now)
        for entry in dockerapi.get("/containers/json?all=1", address):
            try:
                one = dockerapi.get(f"/containers/{entry['Id']}/json", address)
            except dockerapi.NotThere:  # the container was removed
                continue
            found.append((str(one["Name"]).lstrip("/"), str(one["HostConfig"].get("Runtime", ""))))
        return found

    # -- the wanted settings

    def wire(self, now: Settings, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns a daemon.json with a dispatcher for every runtime, and with a runtime of ours that wraps runc."""
        wiring = Wiring()
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
            wiring.remarks.append('docker 25 to 28.2 needs "features": {"cdi": true} in daemon.json, and a restart')
        if RUNTIME not in choice.adapters:
            return wiring
        self._check_flags()
        before = base(self._config)
        values = self._parsed(before).values
        edited = self._edited(values, choice, wiring)
        if edited != values:
            content = render(edited, before.content if before else b"")
            wiring.references.append((self._config, before.with_content(content) if before else State(content)))
            wiring.notes["settings"] = _differences(values, edited)
        return wiring

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
            runtimes[added] = {"path": _dispatcher("runc", choice, wiring)}
            wiring.notes["created"] = added
        elif added == NAME and wanted is None:
            raise NodeError(f"{self._config} has a runtime {NAME} that is not ours; rename it")
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
        path = _dispatcher(called, choice, wiring)
        if "path" in entry:
            entry["path"] = path
        else:
            entry["options"] = {**entry.get("options", {}), "BinaryName": path}

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns an edited file with our settings restored, except those that were changed since."""
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
            if option(self._arguments, flag):
                raise NodeError(
                    f"dockerd was started with {flag}, and then refuses the same setting in {self._config}; "
                    f"move it there from the command line (systemctl cat {self.service}) and restart dockerd"
                )

    # -- doing it

    def check(self, now: Settings, wiring: Wiring) -> None:
        """Checks the file with `dockerd --validate`, from 23.0 on. Earlier versions check it when they reload."""
        if self.version >= (23, 0) and now.values:
            validate = ["dockerd", "--validate", "--config-file", self._config]
            systemd.output(validate, f"dockerd does not accept {self._config}")

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
        state, address = now.state, self._address(now)
        stated = {**now.values, "runtimes": now.runtimes(), "default-runtime": now.default()}
        going = self._going(stated, address)
        if not going and (now.values == stated or self._is_in_force(stated, address)):
            self._reload(stated, address)
            return
        try:
            for runtimes in ([{**stated["runtimes"], **going}] if going else []) + [stated["runtimes"]]:
                step = {**stated, "runtimes": runtimes}
                content = render(step, state.content if state else b"")
                put(self._config, state.with_content(content) if state else State(content))
                self._reload(step, address)
        finally:
            put(self._config, state)

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
            raise NodeError(f"{self.title} did not apply the runtimes of {self._config}{said}")
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

    def loaded(self, now: Settings) -> Settings:
        """Returns runtimes and default runtime of the running dockerd. Raises NodeError."""
        info = dockerapi.get("/info", self._address(now), LOADED_SECONDS)
        runtimes = {name: entry for name, entry in info["Runtimes"].items() if name not in _STOCK}
        return Settings(now.state, {**now.values, "runtimes": runtimes, "default-runtime": info["DefaultRuntime"]})

    def starter(self, now: Settings) -> Starter:
        """Returns a starter that uses the docker command."""
        from hook.node.probe.containers import ContainerStarter

        return ContainerStarter(self.name)

    def users(self, now: Settings, path: str) -> int:
        """Returns how many running containers have a shim that calls this runtime."""
        return sum(shims.users(path, state) for state in _STATES)

    def called_for(self, now: Settings, container_id: str) -> str:
        """The value that its shim was started with."""
        return next(filter(None, (shims.called_for(container_id, state) for state in _STATES)), "")

    # -- dockerd itself

    def _address(self, now: Settings) -> str:
        """Returns dockerd's unix socket. Raises NodeError if it listens on none."""
        hosts = option(self._arguments, "--host", "-H")
        hosts = hosts or [str(host) for host in now.values.get("hosts", [])]
        sockets = [host.removeprefix("unix://") for host in hosts if host.startswith("unix://")]
        if sockets or not hosts or "fd://" in hosts:
            return (sockets or [""])[0] or "/run/docker.sock"
        raise NodeError(f"dockerd listens at {', '.join(hosts)} only; add unix:///run/docker.sock to its hosts")


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


def _dispatcher(called: str, choice: Choice, wiring: Wiring) -> str:
    """Adds the dispatcher for a runtime to the artifacts. Returns its path."""
    real = systemd.which(called)
    if real is None:
        raise NodeError(f"the OCI runtime {called}, which dockerd calls, is not installed on this node")
    return wiring.add_dispatcher(real, choice)


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
