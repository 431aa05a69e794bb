"""podman: a containers.conf drop-in that maps the names of OCI runtimes to dispatchers.

A container stores the name of its runtime (libpod), so containers keep working across an install and an uninstall. The
podman of ordinary users reads the same files; for them the dispatcher changes nothing (hook.entry.dispatcher,
`rootless`). A running podman command keeps the configuration that it read when it began.
"""

from __future__ import annotations

import glob
import json
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hook.core.base.system import stat_of
from hook.entry.dispatcher import MARK, NOT_ROOTS, launch_lines
from hook.entry.hook import PRECREATE
from hook.node import systemd
from hook.node.artifacts import dispatchers
from hook.node.artifacts.dispatchers import behind, real_of
from hook.node.artifacts.specs import cdi_file, hooks_d
from hook.node.change.files import Change, State
from hook.node.change.tree import is_installed
from hook.node.engines import toml
from hook.node.engines.base import CDI, HOOK, RUNTIME, Base, Choice, Engine, Handler, Wiring
from hook.node.errors import NodeError

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

DROP_IN = "/etc/containers/containers.conf.d/reassert.conf"
HOOKS = "/etc/reassert/hooks.d/podman"
"""A directory of our own: CRI-O does not start if one of its hooks.d directories has a stage `precreate`."""


_COMMAND_SECONDS = 10.0
"""Seconds to wait, after a change of the files, for podman commands that began before it."""

_MAIN = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
_DEFAULT_HOOKS = ["/usr/share/containers/oci/hooks.d"]
_DEFAULT_NAMES = ("crun", "runc", "runsc", "youki", "krun", "crun-wasm")
"""The runtime names that podman knows without configuration and that take runc's arguments."""

_OTHERS = ("kata", "crun-vm", "runj", "ocijail")
"""Names of runtimes that do not read config.json as runc does."""

_DIRECTORIES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/sbin", "/bin")
"""Where podman looks for a name that no file configures (containers/common, pkg/config/default.go), then in PATH."""


@dataclass(frozen=True)
class Settings:
    """The merged values of containers.conf(5) files; the last file that sets a value counts.

    `runtimes`: paths by name. `runtime`: name or path of the default, "" if none is set. `hooks`: hooks.d directories.
    """

    runtimes: dict[str, list[str]]
    runtime: str
    hooks: list[str]

    @classmethod
    def of(cls, files: dict[str, dict[str, Any]]) -> Self:
        """Returns the settings of these files. `files`: values by path, in the order of reading."""
        runtimes: dict[str, list[str]] = {}
        runtime, hooks = "", _DEFAULT_HOOKS
        for values in files.values():
            runtimes.update(toml.get(values, ("engine", "runtimes"), {}))
            runtime = str(toml.get(values, ("engine", "runtime"), runtime))
            said = toml.get(values, ("engine", "hooks_dir"), None)
            if said is not None:  # since podman 5 a list can end with {append = true}
                named = [item for item in said if isinstance(item, str)]
                hooks = hooks + named if {"append": True} in said else named
        return cls(runtimes, runtime, hooks)

    def installed(self) -> list[tuple[str, str]]:
        """Returns the runtimes that are installed: name and the path that podman calls for it."""
        names = sorted({*_DEFAULT_NAMES, *_OTHERS, *self.runtimes})
        return [(name, path) for name in names if (path := self._path(name))]

    def _path(self, name: str) -> str | None:
        paths = self.runtimes.get(name, [f"{directory}/{name}" for directory in _DIRECTORIES])
        return next((path for path in paths if os.path.isfile(path)), None)

    def default(self, runtimes: dict[str, str]) -> str:
        """Returns the name of podman's default runtime. Raises NodeError if it is not one of `runtimes`."""
        name = self.runtime or next((name for name in ("crun", "runc") if name in runtimes), "")
        if name.startswith("/"):
            name = next(
                (known for known, path in runtimes.items() if os.path.realpath(path) == os.path.realpath(name)), name
            )
        if name not in runtimes:
            raise NodeError(
                f"podman's default runtime, {name or 'crun or runc'}, is not installed or is not compatible with runc"
            )
        return name


@dataclass(frozen=True)
class Files:
    """The settings in effect, and the settings without our drop-in."""

    effective: Settings
    without_ours: Settings


class Podman(Engine[Files]):
    """The podman of this node. It has no daemon: each podman command reads the files."""

    name = "podman"
    adapters = (RUNTIME, HOOK, CDI)

    def __init__(self, version: str) -> None:
        self.title = f"podman {version}"

    @classmethod
    def find(cls) -> Self:
        """Returns the podman of this node, by `podman --version`. Raises NodeError if that fails or it is too old."""
        return cls(".".join(map(str, systemd.version_of("podman", (4, 0)))))

    def read(self) -> Files:
        """Returns the settings of podman's files, read in podman's order."""
        paths = [*_MAIN, *sorted(glob.glob("/etc/containers/containers.conf.d/*.conf"))]
        files = {path: toml.values_of(path) for path in paths}
        theirs = {path: values for path, values in files.items() if path != DROP_IN}
        return Files(Settings.of(files), Settings.of(theirs))

    def handlers(self, now: Files, notes: dict[str, Any]) -> list[Handler]:
        """Returns the installed runtimes, by the names that `podman --runtime` takes."""
        settings = now.effective
        hooked = (HOOK,) if HOOKS in settings.hooks else ()
        found = []
        for name, path in settings.installed():
            wired = ((RUNTIME,) if real_of(path) else ()) + hooked
            note = "" if name not in _OTHERS else "does not read config.json as runc does; not wrapped"
            found.append(Handler(name, behind(path), wired, note))
        return found

    def wire(self, now: Files, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns one drop-in; no existing file is edited."""
        wiring = Wiring(expected={})
        settings = now.without_ours
        engine: dict[toml.Key, Any] = {}
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
        if RUNTIME in choice.adapters:
            engine.update(self._runtimes(settings, choice, wiring))
        if HOOK in choice.adapters:
            wiring.artifacts += _hook_files(choice.program)
            engine[("engine", "hooks_dir")] = [*settings.hooks, HOOKS]
        if engine:
            text = toml.edit("# written by reassert (`reassert node`); do not edit\n", DROP_IN, engine)
            wiring.references.append((DROP_IN, State(text.encode())))
        return wiring

    def _runtimes(self, settings: Settings, choice: Choice, wiring: Wiring) -> dict[toml.Key, Any]:
        found: dict[toml.Key, Any] = {}
        runtimes = {}
        for name, path in settings.installed():
            if name in _OTHERS:
                continue
            if systemd.command([path, "--version"]).returncode:
                wiring.remarks.append(f"runtime {name}: `{path} --version` fails, so it is not wrapped")
            else:
                runtimes[name] = path
        wanted, default = choice.runtime_class, settings.default(runtimes)
        if wanted in _OTHERS:
            raise NodeError(f"--runtime-class {wanted}: {wanted} does not read config.json as runc does")
        if wanted is not None:
            if wanted not in runtimes:
                wiring.remarks.append(
                    f"after an uninstall, containers created with --runtime {wanted} cannot be started"
                )
            runtimes = {wanted: runtimes.get(wanted, runtimes[default])}
        elif settings.runtime.startswith("/"):
            found[("engine", "runtime")] = default
        for name, real in runtimes.items():
            path = wiring.add_dispatcher(real, choice, rootless=True)
            # If the first path is missing, podman takes the next, and after the last one what it finds in PATH. The
            # last one is this drop-in, which exists and cannot be executed. So a missing dispatcher fails closed.
            found[("engine", "runtimes", name)] = [path, DROP_IN]
            wiring.expected[name] = path
        wiring.remarks.append("`podman --runtime /PATH` bypasses reassert; only root can do that for root's containers")
        return found

    def check(self, now: Files, wiring: Wiring) -> None:
        """Checks with `podman info` that each runtime name leads to its dispatcher."""
        for name, path in (wiring.expected or {}).items():
            info = ["podman", f"--runtime={name}", "info", "--format={{.Host.OCIRuntime.Path}}"]
            called = systemd.output(info, f"podman does not work with {DROP_IN}").strip()
            if called != path:
                raise NodeError(
                    f"podman calls {called} for runtime {name} instead of {path}; "
                    f"a file that is read after {DROP_IN} sets it"
                )

    def running(self) -> bool:
        """Returns True: podman has no daemon and can be called."""
        return True

    def restart(self) -> None:
        """Restarts podman's API service if it runs: only it keeps old configuration. No container depends on it."""
        if systemd.is_active("podman.service"):
            systemd.run("restart", "podman.service")

    def starter(self, now: Files) -> Starter:
        """Returns a starter that uses the podman command."""
        from hook.node.probe.containers import ContainerStarter

        return ContainerStarter(self.name)

    def users(self, now: Files, path: str) -> int:
        """Returns how many podman commands run that read the files before the last change.

        Such a command keeps the old paths: `podman run` calls the runtime until its container is removed.
        """
        return _older(_changed())

    def settle(self, seconds: float = _COMMAND_SECONDS) -> None:
        """Waits for commands that began before the last change; one that only starts a container ends soon."""
        changed = _changed()
        left = min(changed + seconds - time.time(), seconds)  # a file's time may be in the future
        systemd.wait_until(lambda: not _older(changed), left, 0.05)


def _changed() -> float:
    """Returns when a drop-in was last added or removed."""
    directory = os.path.dirname(DROP_IN)
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return os.stat(directory).st_mtime


def _older(than: float) -> int:
    """Returns how many podman processes of this node, not of a container, began before this time."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    count = 0
    for process in glob.glob("/proc/[0-9]*"):
        try:
            if Path(f"{process}/comm").read_text() != "podman\n" or not os.path.samefile(f"{process}/root", "/"):
                continue
            if not systemd.is_the_nodes(process):
                continue
            with open(f"{process}/cmdline", "rb", buffering=0) as file:
                arguments = file.read(4096).split(b"\0")
            ticks = stat_of(os.path.basename(process))[19]
        except OSError:  # the process has ended
            continue
        began = booted + int(ticks) / os.sysconf("SC_CLK_TCK")
        count += (
            began < than and b"pause" not in arguments[1:2]
        )  # a pause process runs for ever, to hold a user's namespaces
    return count


def _hook_files(program: str) -> list[Change]:
    """Returns the hooks.d file for the stage precreate and its script, which changes nothing for ordinary users."""
    entry = hooks_d(program, PRECREATE)
    arguments = shlex.join(entry["hook"]["args"][1:])
    script = (
        f"#!/bin/sh\n{MARK}: containers of ordinary users are not changed\n{NOT_ROOTS} && exec cat\n"
        f'{launch_lines(program, is_installed(program))}\nexec "$reassert" {arguments}\n'
    )
    path = f"{dispatchers.DIRECTORY}/reassert-podman-hook"
    entry["hook"].update(path=path, args=[path])
    return [
        (path, State(script.encode(), mode=0o755)),
        (f"{HOOKS}/reassert.json", State(json.dumps(entry, indent=1).encode())),
    ]
