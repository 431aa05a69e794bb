"""CRI-O: one drop-in file with the tables of the runtimes, and a hooks.d directory of our own.

A table `[crio.runtime.runtimes.NAME]` in a drop-in replaces an earlier one as a whole (pkg/config's
UpdateFromDropInFile decodes into a map, and BurntSushi/toml's unifyMap creates a new value for each key). So our
drop-in repeats every setting of a table. A container stores only the name of its handler, and CRI-O looks up the
runtime_path for each operation (internal/oci, newRuntimeImpl). So containers keep working across an install and an
uninstall. Only a path of platform_runtime_paths is stored with the container.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, real_of
from hook.node.artifacts.specs import cdi_file, hooks_d, reserved_env
from hook.node.change.files import State
from hook.node.engines import toml
from hook.node.engines.base import CDI, HOOK, LOADED_SECONDS, NRI, RUNTIME, Base, Choice, Engine, Handler, Wiring
from hook.node.engines.dockerd import fetch
from hook.node.engines.nri_validator import Validator
from hook.node.errors import NodeError
from hook.node.services import NRI_SOCKET, PLUGIN_IS_OURS, PLUGIN_NOT_SEEN, add_plugin, plugin_runs
from hook.node.systemd import option, strings_of

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

RUNTIMES = ("crio", "runtime", "runtimes")

_PLATFORM = ("platform-runtime-path.crio.io", "io.kubernetes.cri-o.PlatformRuntimePath")
"""The annotation by which CRI-O stores a container's platform_runtime_paths, and its older name."""

_KEYS = (
    "runtime_",
    "monitor_",
    "container_",
    "allowed_",
    "privileged_",
    "platform_",
    "default_",
    "inherit_",
    "no_sync",
)
"""Prefixes of a handler's settings. `crio config` prints settings of crio.runtime in the last handler's table too."""


@dataclass(frozen=True)
class Files:
    """The values of CRI-O's configuration files.

    `defaults`: CRI-O's own. `files`: the values of each file by its path, in the order of reading. `ours`: the path of
    our drop-in. `overrides`: values that the command line or the environment of the running crio sets.
    """

    defaults: dict[str, Any]
    files: dict[str, dict[str, Any]]
    ours: str
    overrides: dict[str, Any]

    def effective(self, with_ours: bool) -> dict[str, Any]:
        """Returns the values of all files and of the command line. `with_ours`: include our drop-in."""
        values = deepcopy(self.defaults)
        for name, table in toml.get(values, RUNTIMES, {}).items():
            values["crio"]["runtime"]["runtimes"][name] = {k: v for k, v in table.items() if k.startswith(_KEYS)}
        for path, said in self.files.items():
            if with_ours or path != self.ours:
                merge(values, deepcopy(said), ())
        merge(values, deepcopy(self.overrides), ())
        _translate(values)
        return values


def merge(values: dict[str, Any], more: dict[str, Any], at: toml.Key) -> None:
    """Merges values as CRI-O does: tables are merged, but a handler's table replaces the earlier one."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict) and at != RUNTIMES:
            merge(values[key], value, (*at, key))
        else:
            values[key] = value


def _translate(values: dict[str, Any]) -> None:
    """Sets what the deprecated settings of crio.runtime mean in every handler (TranslateMonitorFieldsForHandler)."""
    runtime = toml.get(values, RUNTIMES[:-1], {})
    for old, new in (("conmon_cgroup", "monitor_cgroup"), ("conmon", "monitor_path"), ("conmon_env", "monitor_env")):
        for table in runtime.get("runtimes", {}).values() if runtime.get(old) else []:
            if kind_of(table) == "oci":
                table[new] = runtime[old]


def platform_path(config: str) -> str:
    """Returns the runtime path that CRI-O stored with a container; "" if none, or if the container is gone."""
    try:
        text = Path(config).read_bytes()
        notes = json.loads(text).get("annotations") or {} if any(name.encode() in text for name in _PLATFORM) else {}
    except (OSError, ValueError, AttributeError):
        return ""
    return next((str(notes[name]) for name in _PLATFORM if name in notes), "")


def files_below(directory: str) -> list[str]:
    """Returns the files of a directory of drop-ins, in the order in which CRI-O reads them."""
    found: list[str] = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        path = f"{directory}/{name}"
        found += files_below(path) if os.path.isdir(path) and not os.path.islink(path) else [path]
    return found


def source_of(table: dict[str, Any], name: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns name and table of the handler whose runtime this one calls: its own or, if inherited, the default's."""
    if table.get("inherit_default_runtime"):
        default = str(toml.get(values, ("crio", "runtime", "default_runtime"), ""))
        return default, toml.get(values, (*RUNTIMES, default), {})
    return name, table


def kind_of(table: dict[str, Any]) -> str:
    """Returns the type of a handler: oci, vm, pod."""
    return str(table.get("runtime_type") or "oci")


def runtime_of(table: dict[str, Any], name: str) -> str | None:
    """Returns the runtime that a handler calls; None if it is not installed."""
    path = str(table.get("runtime_path") or systemd.which(name) or "")
    return path if os.path.isfile(path) else None


HOOKS = "/etc/reassert/hooks.d/crio"
"""A directory of our own: podman also runs the hooks in /usr/share/containers/oci/hooks.d."""

_CONFIG, _DROP_INS, _OURS = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d", "99-reassert.conf"
_HOOKS_DIR = ("crio", "runtime", "hooks_dir")
_OVERRIDABLE: tuple[toml.Key, ...] = (
    _HOOKS_DIR,
    ("crio", "root"),
    ("crio", "api", "listen"),
    ("crio", "image", "pause_image"),
    ("crio", "nri", "enable_nri"),
    ("crio", "nri", "nri_listen"),
    ("crio", "runtime", "cgroup_manager"),
    ("crio", "runtime", "default_env"),
    ("crio", "runtime", "default_runtime"),
)
"""What reassert reads or sets and what CRI-O's command line and environment can override."""


_VALIDATOR = Validator(
    ("crio", "nri", "default_validator"),
    "nri_enable_default_validator",
    "nri_validator_required_plugins",
    "nri_validator_tolerate_missing_plugins_annotation",
)


class Crio(Engine[Files]):
    """The CRI-O of this node.

    `command`: crio with the options and the environment of the running one, which override its files. `config`,
    `drop_ins`: the main file and the directory of the drop-ins.
    """

    name = "crio"
    adapters = (RUNTIME, NRI, HOOK, CDI)
    service = "crio.service"

    def __init__(self, version: str, command: list[str], config: str, drop_ins: str) -> None:
        self.title = f"CRI-O {version}"
        self._command = command
        self._config = config
        self._drop_ins = drop_ins
        self._ours = f"{drop_ins}/{_OURS}"

    @classmethod
    def find(cls) -> Self:
        """Returns the CRI-O of this node: version by `crio --version`, paths by the running daemon's command line."""
        version = systemd.version_of("crio", (0, 0))
        pid = systemd.main_pid(cls.service)
        arguments = [word for word in strings_of(pid, "cmdline")[1:] if word]
        environment = dict(entry.split("=", 1) for entry in strings_of(pid, "environ") if "=" in entry)
        if option(arguments, "--runtimes") or "CONTAINER_RUNTIMES" in environment:
            raise NodeError("crio was started with --runtimes, which overrides its files; move that to a drop-in first")

        def given(default: str, variable: str, *names: str) -> str:
            return (option(arguments, *names) or [environment.get(variable) or default])[-1]

        entries = [f"{name}={value}" for name, value in environment.items()]
        return cls(
            ".".join(map(str, version)),
            ["env", "-i", *entries, "crio", *arguments] if pid else ["crio"],
            given(_CONFIG, "CONTAINER_CONFIG", "--config", "-c"),
            given(_DROP_INS, "CONTAINER_CONFIG_DIR", "--config-dir", "-d"),
        )

    def read(self) -> Files:
        """Returns CRI-O's defaults (`crio config --default`), the main file and all below the drop-in directory.

        With what the command line or the environment of the running crio overrides: `crio config` shows that, too.
        """
        paths = [self._config, *files_below(self._drop_ins)]
        files = Files(self._crio("config", "--default"), {path: toml.values_of(path) for path in paths}, self._ours, {})
        if len(self._command) == 1:
            return files
        said, seen = files.effective(with_ours=True), self._seen(files.defaults)
        for key in _OVERRIDABLE:
            if toml.get(seen, key) != toml.get(said, key):
                toml.put(files.overrides, key, toml.get(seen, key))
        return files

    def _seen(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """Returns the values of `crio config`, which prints default values as comments only."""
        shown = deepcopy(defaults)
        merge(shown, self._crio("config"), ())
        return shown

    # -- what is

    def handlers(self, now: Files, notes: dict[str, Any]) -> list[Handler]:
        """Returns every handler whose runtime is installed; CRI-O ignores the others."""
        values = now.effective(with_ours=True)
        hooked = (HOOK,) if HOOKS in toml.get(values, _HOOKS_DIR, []) else ()
        if toml.get(values, ("crio", "nri", "enable_nri"), False) and plugin_runs():
            hooked = (*hooked, NRI)
        default = toml.get(values, ("crio", "runtime", "default_runtime"), "")
        found = []
        for name, table in sorted(toml.get(values, RUNTIMES, {}).items()):
            of, source = source_of(table, name, values)
            path, kind = runtime_of(source, of), kind_of(source)
            if path is None:
                continue
            notices = ["the default"] if name == default else []
            notices += [] if notes.get(PLUGIN_IS_OURS, True) else [PLUGIN_NOT_SEEN]
            if kind != "oci":
                found.append(Handler(name, "", hooked, f"{kind}: calls no OCI runtime; --adapter nri reaches it"))
            else:
                found.append(
                    Handler(name, behind(path), ((RUNTIME,) if real_of(path) else ()) + hooked, "; ".join(notices))
                )
        return found

    def warnings(self, now: Files) -> list[str]:
        """Returns a warning for each podman hook that CRI-O reads too, and for ways around the NRI plugin."""
        values = now.effective(with_ours=True)
        return _VALIDATOR.warnings(values) + self.blockers(lambda: now)

    def blockers(self, before: Callable[[], Files]) -> list[str]:
        """Returns a message for each hook file with which CRI-O does not start again."""
        directories = toml.get(before().effective(with_ours=True), _HOOKS_DIR, [])
        files = [path for directory in directories for path in sorted(Path(directory).glob("*.json"))]
        return [
            f"{path}: CRI-O does not start if a hook has the stage precreate, which only podman knows"
            for path in files
            if '"precreate"' in path.read_text(errors="replace")
        ]

    def loaded(self, now: Files) -> Files:
        """Returns the configuration of the running CRI-O, which answers HTTP too on its socket (server/inspect.go)."""
        listens = toml.get(now.effective(with_ours=True), ("crio", "api", "listen"), "/var/run/crio/crio.sock")
        address = str(listens).removeprefix("unix://")
        status, answer = fetch("/config", address, self.title, LOADED_SECONDS)
        if status != HTTPStatus.OK:
            raise NodeError(f"{self.title} at {address} answers /config with {status}")
        return Files(toml.parse(answer.decode(errors="replace"), f"/config of {self.title}"), {}, self._ours, {})

    # -- the wanted settings

    def wire(self, now: Files, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns one drop-in; no existing file is edited."""
        wiring = Wiring()
        values = now.effective(with_ours=False)
        settings: dict[toml.Key, Any] = {}
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
        listens = str(toml.get(values, ("crio", "api", "listen"), "/var/run/crio/crio.sock"))
        wiring.add_cri(choice.adapters, self.name, listens)
        if RUNTIME in choice.adapters:
            for name, table in self._wrapped(values, choice, wiring).items():
                settings[(*RUNTIMES, name)] = table
        if {HOOK, NRI} & set(choice.adapters):
            entry = hooks_d(choice.program, "createRuntime", file=choice.hook_file)
            wiring.artifacts.append((f"{HOOKS}/reassert.json", State(json.dumps(entry, indent=1).encode())))
            hooks = toml.get(values, _HOOKS_DIR, [])
            if HOOKS not in hooks:  # otherwise the command line sets it
                settings[_HOOKS_DIR] = [*hooks, HOOKS]
            env = [] if RUNTIME in choice.adapters else reserved_env(choice.policy)
            if env:  # the hook cannot set env, and would refuse every container that lacks it
                theirs = toml.get(values, ("crio", "runtime", "default_env"), [])
                settings[("crio", "runtime", "default_env")] = [*theirs, *env]
        if NRI in choice.adapters:
            socket = str(toml.get(values, ("crio", "nri", "nri_listen"), NRI_SOCKET))
            default = str(toml.get(values, ("crio", "runtime", "default_runtime"), ""))
            add_plugin(wiring, choice, socket, self.handlers(now, {}), default)
            settings[("crio", "nri", "enable_nri")] = True
            settings.update(_VALIDATOR.settings(values, choice, {}))
        if settings:
            for key, value in settings.items():
                if toml.get(now.overrides, key) is not None:
                    raise NodeError(
                        f"crio was started with an option or variable for {key[-1]}, which overrides its files; move "
                        f"it to a drop-in, or set it to {value!r}"
                    )
            text = toml.edit("# written by reassert (`reassert node`); do not edit\n", self._ours, settings)
            wiring.references.append((self._ours, State(text.encode())))
            self._check_later_files(now, list(settings))
            wiring.expected = toml.parse(text, self._ours)
        return wiring

    def _wrapped(self, values: dict[str, Any], choice: Choice, wiring: Wiring) -> dict[str, dict[str, Any]]:
        """Returns the complete tables of the handlers to wire, with dispatchers as runtime paths."""
        tables: dict[str, dict[str, Any]] = toml.get(values, RUNTIMES, {})
        default, wanted = str(toml.get(values, ("crio", "runtime", "default_runtime"), "")), choice.runtime_class
        if wanted is not None and wanted not in tables:
            if default not in tables:
                raise NodeError(f"CRI-O has no handler {wanted} and no default handler to copy for it")
            path = tables[default].get("runtime_path") or systemd.which(default) or ""
            tables = {wanted: {**tables[default], "runtime_path": path}}
        found: dict[str, dict[str, Any]] = {}
        for name, table in sorted(tables.items()):
            if wanted not in (None, name) or (wanted is None and table.get("inherit_default_runtime")):
                continue
            of, source = source_of(table, name, values)
            real = runtime_of(source, of)
            if kind_of(source) != "oci":
                if wanted:
                    raise NodeError(f"handler {name} is of type {kind_of(source)} and calls no OCI runtime")
                wiring.remarks.append(
                    f"handler {name} ({kind_of(source)}) calls no OCI runtime; --adapter nri reaches it"
                )
            elif real is None:
                wiring.remarks.append(f"handler {name}: its runtime is not installed, so CRI-O ignores it")
            else:
                found[name] = self._table(table, source, real, choice, wiring)
        if not found:
            raise NodeError("CRI-O has no handler of type oci whose runtime is installed; nothing to wire")
        return found

    @staticmethod
    def _table(
        table: dict[str, Any], source: dict[str, Any], real: str, choice: Choice, wiring: Wiring
    ) -> dict[str, Any]:
        made = deepcopy(table)
        if made.pop("inherit_default_runtime", False):
            for key in ("runtime_type", "runtime_config_path", "runtime_root"):
                made[key] = source.get(key, "")
        made["runtime_path"] = wiring.add_dispatcher(real, choice)
        if platforms := made.get("platform_runtime_paths"):
            paths = {key: wiring.add_dispatcher(path, choice) for key, path in platforms.items()}
            made["platform_runtime_paths"] = paths
        return made

    def _check_later_files(self, now: Files, keys: list[toml.Key]) -> None:
        """Raises NodeError if a drop-in that is read after ours sets one of our keys and so would replace it."""
        paths = list(now.files)
        later = paths[1:] if self._ours not in paths else paths[paths.index(self._ours) + 1 :]
        for path in (path for path in later if path.split("/") > self._ours.split("/")):
            values = now.files[path]
            for key in keys:
                if toml.get(values, key) is not None:
                    raise NodeError(
                        f"{path} is read after {self._ours} and sets {'.'.join(key)}; name it so that it sorts before"
                    )

    # -- doing it

    def check(self, now: Files, wiring: Wiring) -> None:
        """Checks with `crio config` that CRI-O reads the expected values.

        The validator is not checked: CRI-O 1.34 to 1.37 always print it as a comment (pkg/config/template.go).
        """
        shown = self._seen(now.defaults)
        for key, value in toml.leaves(wiring.expected or {}):
            found = toml.get(shown, key)
            if (
                key[: len(_VALIDATOR.table)] != _VALIDATOR.table
                and found != value
                and (found is not None or key[-1] in ("runtime_path", "hooks_dir", "enable_nri"))
            ):
                raise NodeError(f"CRI-O reads {'.'.join(key)} as {found!r}, not as {value!r} ({self._ours})")

    # restart: containers keep running, since conmon is their parent. The unit is active once CRI-O reports ready.

    def users(self, now: Files, path: str) -> int:
        """Returns how many containers were created with this path as their platform_runtime_paths.

        CRI-O stores it with the container. CRI-O looks up any other runtime_path for each operation.
        """
        root = toml.get(now.effective(with_ours=True), ("crio", "root"), "/var/lib/containers/storage")
        files = glob.glob(f"{glob.escape(str(root))}/*-containers/*/userdata/config.json")
        return sum(platform_path(file) == path for file in files)

    def starter(self, now: Files) -> Starter:
        """Returns a starter of test pods."""
        from hook.node.probe.pods import PodStarter  # imports gRPC

        crio = now.effective(with_ours=True)["crio"]
        systemd_cgroups = crio["runtime"]["cgroup_manager"] == "systemd"
        return PodStarter("cri-o", str(crio["api"]["listen"]), str(crio["image"]["pause_image"]), systemd_cgroups)

    def _crio(self, *arguments: str) -> dict[str, Any]:
        command = [*self._command, *arguments]
        done = systemd.command(command)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise NodeError(f"CRI-O does not accept its configuration: {last}")
        return toml.parse(done.stdout, f"crio {' '.join(arguments)}")
