"""CRI-O: one drop-in file with the tables of the runtimes, and a hooks.d directory of our own.

A table `[crio.runtime.runtimes.NAME]` in a drop-in replaces an earlier one as a whole (pkg/config's
UpdateFromDropInFile decodes into a map, and BurntSushi/toml's unifyMap creates a new value for each key). So our
drop-in repeats every setting of a table. A container stores only the name of its handler, and CRI-O looks up the
runtime_path for each operation (internal/oci, newRuntimeImpl). So containers keep working across an install and an
uninstall.
"""

from __future__ import annotations

import json
import os
import re
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hook.emit.hookentry import hooks_d
from hook.node import systemd
from hook.node.change.files import State
from hook.node.engines import toml
from hook.node.engines.artifacts.basespec import reserved_env
from hook.node.engines.artifacts.cdi import cdi_file
from hook.node.engines.artifacts.dispatchers import behind, dispatcher_for, real_of
from hook.node.engines.artifacts.nri_unit import PLUGIN_IS_OURS, PLUGIN_NOT_SEEN, nri_unit
from hook.node.engines.base import CDI, HOOK, NRI, RUNTIME, Base, Choice, Engine, Handler, Wiring
from hook.node.engines.cmdline import arguments_of, option
from hook.node.engines.nri_validator import Validator
from hook.node.errors import NodeError
from hook.node.probe.starter import Starter

HOOKS = "/etc/reassert/hooks.d/crio"
"""A directory of our own: podman also runs the hooks in /usr/share/containers/oci/hooks.d."""

_CONFIG, _DROP_INS, _OURS = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d", "99-reassert.conf"
_RUNTIMES = ("crio", "runtime", "runtimes")
_VALIDATOR = Validator(
    ("crio", "nri", "default_validator"),
    "nri_enable_default_validator",
    "nri_validator_required_plugins",
    "nri_validator_tolerate_missing_plugins_annotation",
)
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
    our drop-in.
    """

    defaults: dict[str, Any]
    files: dict[str, dict[str, Any]]
    ours: str

    def effective(self, with_ours: bool) -> dict[str, Any]:
        """Returns the values of all files merged into the defaults. `with_ours`: include our drop-in."""
        values = deepcopy(self.defaults)
        for name, table in toml.get(values, _RUNTIMES, {}).items():
            values["crio"]["runtime"]["runtimes"][name] = {k: v for k, v in table.items() if k.startswith(_KEYS)}
        for path, said in self.files.items():
            if with_ours or path != self.ours:
                _merge(values, deepcopy(said), ())
        return values


class Crio(Engine[Files]):
    """The CRI-O of this node.

    `options`: the options of its command line that name its files. `config`, `drop_ins`: the main file and the
    directory of the drop-ins.
    """

    name = "crio"
    adapters = (RUNTIME, NRI, HOOK, CDI)
    service = "crio.service"

    def __init__(self, version: str, options: list[str], config: str, drop_ins: str) -> None:
        self.title = f"CRI-O {version}"
        self._options = options
        self._config = config
        self._drop_ins = drop_ins
        self._ours = f"{drop_ins}/{_OURS}"

    @classmethod
    def installed(cls) -> bool:
        """Whether crio is installed on this node."""
        return systemd.which("crio") is not None

    @classmethod
    def find(cls) -> Self:
        """Returns the CRI-O of this node: version by `crio --version`, paths by the running daemon's command line."""
        said = systemd.command(["crio", "--version"]).stdout
        found = re.search(r"version:?\s+v?(\d+\.\d+\.\d+)", said, re.IGNORECASE)
        if found is None:
            raise NodeError(f"`crio --version` prints no version: {said[:80].strip()!r}")
        arguments = arguments_of(systemd.main_pid(cls.service))
        if option(arguments, "--runtimes"):
            raise NodeError("crio was started with --runtimes, which overrides its files; move that to a drop-in first")
        given = {
            "--config": option(arguments, "--config", "-c"),
            "--config-dir": option(arguments, "--config-dir", "-d"),
        }
        options = [word for name, values in given.items() if values for word in (name, values[-1])]
        return cls(found[1], options, (given["--config"] or [_CONFIG])[-1], (given["--config-dir"] or [_DROP_INS])[-1])

    def read(self) -> Files:
        """Returns CRI-O's defaults (`crio config --default`), the main file and all below the drop-in directory."""
        paths = [self._config, *_walk(self._drop_ins)]
        return Files(self._crio("config", "--default"), {path: _read(path) for path in paths}, self._ours)

    # -- what is

    def handlers(self, now: Files, notes: dict[str, Any]) -> list[Handler]:
        """Returns every handler whose runtime is installed; CRI-O ignores the others."""
        values = now.effective(with_ours=True)
        hooked = (HOOK,) if HOOKS in toml.get(values, ("crio", "runtime", "hooks_dir"), []) else ()
        default = toml.get(values, ("crio", "runtime", "default_runtime"), "")
        found = []
        for name, table in sorted(toml.get(values, _RUNTIMES, {}).items()):
            of, source = _source(table, name, values)
            path, kind = _path(source, of), _kind(source)
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
        directories = toml.get(values, ("crio", "runtime", "hooks_dir"), [])
        files = [path for directory in directories for path in sorted(Path(directory).glob("*.json"))]
        return _VALIDATOR.warnings(values) + [
            f"{path}: CRI-O does not start if a hook has the stage precreate, which only podman knows"
            for path in files
            if '"precreate"' in path.read_text(errors="replace")
        ]

    # -- what is to be

    def wire(self, now: Files, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns one drop-in; no existing file is edited."""
        wiring = Wiring()
        values = now.effective(with_ours=False)
        settings: dict[toml.Key, Any] = {}
        if CDI in choice.adapters:
            wiring.artifacts.append(cdi_file(choice.policy, choice.program))
        if RUNTIME in choice.adapters:
            for name, table in self._wrapped(values, choice, wiring).items():
                settings[(*_RUNTIMES, name)] = table
        if {HOOK, NRI} & set(choice.adapters):
            entry = hooks_d(choice.program, "createRuntime", file=choice.hook_file)
            wiring.artifacts.append((f"{HOOKS}/reassert.json", State(json.dumps(entry, indent=1).encode())))
            hooks = toml.get(values, ("crio", "runtime", "hooks_dir"), [])
            settings[("crio", "runtime", "hooks_dir")] = [*hooks, HOOKS]
            env = [] if RUNTIME in choice.adapters else reserved_env(choice.policy)
            if env:  # the hook cannot set env, and would refuse every container that lacks it
                theirs = toml.get(values, ("crio", "runtime", "default_env"), [])
                settings[("crio", "runtime", "default_env")] = [*theirs, *env]
        if NRI in choice.adapters:
            if choice.unit:
                socket = str(toml.get(values, ("crio", "nri", "nri_listen"), "/var/run/nri/nri.sock"))
                artifacts, wiring.units = nri_unit(choice, socket)
                wiring.artifacts += artifacts
            else:
                wiring.notes[PLUGIN_IS_OURS] = False
            settings[("crio", "nri", "enable_nri")] = True
            settings.update(_VALIDATOR.settings(values, choice, {}))
        if settings:
            text = toml.edit("# written by reassert (`reassert node`); do not edit\n", self._ours, settings)
            wiring.references.append((self._ours, State(text.encode())))
            self._check_later_files(now, list(settings))
            wiring.expected = toml.parse(text, self._ours)
        return wiring

    def _wrapped(self, values: dict[str, Any], choice: Choice, wiring: Wiring) -> dict[str, dict[str, Any]]:
        """Returns the complete tables of the handlers to wire, with dispatchers as runtime paths."""
        tables: dict[str, dict[str, Any]] = toml.get(values, _RUNTIMES, {})
        default, wanted = str(toml.get(values, ("crio", "runtime", "default_runtime"), "")), choice.runtime_class
        if wanted is not None and wanted not in tables:
            if default not in tables:
                raise NodeError(f"CRI-O has no handler {wanted} and no default handler to copy for it")
            tables = {wanted: _own(tables[default], default)}
        taken: dict[str, str] = {}
        found: dict[str, dict[str, Any]] = {}
        for name, table in sorted(tables.items()):
            if wanted not in (None, name) or (wanted is None and table.get("inherit_default_runtime")):
                continue
            of, source = _source(table, name, values)
            real = _path(source, of)
            if _kind(source) != "oci":
                if wanted:
                    raise NodeError(f"handler {name} is of type {_kind(source)} and calls no OCI runtime")
                wiring.remarks.append(
                    f"handler {name} ({_kind(source)}) calls no OCI runtime; --adapter nri reaches it"
                )
            elif real is None:
                wiring.remarks.append(f"handler {name}: its runtime is not installed, so CRI-O ignores it")
            else:
                found[name] = self._table(table, source, real, choice, taken, wiring)
        if not found:
            raise NodeError("CRI-O has no handler of type oci whose runtime is installed; nothing to wire")
        return found

    @staticmethod
    def _table(
        table: dict[str, Any], source: dict[str, Any], real: str, choice: Choice, taken: dict[str, str], wiring: Wiring
    ) -> dict[str, Any]:
        def dispatched(path: str) -> str:
            return wiring.add_artifact(dispatcher_for(behind(path), choice.program, taken, front=choice.front))

        made = deepcopy(table)
        if made.pop("inherit_default_runtime", False):
            for key in ("runtime_type", "runtime_config_path", "runtime_root"):
                made[key] = source.get(key, "")
        made["runtime_path"] = dispatched(real)
        platforms = made.get("platform_runtime_paths")
        if platforms:
            made["platform_runtime_paths"] = {key: dispatched(path) for key, path in platforms.items()}
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

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns None: reassert wrote the whole drop-in."""
        return None

    # -- doing it

    def check(self, now: Files, wiring: Wiring) -> None:
        """Checks with `crio config` that CRI-O reads the expected values. It prints default values as comments only."""
        shown = deepcopy(now.defaults)
        _merge(shown, self._crio("config"), ())
        for key, value in _leaves(wiring.expected or {}, ()):
            found = toml.get(shown, key)
            if found != value and (found is not None or key[-1] in ("runtime_path", "hooks_dir", "enable_nri")):
                raise NodeError(f"CRI-O reads {'.'.join(key)} as {found!r}, not as {value!r} ({self._ours})")

    # restart: containers keep running, since conmon is their parent. The unit is active once CRI-O reports ready.
    # users: none, since CRI-O looks up the runtime for each operation, and it has been restarted.

    def starter(self, now: Files) -> Starter:
        """Returns a starter of test pods."""
        from hook.node.probe.pods import PodStarter  # imports gRPC

        crio = now.effective(with_ours=True)["crio"]
        systemd_cgroups = crio["runtime"]["cgroup_manager"] == "systemd"
        return PodStarter("cri-o", str(crio["api"]["listen"]), str(crio["image"]["pause_image"]), systemd_cgroups)

    def _crio(self, *arguments: str) -> dict[str, Any]:
        command = ["crio", *self._options, *arguments]
        done = systemd.command(command)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise NodeError(f"CRI-O does not accept its configuration: {last}")
        return toml.parse(done.stdout, " ".join(command))


def _merge(values: dict[str, Any], more: dict[str, Any], at: toml.Key) -> None:
    """Merges values as CRI-O does: tables are merged, but a handler's table replaces the earlier one."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict) and at != _RUNTIMES:
            _merge(values[key], value, (*at, key))
        else:
            values[key] = value


def _leaves(values: dict[str, Any], at: toml.Key) -> list[tuple[toml.Key, Any]]:
    """Returns every setting with its full key."""
    found: list[tuple[toml.Key, Any]] = []
    for key, value in values.items():
        found += _leaves(value, (*at, key)) if isinstance(value, dict) else [((*at, key), value)]
    return found


def _read(path: str) -> dict[str, Any]:
    try:
        return toml.parse(Path(path).read_text(), path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path}: {error}") from None


def _walk(directory: str) -> list[str]:
    found: list[str] = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        path = f"{directory}/{name}"
        found += _walk(path) if os.path.isdir(path) and not os.path.islink(path) else [path]
    return found


def _source(table: dict[str, Any], name: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns name and table of the handler whose runtime this one calls: its own or, if inherited, the default's."""
    if table.get("inherit_default_runtime"):
        default = str(toml.get(values, ("crio", "runtime", "default_runtime"), ""))
        return default, toml.get(values, (*_RUNTIMES, default), {})
    return name, table


def _own(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns a copy of a handler's table for a new handler, with an explicit runtime_path."""
    return {**table, "runtime_path": table.get("runtime_path") or systemd.which(name) or ""}


def _kind(table: dict[str, Any]) -> str:
    return str(table.get("runtime_type") or "oci")


def _path(table: dict[str, Any], name: str) -> str | None:
    """Returns the runtime that a handler calls; None if it is not installed."""
    path = str(table.get("runtime_path") or systemd.which(name) or "")
    return path if os.path.isfile(path) else None
