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
from copy import deepcopy
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, is_wired
from hook.node.artifacts.specs import cdi_file, hooks_d, reserved_env
from hook.node.change.files import State
from hook.node.engines import toml
from hook.node.engines.base import (
    CDI,
    HOOK,
    LOADED_SECONDS,
    NRI,
    RUNTIME,
    Base,
    Choice,
    Config,
    Daemon,
    Handler,
    Wiring,
)
from hook.node.engines.dockerd import fetch
from hook.node.engines.nri_validator import Validator
from hook.node.errors import NodeError
from hook.node.nodefiles import THIS_NODE, NodeFiles
from hook.node.services import NRI_SOCKET, PLUGIN_IS_OURS, PLUGIN_NOT_SEEN, add_plugin, plugin_runs
from hook.node.systemd import option, strings_of

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

_NAME = "crio"

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


@dataclass(frozen=True)
class CrioConfig(Config):
    """The configuration of a CRI-O. The attributes are what it depends on."""

    defaults: dict[str, Any]
    """CRI-O's own values."""

    files: dict[str, dict[str, Any]]
    """The values of each file by its path, in the order of reading."""

    ours: str
    """The path of our drop-in."""

    overrides: dict[str, Any]
    """The values that the command line or the environment of the running crio sets."""

    plugin_runs: bool = False
    """Whether a service of this node runs the NRI plugin."""

    node: NodeFiles = field(default=THIS_NODE, compare=False)
    """Where programs, dispatchers and podman's hooks are looked for."""

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

    # -- what is

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        """Returns every handler whose runtime is installed; CRI-O ignores the others."""
        values = self.effective(with_ours=True)
        hooked = (HOOK,) if HOOKS in toml.get(values, _HOOKS_DIR, []) else ()
        if toml.get(values, ("crio", "nri", "enable_nri"), False) and self.plugin_runs:
            hooked = (*hooked, NRI)
        default = toml.get(values, ("crio", "runtime", "default_runtime"), "")
        found = []
        for name, table in sorted(toml.get(values, RUNTIMES, {}).items()):
            of, source = source_of(table, name, values)
            path, kind = self._runtime_of(source, of), kind_of(source)
            if path is None:
                continue
            notices = ["the default"] if name == default else []
            notices += [] if notes.get(PLUGIN_IS_OURS, True) else [PLUGIN_NOT_SEEN]
            if kind != "oci":
                found.append(Handler(name, "", hooked, f"{kind}: calls no OCI runtime; --adapter nri reaches it"))
            else:
                wired = ((RUNTIME,) if is_wired(path, self.node) else ()) + hooked
                found.append(Handler(name, behind(path, self.node), wired, "; ".join(notices)))
        return found

    def _runtime_of(self, table: dict[str, Any], name: str) -> str | None:
        """Returns the runtime that a handler calls; None if it is not installed."""
        path = str(table.get("runtime_path") or self.node.which(name) or "")
        return path if self.node.is_file(path) else None

    def warnings(self) -> list[str]:
        """Returns a warning for each podman hook that CRI-O reads too, and for ways around the NRI plugin."""
        values = self.effective(with_ours=True)
        return _VALIDATOR.warnings(values) + self.blockers()

    def blockers(self) -> list[str]:
        """Returns a message for each hook file with which CRI-O does not start again."""
        directories = toml.get(self.effective(with_ours=True), _HOOKS_DIR, [])
        files = [path for directory in directories for path in self.node.matching(f"{glob.escape(directory)}/*.json")]
        return [
            f"{path}: CRI-O does not start if a hook has the stage precreate, which only podman knows"
            for path in files
            if b'"precreate"' in (self.node.content(path) or b"")
        ]

    def annotations(self) -> dict[str, list[str]]:
        """Returns allowed_annotations of each handler."""
        tables = toml.get(self.effective(with_ours=True), RUNTIMES, {})
        return {name: [str(p) for p in table.get("allowed_annotations") or []] for name, table in tables.items()}

    # -- the wanted settings

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns one drop-in; no existing file is edited."""
        wiring = Wiring(files=self.node)
        values = self.effective(with_ours=False)
        settings: dict[toml.Key, Any] = {}
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
        listens = str(toml.get(values, ("crio", "api", "listen"), "/var/run/crio/crio.sock"))
        wiring.add_cri(choice.adapters, _NAME, listens)
        if RUNTIME in choice.adapters:
            for name, table in self._wrapped(values, choice, wiring).items():
                settings[(*RUNTIMES, name)] = table
        if {HOOK, NRI} & set(choice.adapters):
            entry = hooks_d(choice.program, choice.hook_file)
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
            add_plugin(wiring, choice, socket, self.handlers({}), default)
            settings[("crio", "nri", "enable_nri")] = True
            settings.update(_VALIDATOR.settings(values, choice, {}))
        if settings:
            for key, value in settings.items():
                if toml.get(self.overrides, key) is not None:
                    raise NodeError(
                        f"crio was started with an option or variable for {key[-1]}, which overrides its files; move "
                        f"it to a drop-in, or set it to {value!r}"
                    )
            text = toml.edit(
                "# written by reassert (`reassert install`); do not edit\n",
                self.ours,
                settings,
                self.node.content(self.ours),
            )
            wiring.references.append((self.ours, State(text.encode())))
            self._check_later_files(list(settings))
            wiring.expected = toml.parse(text, self.ours)
        return wiring

    def _wrapped(self, values: dict[str, Any], choice: Choice, wiring: Wiring) -> dict[str, dict[str, Any]]:
        """Returns the complete tables of the handlers to wire, with dispatchers as runtime paths."""
        tables: dict[str, dict[str, Any]] = toml.get(values, RUNTIMES, {})
        default, wanted = str(toml.get(values, ("crio", "runtime", "default_runtime"), "")), choice.runtime_class
        if wanted is not None and wanted not in tables:
            if default not in tables:
                raise NodeError(f"CRI-O has no handler {wanted} and no default handler to copy for it")
            path = tables[default].get("runtime_path") or self.node.which(default) or ""
            tables = {wanted: {**tables[default], "runtime_path": path}}
        found: dict[str, dict[str, Any]] = {}
        for name, table in sorted(tables.items()):
            if wanted not in (None, name) or (wanted is None and table.get("inherit_default_runtime")):
                continue
            of, source = source_of(table, name, values)
            real = self._runtime_of(source, of)
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

    def _check_later_files(self, keys: list[toml.Key]) -> None:
        """Raises NodeError if a drop-in that is read after ours sets one of our keys and so would replace it."""
        paths = list(self.files)
        later = paths[1:] if self.ours not in paths else paths[paths.index(self.ours) + 1 :]
        for path in (path for path in later if path.split("/") > self.ours.split("/")):
            values = self.files[path]
            for key in keys:
                if toml.get(values, key) is not None:
                    raise NodeError(
                        f"{path} is read after {self.ours} and sets {'.'.join(key)}; name it so that it sorts before"
                    )

    def check(self, shown: dict[str, Any], wiring: Wiring) -> None:
        """Checks that CRI-O shows the expected values (`crio config`). Raises NodeError.

        The validator is not checked: CRI-O 1.34 to 1.37 always print it as a comment (pkg/config/template.go).
        """
        for key, value in toml.leaves(wiring.expected or {}):
            found = toml.get(shown, key)
            if (
                key[: len(_VALIDATOR.table)] != _VALIDATOR.table
                and found != value
                and (found is not None or key[-1] in ("runtime_path", "hooks_dir", "enable_nri"))
            ):
                raise NodeError(f"CRI-O reads {'.'.join(key)} as {found!r}, not as {value!r} ({self.ours})")


class Crio(Daemon[CrioConfig]):
    """The CRI-O of this node.

    `command`: crio with the options and the environment of the running one, which override its files. `file`,
    `drop_ins`: the main file and the directory of the drop-ins.
    """

    name = _NAME
    adapters = (RUNTIME, NRI, HOOK, CDI)
    service = "crio.service"
    config_class = CrioConfig

    def __init__(self, version: str, command: list[str], file: str, drop_ins: str) -> None:
        self.title = f"CRI-O {version}"
        self._command = command
        self._file = file
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

    def read(self) -> CrioConfig:
        """Returns CRI-O's defaults (`crio config --default`), the main file and all below the drop-in directory.

        With what the command line or the environment of the running crio overrides: `crio config` shows that, too.
        """
        paths = [self._file, *files_below(self._drop_ins)]
        files = {path: toml.values_of(path) for path in paths}
        config = CrioConfig(self._crio("config", "--default"), files, self._ours, {}, plugin_runs())
        if len(self._command) == 1:
            return config
        said, seen = config.effective(with_ours=True), self._seen(config.defaults)
        for key in _OVERRIDABLE:
            if toml.get(seen, key) != toml.get(said, key):
                toml.put(config.overrides, key, toml.get(seen, key))
        return config

    def _seen(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """Returns the values of `crio config`, which prints default values as comments only."""
        shown = deepcopy(defaults)
        merge(shown, self._crio("config"), ())
        return shown

    def loaded(self, config: CrioConfig) -> CrioConfig:
        """Returns the configuration of the running CRI-O, which answers HTTP too on its socket (server/inspect.go)."""
        listens = toml.get(config.effective(with_ours=True), ("crio", "api", "listen"), "/var/run/crio/crio.sock")
        address = str(listens).removeprefix("unix://")
        status, answer = fetch("/config", address, self.title, LOADED_SECONDS)
        if status != HTTPStatus.OK:
            raise NodeError(f"{self.title} at {address} answers /config with {status}")
        said = toml.parse(answer.decode(errors="replace"), f"/config of {self.title}")
        return CrioConfig(said, {}, self._ours, {}, config.plugin_runs)

    def check(self, config: CrioConfig, wiring: Wiring) -> None:
        """Checks with `crio config` that CRI-O reads the expected values."""
        config.check(self._seen(config.defaults), wiring)

    # restart: containers keep running, since conmon is their parent. The unit is active once CRI-O reports ready.

    def users(self, config: CrioConfig, path: str) -> int:
        """Returns how many containers were created with this path as their platform_runtime_paths.

        CRI-O stores it with the container. CRI-O looks up any other runtime_path for each operation.
        """
        root = toml.get(config.effective(with_ours=True), ("crio", "root"), "/var/lib/containers/storage")
        files = glob.glob(f"{glob.escape(str(root))}/*-containers/*/userdata/config.json")
        return sum(platform_path(file) == path for file in files)

    def starter(self, config: CrioConfig) -> Starter:
        """Returns a starter of test pods."""
        from hook.node.probe.pods import PodStarter  # imports gRPC

        crio = config.effective(with_ours=True)["crio"]
        systemd_cgroups = crio["runtime"]["cgroup_manager"] == "systemd"
        return PodStarter("cri-o", str(crio["api"]["listen"]), str(crio["image"]["pause_image"]), systemd_cgroups)

    def _crio(self, *arguments: str) -> dict[str, Any]:
        command = [*self._command, *arguments]
        done = systemd.command(command)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise NodeError(f"CRI-O does not accept its configuration: {last}")
        return toml.parse(done.stdout, f"crio {' '.join(arguments)}")
