"""podman: a containers.conf drop-in that maps the names of OCI runtimes to dispatchers.

A container stores the name of its runtime (libpod), so containers keep working across an install and an uninstall. The
podman of ordinary users reads the same files; for them the dispatcher changes nothing (hook.entry.dispatcher,
`rootless`). A running podman command keeps the configuration that it read when it began.
"""

from __future__ import annotations

import glob
import os
import pwd
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hook.core.base.system import stat_of
from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, is_wired
from hook.node.artifacts.specs import cdi_file
from hook.node.change.files import State
from hook.node.engines import toml
from hook.node.engines.base import CDI, RUNTIME, Base, Choice, Config, Daemon, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.nodefiles import THIS_NODE, NodeFiles

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

DROP_IN = "/etc/containers/containers.conf.d/reassert.conf"


_COMMAND_SECONDS = 10.0
"""Seconds to wait, after a change of the files, for commands that began before it."""

_COMMANDS = ("podman\n", "buildah\n")
"""The names of processes that read containers.conf and call runtimes (proc(5), comm)."""

_SHARED, _NODES = "/usr/share/containers/containers.conf", "/etc/containers/containers.conf"
_ROOTFUL = ("/usr/share/containers/containers.rootful.conf.d", "/etc/containers/containers.rootful.conf.d")
"""Drop-ins for root's podman alone, from podman 6 on."""

_DEFAULT_NAMES = ("crun", "runc", "runsc", "youki", "krun", "crun-wasm")
"""The runtime names that podman knows without configuration and that take runc's arguments."""

_OTHERS = ("kata", "crun-vm", "runj", "ocijail")
"""Names of runtimes that do not read config.json as runc does."""

_DIRECTORIES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/sbin", "/bin")
"""Where podman looks for a name that no file configures (containers/common, pkg/config/default.go), then in PATH."""

Values = dict[str, dict[str, Any]]
"""The values of files by path, in the order of reading."""


@dataclass(frozen=True)
class Settings:
    """The merged values of containers.conf(5) files; the last file that sets a value counts.

    `runtimes`: paths by name. `runtime`: name or path of the default, "" if none is set.
    """

    runtimes: dict[str, list[str]]
    runtime: str

    @classmethod
    def of(cls, files: list[dict[str, Any]]) -> Self:
        """Returns the settings of these files. `files`: the values of each, in the order of reading."""
        runtimes: dict[str, list[str]] = {}
        runtime = ""
        for values in files:
            runtimes.update(toml.get(values, ("engine", "runtimes"), {}))
            runtime = str(toml.get(values, ("engine", "runtime"), runtime))
        return cls(runtimes, runtime)

    def installed(self, node: NodeFiles) -> list[tuple[str, str]]:
        """Returns the runtimes that are installed: name and the path that podman calls for it."""
        names = sorted({*_DEFAULT_NAMES, *_OTHERS, *self.runtimes})
        return [(name, path) for name in names if (path := self._path(name, node))]

    def _path(self, name: str, node: NodeFiles) -> str | None:
        paths = self.runtimes.get(name, [f"{directory}/{name}" for directory in _DIRECTORIES])
        return next((path for path in paths if node.is_file(path)), None)

    def default(self, runtimes: dict[str, str], node: NodeFiles) -> str:
        """Returns the name of podman's default runtime. Raises NodeError if it is not one of `runtimes`."""
        name = self.runtime or next((name for name in ("crun", "runc") if name in runtimes), "")
        if name.startswith("/"):
            name = next((known for known, path in runtimes.items() if node.target(path) == node.target(name)), name)
        if name not in runtimes:
            raise NodeError(
                f"podman's default runtime, {name or 'crun or runc'}, is not installed or is not compatible with runc"
            )
        return name


@dataclass(frozen=True)
class PodmanConfig(Config):
    """The containers.conf(5) files that root's podman reads. The attributes are what it depends on."""

    effective: Settings
    """The settings in effect."""

    without_ours: Settings
    """The settings without our drop-in."""

    later: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The values of the files that are read after our drop-in, by path."""

    ours: dict[str, Any] = field(default_factory=dict)
    """The values of our drop-in, {} without one."""

    default: str = ""
    """The path of the default runtime by `podman info`, "" if podman was not asked."""

    node: NodeFiles = field(default=THIS_NODE, compare=False)
    """Where programs and dispatchers are looked for."""

    @classmethod
    def of(cls, before: Values, ours: dict[str, Any], after: Values, node: NodeFiles = THIS_NODE) -> Self:
        """Returns the configuration of files by path. `before`, `after`: those that are read before and after ours."""
        effective = Settings.of([*before.values(), ours, *after.values()])
        return cls(effective, Settings.of([*before.values(), *after.values()]), after, ours, node=node)

    def overriding(self, names: Iterable[str]) -> list[str]:
        """Returns why our drop-in has no effect for these runtimes, or for the default."""
        found = []
        for path, values in self.later.items():
            keys = [f"runtimes.{name}" for name in names if toml.get(values, ("engine", "runtimes", name)) is not None]
            keys += ["runtime"] if str(toml.get(values, ("engine", "runtime"), "")).startswith("/") else []
            if keys:
                told = ", ".join(f"engine.{key}" for key in keys)
                found.append(f"{path} sets {told}, and podman reads it after {DROP_IN}: move that to {_NODES}")
        return found

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        """Returns the installed runtimes, by the names that `podman --runtime` takes."""
        settings = self.effective
        found = []
        for name, path in settings.installed(self.node):
            wired = (RUNTIME,) if is_wired(path, self.node) else ()
            is_other = name in _OTHERS
            note = "does not read config.json as runc does; not wrapped" if is_other else ""
            found.append(Handler(name, behind(path, self.node), wired, note, not is_other))
        return found

    def warnings(self) -> list[str]:
        """Returns a warning for each file that takes effect off our drop-in, if there is one."""
        wrapped = [name for name, path in self.effective.installed(self.node) if is_wired(path, self.node)]
        names = [*wrapped, *toml.get(self.ours, ("engine", "runtimes"), {})]
        return self.overriding(dict.fromkeys(names)) if self.ours else []

    def not_loaded(self, loaded: Self, notes: dict[str, Any]) -> list[str]:
        """The same, with the default if podman calls something else than a dispatcher by default."""
        found = super().not_loaded(loaded, notes)
        wrapped = {name for name, path in self.effective.installed(self.node) if is_wired(path, self.node)}
        is_default = self.effective.runtime or next((name for name in ("crun", "runc") if name in wrapped), "")
        if is_default in wrapped and loaded.default and not is_wired(loaded.default, self.node):
            found.append(f"the default ({loaded.default})")
        return found

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns one drop-in; no existing file is edited."""
        wiring = Wiring(expected={}, files=self.node)
        settings = self.without_ours
        engine: dict[toml.Key, Any] = {}
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
        if RUNTIME in choice.adapters:
            engine.update(self._runtimes(settings, choice, wiring))
        wanted = [] if choice.adapters == (CDI,) else self.overriding(wiring.expected)
        if wanted:
            raise NodeError("; ".join(wanted))
        if engine:
            text = toml.edit(
                "# written by reassert (`reassert install`); do not edit\n", DROP_IN, engine, self.node.content(DROP_IN)
            )
            wiring.references.append((DROP_IN, State(text.encode())))
        return wiring

    def _runtimes(self, settings: Settings, choice: Choice, wiring: Wiring) -> dict[toml.Key, Any]:
        found: dict[toml.Key, Any] = {}
        runtimes = {}
        for name, path in settings.installed(self.node):
            if name in _OTHERS:
                continue
            if not self.node.answers(path):
                wiring.remarks.append(f"runtime {name}: `{path} --version` fails, so it is not wrapped")
            else:
                runtimes[name] = path
        wanted, default = choice.runtime_class, settings.default(runtimes, self.node)
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


class Podman(Daemon[PodmanConfig]):
    """The podman of this node. It has no daemon: each podman command reads the files."""

    name = "podman"
    adapters = (RUNTIME, CDI)
    config_class = PodmanConfig

    def __init__(self, version: str) -> None:
        self.title = f"podman {version}"
        self._major = int(version.partition(".")[0])

    @classmethod
    def find(cls) -> Self:
        """Returns the podman of this node, by `podman --version`. Raises NodeError if that fails or it is too old."""
        return cls(".".join(map(str, systemd.version_of("podman", (4, 0)))))

    def read(self) -> PodmanConfig:
        """Returns the settings of the files that root's podman reads, in its order."""
        before, after = ({path: toml.values_of(path) for path in paths} for paths in self._paths())
        return PodmanConfig.of(before, toml.values_of(DROP_IN), after)

    def _paths(self) -> tuple[list[str], list[str]]:
        """Returns the files that are read before our drop-in, and those after it (containers.conf(5)).

        podman 5 reads root's own file too, in its home directory, and podman 6 more drop-ins.
        """
        beside = _drop_ins(os.path.dirname(DROP_IN))
        before = [_SHARED, *(_drop_ins(f"{_SHARED}.d") if self._major >= 6 else []), _NODES]
        after = [path for path in beside if path > DROP_IN]
        if self._major >= 6:
            after += [path for directory in _ROOTFUL for path in _drop_ins(directory)]
        if self._major >= 5:
            own = f"{pwd.getpwuid(0).pw_dir}/.config/containers/containers.conf"
            after += [own, *_drop_ins(f"{own}.d")]
        return [*before, *(path for path in beside if path < DROP_IN)], after

    def loaded(self, config: PodmanConfig) -> PodmanConfig:
        """Returns what podman itself calls by each runtime's name, and by default. Raises NodeError."""
        settings = config.effective
        runtimes = dict(settings.runtimes)
        for name, path in settings.installed(config.node):
            if name not in _OTHERS and is_wired(path, config.node):
                runtimes[name] = [_called(f"--runtime={name}")]
        return replace(config, effective=replace(settings, runtimes=runtimes), default=_called())

    def check(self, config: PodmanConfig, wiring: Wiring) -> None:
        """Checks with `podman info` that each runtime name leads to its dispatcher."""
        for name, path in (wiring.expected or {}).items():
            called = _called(f"--runtime={name}")
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

    def starter(self, config: PodmanConfig) -> Starter:
        """Returns a starter that uses the podman command."""
        from hook.node.probe.containers import ContainerStarter

        return ContainerStarter(self.name)

    def users(self, config: PodmanConfig, path: str) -> int:
        """Returns how many commands of podman and buildah run that read the files before the last change.

        Such a command keeps the old paths: `podman run` calls the runtime until its container is removed.
        """
        return _older(_changed())

    def settle(self, seconds: float = _COMMAND_SECONDS) -> None:
        """Waits for commands that began before the last change; one that only starts a container ends soon."""
        changed = _changed()
        left = min(changed + seconds - time.time(), seconds)  # a file's time may be in the future
        systemd.wait_until(lambda: not _older(changed), left, 0.05)


def _called(*options: str) -> str:
    """Returns the path of the OCI runtime that podman calls with these options. Raises NodeError."""
    info = ["podman", *options, "info", "--format={{.Host.OCIRuntime.Path}}"]
    return systemd.output(info, f"podman does not work with {DROP_IN}").strip()


def _drop_ins(directory: str) -> list[str]:
    return sorted(glob.glob(f"{directory}/*.conf"))


def _changed() -> float:
    """Returns when a drop-in was last added or removed."""
    directory = os.path.dirname(DROP_IN)
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return os.stat(directory).st_mtime


def _older(than: float) -> int:
    """Returns how many processes of podman and buildah of this node, not of a container, began before this time."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    count = 0
    for process in glob.glob("/proc/[0-9]*"):
        try:
            if Path(f"{process}/comm").read_text() not in _COMMANDS or not systemd.is_the_nodes(process):
                continue
            if not os.path.samefile(f"{process}/root", "/"):
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
