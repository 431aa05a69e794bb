"""The configuration of containerd 1.6, 1.7 and 2.x, as `containerd config dump` prints it, and the files behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from os.path import basename, dirname, normpath
from typing import Any, Self

from hook.core.base.errors import ReassertError
from hook.node.artifacts.dispatchers import behind, is_wired, real_of
from hook.node.artifacts.specs import CDI_FILE, base_spec, cdi_file, reserved_env
from hook.node.change.files import State
from hook.node.engines import toml
from hook.node.engines.base import CDI, HOOK, NOT_INSTALLED, RUNC_TYPES, RUNTIME, Base, Choice, Config, Handler, Wiring
from hook.node.engines.base import NRI as NRI_ADAPTER
from hook.node.engines.containerd.files import FORMATS, NRI, Files, strip
from hook.node.engines.containerd.settings import (
    SPECS,
    VALIDATOR,
    Dump,
    before_wiring,
    comparable,
    cri,
    differences,
    in_dump,
    is_our_spec,
    is_ours,
    not_wrapped,
    own_values,
    path_of_shim,
    runtimes,
    wanted_dump,
)
from hook.node.engines.nri_validator import NOTE
from hook.node.engines.toml import Key
from hook.node.errors import NodeError
from hook.node.nodefiles import THIS_NODE, NodeFiles
from hook.node.services import NRI_SOCKET, PLUGIN_IS_OURS, PLUGIN_NOT_SEEN, add_plugin

_RUNSC, _RUNSC_CONFIG, _RUNSC_KEY = "io.containerd.runsc.v1", "/run/containerd/runsc/config.toml", "binary_name"
"""gVisor's own shim; the file that it reads at each start, if the handler's options have no ConfigPath; the runsc that
it calls, in there. containerd need not be restarted. Source: gVisor's pkg/shim/v1/runsc (options.go, service.go)."""


_LINUX = "io.containerd.runtime.v1.linux"
_OF_LINUX = (
    f'{_LINUX}: containerd\'s first shim, which is not wrapped; write runtime_type = "io.containerd.runc.v2", and '
    "runtime_engine as options.BinaryName"
)

_WINDOWS = "io.containerd.runhcs.v1"
"""The shim of Windows nodes. k3s and RKE2 write a handler of this type on every node; no Linux node has the shim."""

_SNAPSHOTTER = (
    "containerd 2 ignores the snapshotter of a version 2 file until one of its files has a table of runtimes, as our "
    "drop-in has; `containerd config migrate` writes a version 3 file: install then"
)


@dataclass(frozen=True)
class ContainerdConfig(Config):
    """The effective configuration of a containerd. Raises NodeError for one that kubelet cannot use.

    The attributes are what it depends on.
    """

    dump: Dump
    """The values that `containerd config dump` prints."""

    version: tuple[int, int, int]
    """containerd's."""

    engine: str
    """The engine's name: containerd, k3s, …"""

    title: str
    """The engine's name and version, for messages."""

    file: str
    """The path of config.toml, which may be missing."""

    address: str
    """The path of containerd's socket."""

    plugin_runs: bool
    """Whether a service of this node runs the NRI plugin."""

    default_spec: Callable[[str], dict[str, Any]]
    """Returns the OCI spec that a base_runtime_spec names; for "" containerd's own. Raises NodeError."""

    programs: str | None = None
    """The directory of the default runc, where PATH does not name it (k3s)."""

    node: NodeFiles = field(default=THIS_NODE, compare=False)
    """Where programs, dispatchers and the other files are looked for."""

    def __post_init__(self) -> None:
        plugin = toml.get(self.dump, cri(self.dump))
        disabled = [str(name) for name in self.dump.get("disabled_plugins", [])]
        if plugin is None or any(name in ("cri", *(each.cri[1] for each in FORMATS.values())) for name in disabled):
            raise NodeError(f"{self.file}: the CRI plugin is disabled (disabled_plugins), so kubelet cannot use it")
        for name in ("default_runtime", "untrusted_workload_runtime"):
            if toml.get(plugin, ("containerd", name, "runtime_type")):
                raise NodeError(f"{self.file}: {name} is deprecated and not supported; write it as runtimes.NAME")

    def with_runtimes(self, tables: dict[str, dict[str, Any]]) -> Self:
        """Returns this configuration with the handlers that CRI's Status has, in its spelling, in place of its own."""
        dump = deepcopy(self.dump)
        toml.put(
            dump, (*cri(dump), "containerd", "runtimes"), {name: _as_in_file(each) for name, each in tables.items()}
        )
        return replace(self, dump=dump)

    def which(self, program: str) -> str | None:
        """Returns the absolute path of a program as containerd's shim finds it; None if there is none."""
        bundled = f"{self.programs}/{program}"
        return bundled if self.programs and self.node.is_program(bundled) else self.node.which(program)

    @property
    def state(self) -> str:
        """The state directory of containerd, which has the bundles. No setting of reassert changes it."""
        return str(self.dump.get("state", "/run/containerd"))

    def runtimes(self) -> dict[str, dict[str, Any]]:
        """Returns the tables of the runtime handlers, by name."""
        return runtimes(self.dump)

    def default(self, otherwise: str = "") -> str:
        """Returns the name of the default handler."""
        return str(toml.get(self.dump, (*cri(self.dump), "containerd", "default_runtime_name"), otherwise))

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        """Returns every handler of the CRI plugin."""
        was = notes.get("handlers", {})
        note = "" if notes.get(PLUGIN_IS_OURS, True) else PLUGIN_NOT_SEEN
        return [self._handler(name, table, was.get(name, {}), note) for name, table in sorted(self.runtimes().items())]

    def _handler(self, name: str, table: dict[str, Any], was: dict[str, str], note: str) -> Handler:
        kind = str(table.get("runtime_type", ""))
        by_path = path_of_shim(table)
        reached = (NRI_ADAPTER,) if self.plugin_runs else ()
        if kind == _RUNSC and (called := self._runsc_of(table)):
            runtime, there = self._runtime(behind(self.which(called) or called, self.node))
            wired_shim = (RUNTIME,) if is_wired(called, self.node) else ()
            return Handler(name, runtime, wired_shim + reached, "" if there else NOT_INSTALLED, is_installed=there)
        if kind == _LINUX:
            return Handler(name, self._runtime(str(table.get("runtime_engine") or ""))[0], (), _OF_LINUX)
        if kind == _WINDOWS:
            return Handler(name, kind, (), f"{kind}, the shim of Windows nodes, is {NOT_INSTALLED}", is_installed=False)
        if kind not in RUNC_TYPES and not by_path:
            return Handler(
                name, "", reached, f"{kind or 'no runtime_type'}: calls no OCI runtime; --adapter nri reaches it"
            )
        binary = str(toml.get(table, ("options", "BinaryName"), ""))
        real = real_of(binary, self.node) if binary else None
        spec = str(table.get("base_runtime_spec", ""))
        wired = [RUNTIME] if real and is_wired(binary, self.node) else []
        if is_our_spec(spec):
            wired.append(HOOK)
        if self.plugin_runs:
            wired.append(NRI_ADAPTER)
        original = real or (was.get("BinaryName", "") if is_ours(binary) else binary)
        runtime, there = self._runtime(original)
        absent = "" if there else NOT_INSTALLED
        notices = [text for text in (absent, not_wrapped(table) if by_path else "", note) if text]
        return Handler(name, runtime, tuple(wired), "; ".join(notices), not by_path, there)

    def _runtime(self, binary: str) -> tuple[str, bool]:
        """Returns the path of a BinaryName, as the shim finds it, and whether it is installed."""
        found = self.which(binary or "runc")
        return found or binary or "runc", found is not None

    def warnings(self) -> list[str]:
        """Returns a warning for each runc handler without wrapper and hook, and for ways around the NRI plugin.

        And one for a default handler whose runtime is not installed.
        """
        absent = [each for each in self.handlers({}) if each.name == self.default() and not each.is_installed]
        return [f"the default handler {each.name} calls {each.runtime}, which is not installed" for each in absent] + [
            *VALIDATOR.warnings(self.dump),
            *(
                f"handler {name} {not_wrapped(table)}"
                for name, table in sorted(self.runtimes().items())
                if path_of_shim(table) and not is_our_spec(str(table.get("base_runtime_spec", "")))
            ),
        ]

    def hints(self) -> list[str]:
        """Returns a hint for each key that some guides recommend and that containerd silently ignores."""
        found = []
        for name, table in sorted(self.runtimes().items()):
            for key in ("hooks", "env"):
                if key in (table.get("options") or {}):
                    instead = (
                        "hooks go into the OCI spec that base_runtime_spec names: reassert install --adapter hook"
                        if key == "hooks"
                        else "reserve env in /etc/reassert/policy.yaml: reassert install"
                    )
                    found.append(f"runtimes.{name}.options.{key} does nothing in containerd; {instead}")
        return found

    def annotations(self) -> dict[str, list[str]]:
        """Returns pod_annotations and container_annotations of each handler."""
        keys = "pod_annotations", "container_annotations"
        tables = self.runtimes().items()
        return {name: [str(p) for key in keys for p in table.get(key) or []] for name, table in tables}

    def without_cdi(self) -> str:
        """Returns why kubelet's CDI devices are ignored: 1.6 has none, and 1.7 has them switched off by default."""
        if self.version < (1, 7):
            return f"{self.title} has no CDI, which needs 1.7 or later"
        if toml.get(self.dump, (*cri(self.dump), "enable_cdi"), False):
            return ""
        return f"enable_cdi is false in {self.file}; add `cdi` to --adapter of `reassert install`"

    # -- the wanted settings

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns files that set BinaryName and base_runtime_spec of the handlers, and enable NRI or CDI if chosen."""
        dump = self.dump
        files = self.files(base)
        wiring = Wiring(files=self.node)
        settings: dict[Key, Any] = {}
        was: dict[str, dict[str, str]] = {}
        # The wrapper sets env itself, and only for containers that a rule matches.
        env = [] if RUNTIME in choice.adapters else reserved_env(choice.policy)
        defaults: dict[str, dict[str, Any]] = {}
        chosen, created = self._chosen(choice, notes) if choice.adapters != (CDI,) else ({}, None)
        for name, table in chosen.items():
            old = notes.get("handlers", {}).get(name) or before_wiring(table, notes, self.node)
            was[name] = old
            runtime = ("containerd", "runtimes", name)
            if name == created or not files.define((*runtime,)):
                # A table in a file replaces the built-in one, so the file must have all of its values.
                settings.update({(*files.cri(), *runtime, *key): value for key, value in own_values(table).items()})
            if {HOOK, NRI_ADAPTER} & set(choice.adapters):
                configured = old["base_runtime_spec"]
                if configured not in defaults:
                    defaults[configured] = self.default_spec(configured)
                spec = base_spec(defaults[configured], choice.program, env, choice.hook_file)
                path = f"{SPECS}/{name}.json"
                wiring.references.append((path, State(json.dumps(spec, indent=1).encode())))
                settings[(*files.cri(), *runtime, "base_runtime_spec")] = path
        if RUNTIME in choice.adapters:
            called = {name: old["BinaryName"] for name, old in was.items() if not path_of_shim(chosen[name])}
            for name, path in self._dispatchers(called, choice, wiring).items():
                settings[(*files.cri(), "containerd", "runtimes", name, "options", "BinaryName")] = path
        wiring.add_cri(choice.adapters, self.engine, self.address)
        switched = False
        if NRI_ADAPTER in choice.adapters:
            switched = bool(notes.get("nri")) or bool(toml.get(dump, (*NRI, "disable"), True))
            if self.version < (1, 7):
                raise NodeError(f"{self.title} has no NRI, which needs 1.7 or later; use --adapter runtime")
            socket = str(toml.get(dump, (*NRI, "socket_path"), NRI_SOCKET))
            add_plugin(wiring, choice, socket, self.handlers(notes), self.default())
        if switched:
            settings[*NRI, "disable"] = False
        required = VALIDATOR.settings(dump, choice, notes)
        settings.update(required)
        enabled = False
        if CDI in choice.adapters:
            enabled = bool(notes.get("cdi")) or bool(self.without_cdi())
            self._cdi(choice, wiring, enabled)
        if enabled:
            settings[*files.cri(), "enable_cdi"] = True
        configuration, changed = files.change(settings) if settings else ([], [])
        wiring.references += configuration
        wiring.notes |= {
            "handlers": was,
            "settings": [*changed, *self._gvisors_shim(choice, base, wiring)],
            "created": created,
            "nri": switched,
            "cdi": enabled,
        }
        if required:
            wiring.notes[NOTE] = VALIDATOR.before(dump, notes)
        effective = {in_dump(key, dump): value for key, value in settings.items()}
        wiring.expected = wanted_dump(dump, effective, notes, {created: chosen[created]} if created else {})
        return wiring

    def _dispatchers(self, called: dict[str, str], choice: Choice, wiring: Wiring) -> dict[str, str]:
        """Adds the dispatchers of handlers and returns their paths. Raises NodeError if no runtime is installed.

        `called`: BinaryName by handler.
        """
        real = {name: self._runtime(binary) for name, binary in called.items()}
        if real and not any(is_installed for _, is_installed in real.values()):
            names = ", ".join(sorted({path for path, _ in real.values()}))
            raise NodeError(f"no OCI runtime of a handler is installed on this node: {names}")
        found = {name: wiring.add_handlers(name, *runtime, choice) for name, runtime in real.items()}
        return {name: path for name, path in found.items() if path}

    def _gvisors_shim(self, choice: Choice, base: Base, wiring: Wiring) -> list[dict[str, Any]]:
        """Puts dispatchers into the files of gVisor's own shim. Returns the notes with which `strip` removes them."""
        notes: list[dict[str, Any]] = []
        for name, table in self.runtimes().items() if RUNTIME in choice.adapters else ():
            if table.get("runtime_type") != _RUNSC or choice.runtime_class not in (None, name):
                continue
            path = self._runsc_config(table)
            before = base(path)
            if before is None:
                wiring.remarks.append(f"handler {name}: gVisor's shim has no {path}, in which binary_name could be set")
                continue
            text = toml.decode(before.content)
            was = toml.parse(text, path).get(_RUNSC_KEY)
            ours = wiring.add_handlers(name, *self._runtime(str(was or "runsc")), choice)
            if not ours:
                continue
            content = toml.encode(toml.edit(text, path, {(_RUNSC_KEY,): ours}, self.node.content(path)))
            if path not in [other for other, _ in wiring.references]:  # two handlers may have one file
                wiring.references.append((path, before.with_content(content)))
            notes.append({"path": path, "key": [_RUNSC_KEY], "ours": ours, "was": was})
        return notes

    def files(self, base: Base) -> Files:
        """Returns the configuration files. Raises NodeError.

        The `imports` of the dump do not count: 2.2 and later print a default that they do not read.
        """
        return Files.read(self.file, int(self.dump.get("version", 2)), [], base, self.node)

    def _chosen(self, choice: Choice, notes: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], str | None]:
        """Returns the tables of the handlers to wire, and the name of a new handler, a copy of the default one."""
        there = {name: table for name, table in self.runtimes().items() if name != notes.get("created")}
        known = {name: table for name, table in there.items() if table.get("runtime_type") in RUNC_TYPES}
        if {HOOK, NRI_ADAPTER} & set(choice.adapters):
            known.update({name: table for name, table in there.items() if path_of_shim(table)})
        wanted = choice.runtime_class
        if wanted is None:
            if not known:
                raise NodeError("containerd's CRI plugin has no runtime handler of a runc type; nothing to wire")
            return known, None
        if wanted in known:
            return {wanted: known[wanted]}, None
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", wanted):
            raise NodeError(f"--runtime-class {wanted}: a RuntimeClass' handler is a DNS label: a-z, 0-9 and -")
        if wanted in there:
            table = there[wanted]
            why = (
                not_wrapped(table)
                if path_of_shim(table)
                else f"is of type {table.get('runtime_type')} and calls no runc"
            )
            raise NodeError(f"handler {wanted} {why}")
        default = self.default("runc")
        if default not in known:
            raise NodeError(f"the default handler {default} calls no runc; name an existing one with --runtime-class")
        return {wanted: known[default]}, wanted

    def _cdi(self, choice: Choice, wiring: Wiring, enables: bool) -> None:
        """Adds the CDI spec. Raises NodeError if containerd does not read its directory.

        `enables`: whether this install switches CDI on. Then it does so for a policy without anything for a spec too.
        """
        if self.version < (1, 7):
            raise NodeError(f"{self.title} has no CDI, which needs 1.7 or later; use --adapter runtime")
        try:
            path, state = cdi_file(choice.policy, choice.program)
        except ReassertError as error:
            if not enables or choice.policy.missing:
                raise
            wiring.remarks.append(f"containerd gives containers CDI devices; no CDI spec is written: {error}")
            return
        directories = toml.get(self.dump, (*cri(self.dump), "cdi_spec_dirs"), [])
        if dirname(CDI_FILE) not in map(normpath, directories):
            raise NodeError(f"{self.file}: cdi_spec_dirs does not name {dirname(CDI_FILE)}; add it")
        wiring.artifacts.append((path, state))

    @staticmethod
    def strip(path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns None for our own files, and other files without our settings."""
        if path.startswith(SPECS) or basename(path).startswith("99-reassert"):
            return None
        return toml.encode(strip(path, toml.decode(content), notes.get("settings", [])))

    def check(self, wiring: Wiring) -> None:
        """Checks that `containerd config dump` prints exactly the expected values."""
        if wiring.expected is None:
            return
        wrong = differences(comparable(wiring.expected), comparable(self.dump))
        if wrong:
            old = self.version >= (2, 0) and any("snapshotter is" in text for text in wrong)
            why = f"; {_SNAPSHOTTER}" if old else ""
            raise NodeError(f"containerd does not read its configuration as intended: {'; '.join(wrong[:5])}{why}")

    def _runsc_config(self, table: dict[str, Any]) -> str:
        """Returns the path of the file of a handler of gVisor's own shim."""
        return self.node.target(str(toml.get(table, ("options", "ConfigPath"), "") or _RUNSC_CONFIG))

    def _runsc_of(self, table: dict[str, Any]) -> str:
        """Returns the runsc that the file of a handler names; "" without a file. Raises NodeError if it is no TOML."""
        path = self._runsc_config(table)
        try:
            content = self.node.content(path)
        except OSError:
            content = None
        return "" if content is None else str(toml.parse(toml.decode(content), path).get(_RUNSC_KEY) or "runsc")


def _as_in_file(table: dict[str, Any]) -> dict[str, Any]:
    """Returns what `handlers` reads of a handler, by its names in config.toml (internal/cri/config's Runtime)."""
    names = {"runtime_type": "runtimeType", "options": "options", "base_runtime_spec": "baseRuntimeSpec"}
    return {name: table.get(other) or "" for name, other in names.items() if name != "options" or table.get(other)}
