"""dockerd: `runtimes` and `default-runtime` in daemon.json, which it reads again without touching a container."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from hook.node import systemd
from hook.node.change.files import State, look, put
from hook.node.engines import shims, toml
from hook.node.engines.artifacts.cdi import cdi_file
from hook.node.engines.artifacts.dispatchers import behind, dispatcher_for, real_of
from hook.node.engines.base import CDI, RUNC_TYPES, RUNTIME, Base, Choice, Engine, Handler, Wiring
from hook.node.engines.cmdline import arguments_of, option
from hook.node.engines.docker import api as dockerapi
from hook.node.engines.docker.daemonjson import parse, render
from hook.node.engines.shims import listed
from hook.node.errors import NodeError
from hook.node.probe.containers import ContainerStarter
from hook.node.probe.starter import Starter
from hook.policy.model import Policy

CONFIG = "/etc/docker/daemon.json"
NAME = "reassert"
"""The runtime that stands for runc: `runc` itself is a name that dockerd keeps to itself."""

_STOCK = ("runc", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux")
_BEGINNING_SECONDS, _STARTING_SECONDS, _LATELY_SECONDS = 0.5, 10.0, 30.0
"""How long a start may take until dockerd lists its container; how long it is waited for then; and how old a container
is at least that was created to be started some other time."""

_STATES = ("/run/containerd", "/run/docker/containerd/daemon")
"""State directories of the containerd that dockerd uses: the node's, or one of its own."""


@dataclass(frozen=True)
class Settings:
    """daemon.json. `state`: the file, None where there is none. `values`: what it says."""

    state: State | None
    values: dict[str, Any]

    def runtimes(self) -> dict[str, Any]:
        """The entries of `runtimes`, by name."""
        found: dict[str, Any] = self.values.get("runtimes", {})
        return found

    def default(self) -> str:
        """The name of the runtime that is taken unasked."""
        return str(self.values.get("default-runtime") or "runc")


class Docker(Engine[Settings]):
    """The dockerd of this node. `arguments`: the running daemon's; none where it does not run."""

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
    def installed(cls) -> bool:
        """Whether this node has it."""
        return systemd.which("dockerd") is not None

    @classmethod
    def find(cls) -> Self:
        """By its own word and the running daemon's command line."""
        said = systemd.command(["dockerd", "--version"]).stdout
        found = re.search(r"version (\d+\.\d+\.\d+)", said)
        if found is None:
            raise NodeError(f"`dockerd --version` says {said.strip()!r}, which is no version")
        return cls(tuple(map(int, found[1].split("."))), arguments_of(_pid()))

    def read(self) -> Settings:
        """daemon.json as it is."""
        return self._parsed(look(self._config))

    def _parsed(self, state: State | None) -> Settings:
        return Settings(state, parse(state.content if state else b"", self._config))

    # -- what is

    def handlers(self, now: Settings, notes: dict[str, Any]) -> list[Handler]:
        """The runtimes that daemon.json names, and runc as long as it is the default.

        dockerd's own names for runc can always be asked for, and nobody can redirect them (`wire` remarks on it).
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
        return found

    def warnings(self, now: Settings) -> list[str]:
        """A wired node whose default is runc after all, or whose default is in nobody's reach."""
        default = now.default()
        names = [name for name, entry in now.runtimes().items() if real_of(_called(entry) or "")]
        if NAME in names and default in _STOCK:
            return [f"{self._config}: default-runtime is {default}, so containers bypass {NAME}; name {NAME} there"]
        return []

    def preexisting(self, now: Settings, policy: Policy, hooked: bool) -> list[str]:
        """The containers that remember runc by dockerd's own name for it. Raises NodeError."""
        names = [name for name, runtime in self._containers(now) if runtime in _STOCK]
        if not names:
            return []
        return [
            f"{len(names)} containers were created with runc itself and start with it again, which bypasses reassert, "
            f"until they are recreated: {listed(names)}"
        ]

    def uninstall_notes(self, before: Callable[[], Settings], notes: dict[str, Any]) -> list[str]:
        """The containers that remember a runtime that will be gone. Raises NodeError where dockerd does not answer."""
        created = notes.get("created")
        names = [name for name, runtime in self._containers(before()) if runtime == created] if created else []
        if not names:
            return []
        return [
            f"{len(names)} containers were created with the runtime {created} and cannot be started again without it; "
            f'recreate them, or keep "{created}": {{"path": "runc"}} in runtimes of {self._config}: {listed(names)}'
        ]

    def _containers(self, now: Settings) -> list[tuple[str, str]]:
        """Name and runtime of every container, running or not."""
        if not self.running():
            return []
        found = []
        address = self._address(now)
        for entry in dockerapi.get("/containers/json?all=1", address):
            try:
                one = dockerapi.get(f"/containers/{entry['Id']}/json", address)
            except dockerapi.NotThere:  # removed meanwhile
                continue
            found.append((str(one["Name"]).lstrip("/"), str(one["HostConfig"].get("Runtime", ""))))
        return found

    # -- what is to be

    def wire(self, now: Settings, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Every configured runtime gets a dispatcher in its place, and runc one under a name of ours."""
        wiring = Wiring()
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
            wiring.remarks.append('docker 25 to 28.2 needs "features": {"cdi": true} in daemon.json, and a restart')
        if RUNTIME not in choice.adapters:
            return wiring
        self._flags_stand_in_the_way()
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
        taken: dict[str, str] = {}
        for name, entry in runtimes.items():
            if wanted in (None, name):
                self._wrap(name, entry, choice, taken, wiring)
        added = NAME if wanted is None and default in _STOCK else wanted
        if added and added not in runtimes:
            runtimes[added] = {"path": _dispatcher("runc", choice, taken, wiring)}
            wiring.notes["created"] = added
        elif added == NAME and wanted is None:
            raise NodeError(f"{self._config} has a runtime {NAME} that is not ours; rename it")
        if wanted is None and default in _STOCK:
            edited["default-runtime"] = NAME
            wiring.remarks.append("`docker run --runtime runc` bypasses reassert: dockerd reserves that name")
        if runtimes:
            edited["runtimes"] = runtimes
        return edited

    def _wrap(self, name: str, entry: dict[str, Any], choice: Choice, taken: dict[str, str], wiring: Wiring) -> None:
        """A dispatcher in the place of what the entry calls; its runtimeArgs and options go on to that."""
        called = _called(entry)
        if called is None:
            kind = entry.get("runtimeType") or "without a path"
            wiring.remarks.append(f"runtime {name} ({kind}) calls no OCI runtime and stays as it is")
            return
        path = _dispatcher(called, choice, taken, wiring)
        if "path" in entry:
            entry["path"] = path
        else:
            entry["options"] = {**entry.get("options", {}), "BinaryName": path}

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Our settings as they were before, where nobody has set them anew."""
        values = parse(content, path)
        for setting in notes.get("settings", []):
            key = tuple(setting["key"])
            if toml.get(values, key) == setting["ours"]:
                toml.put(values, key, setting["was"])
        if not values.get("runtimes", True):
            del values["runtimes"]
        return render(values, content) if values else None

    def _flags_stand_in_the_way(self) -> None:
        """No file is read that says again what its command line says (moby, daemon/config)."""
        for flag in ("--add-runtime", "--default-runtime"):
            if option(self._arguments, flag):
                raise NodeError(
                    f"dockerd was started with {flag}, and then refuses the same setting in {self._config}; "
                    f"move it there from the command line (systemctl cat {self.service}) and restart dockerd"
                )

    # -- doing it

    def check(self, now: Settings, wiring: Wiring) -> None:
        """By dockerd itself, since 23.0. One before that checks the file when it reloads, and else stays as it is."""
        if self.version < (23, 0) or not now.values:
            return
        done = systemd.command(["dockerd", "--validate", "--config-file", self._config])
        if done.returncode:
            raise NodeError(f"dockerd does not accept {self._config}: {' '.join(done.stderr.split())}")

    def running(self) -> bool:
        """Whether the daemon runs."""
        return bool(_pid())

    def restart(self) -> None:
        """Let it read its configuration again, without a restart: that would end containers (live-restore apart).

        A reload changes what the file says and leaves what it no longer says. So if runtimes are to vanish, the file
        says so in as many words for the length of one reload. Before that, one in which ours are still known but no
        longer the default: `docker run` first creates a container, with its runtime's name, and then starts it.
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
        """The runtimes of ours that are in force and not among these."""
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
            raise NodeError(f"{self.title} does not take over the runtimes of {self._config}{said}")
        self._wait_for_starts(address)

    def _wait_for_starts(self, address: str) -> None:
        """Until whoever is about to start a container, by what was in force before, has done so."""
        time.sleep(_BEGINNING_SECONDS)
        deadline = time.monotonic() + _STARTING_SECONDS
        starting = self._created(address)
        while starting and time.monotonic() < deadline:
            time.sleep(0.1)
            starting &= self._created(address)

    def _created(self, address: str) -> set[str]:
        """Ids of the containers that were created lately and have not been started."""
        filters = quote(json.dumps({"status": ["created"]}))
        found = dockerapi.get(f"/containers/json?all=1&filters={filters}", address)
        return {one["Id"] for one in found if one["Created"] > time.time() - _LATELY_SECONDS}

    def _is_in_force(self, values: dict[str, Any], address: str) -> bool:
        """Whether the daemon works with these runtimes, no more and no less, and this default."""
        info = dockerapi.get("/info", address)
        now = {name: entry for name, entry in info["Runtimes"].items() if name not in _STOCK}
        wanted: dict[str, Any] = values.get("runtimes", {})
        same = all(now.get(name, {}).get("path", "") == entry.get("path", "") for name, entry in wanted.items())
        return same and set(now) == set(wanted) and info["DefaultRuntime"] == values.get("default-runtime", "runc")

    def starter(self, now: Settings) -> Starter:
        """Probes by the docker command."""
        return ContainerStarter(self.name)

    def users(self, now: Settings, path: str) -> int:
        """Running containers whose shim calls this runtime."""
        return sum(shims.users(path, state) for state in _STATES)

    def called_for(self, now: Settings, container_id: str) -> str:
        """As its shim was told."""
        return next(filter(None, (shims.called_for(container_id, state) for state in _STATES)), "")

    # -- dockerd itself

    def _address(self, now: Settings) -> str:
        """Its unix socket. Raises NodeError where it listens on none."""
        hosts = option(self._arguments, "--host", "-H")
        hosts = hosts or [str(host) for host in now.values.get("hosts", [])]
        sockets = [host.removeprefix("unix://") for host in hosts if host.startswith("unix://")]
        if sockets or not hosts or "fd://" in hosts:
            return (sockets or [""])[0] or "/run/docker.sock"
        raise NodeError(f"dockerd listens at {', '.join(hosts)} only; add unix:///run/docker.sock to its hosts")


def _pid() -> int:
    """Its process, by systemd or by its own pid file; 0 where it does not run."""
    pid = systemd.main_pid(Docker.service)
    if not pid:
        try:
            pid = int(Path("/run/docker.pid").read_text())
            pid = pid if Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd" else 0
        except (OSError, ValueError):
            return 0
    return pid


def _called(entry: dict[str, Any]) -> str | None:
    """The OCI runtime that an entry of `runtimes` calls, as it is written; None where it calls none."""
    if entry.get("path"):
        return str(entry["path"])
    if entry.get("runtimeType") in RUNC_TYPES:
        return str(entry.get("options", {}).get("BinaryName") or "runc")
    return None


def _dispatcher(called: str, choice: Choice, taken: dict[str, str], wiring: Wiring) -> str:
    """The path of the dispatcher for a runtime; the file itself joins the artifacts."""
    real = systemd.which(called)
    if real is None:
        raise NodeError(f"the OCI runtime {called}, which dockerd is to call, is not installed on this node")
    return wiring.add_artifact(dispatcher_for(behind(real), choice.program, taken, front=choice.front))


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Each setting that is ours, with what it was; entries of `runtimes` one by one."""
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
