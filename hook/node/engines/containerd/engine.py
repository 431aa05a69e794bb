"""containerd 1.6, 1.7 and 2.x."""

from __future__ import annotations

import json
import os
import re
import time
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import Malformed
from hook.core.facts.cri import call, pairs
from hook.core.policy.model import Policy, excluded
from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, real_of
from hook.node.artifacts.specs import CDI_FILE, base_spec, cdi_file, reserved_env
from hook.node.change.files import State
from hook.node.engines import shims, toml
from hook.node.engines.base import CDI, HOOK, LOADED_SECONDS, RUNC_TYPES, RUNTIME, Base, Choice, Engine, Handler, Wiring
from hook.node.engines.base import NRI as NRI_ADAPTER
from hook.node.engines.containerd.files import FORMATS, NRI, Files, strip
from hook.node.engines.containerd.settings import (
    SPECS,
    VALIDATOR,
    Dump,
    before_wiring,
    comparable,
    cri,
    default_spec,
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
from hook.node.services import NRI_SOCKET, PLUGIN_IS_OURS, PLUGIN_NOT_SEEN, add_plugin, plugin_runs
from hook.node.systemd import option, strings_of
from hook.node.terminal import counted

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

CONFIG = "/etc/containerd/config.toml"
OLDEST = (1, 6)
"""The oldest containerd that is supported."""

_PINNED: Key = ("plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox")


_RUNSC, _RUNSC_CONFIG, _RUNSC_KEY = "io.containerd.runsc.v1", "/run/containerd/runsc/config.toml", "binary_name"
"""gVisor's own shim; the file that it reads at each start, if the handler's options have no ConfigPath; the runsc that
it calls, in there. containerd need not be restarted. Source: gVisor's pkg/shim/v1/runsc (options.go, service.go)."""


class Containerd(Engine[Dump]):
    """The containerd of this node. Its configuration is read by `containerd config dump`.

    `config`: path of its configuration file. `address`: path of its socket.
    """

    name = "containerd"
    adapters = (RUNTIME, NRI_ADAPTER, HOOK, CDI)
    service = "containerd.service"

    programs: str | None = None
    """The directory of containerd, ctr and the default runc, where PATH does not name it (k3s)."""

    def __init__(self, version: tuple[int, int, int], config: str, address: str) -> None:
        self.version = version
        self.title = f"containerd {'.'.join(map(str, version))}"
        self._config = config
        self._address = address

    @classmethod
    def find(cls) -> Self:
        """Returns the containerd of this node, by `containerd --version` and the running daemon's command line."""
        arguments = strings_of(systemd.main_pid(cls.service), "cmdline")
        config = option(arguments, "--config", "-c") or [CONFIG]
        address = option(arguments, "--address", "-a") or ["/run/containerd/containerd.sock"]
        return cls(systemd.version_of("containerd", OLDEST), config[-1], address[-1])

    @classmethod
    def which(cls, program: str) -> str | None:
        """Returns the absolute path of a program as containerd's shim finds it; None if there is none."""
        bundled = f"{cls.programs}/{program}"
        return bundled if cls.programs and os.access(bundled, os.X_OK) else systemd.which(program)

    # -- what is

    def handlers(self, now: Dump, notes: dict[str, Any]) -> list[Handler]:
        """Returns every handler of the CRI plugin."""
        is_active = plugin_runs()
        was = notes.get("handlers", {})
        note = "" if notes.get(PLUGIN_IS_OURS, True) else PLUGIN_NOT_SEEN
        tables = sorted(runtimes(now).items())
        return [self._handler(name, table, was.get(name, {}), note, is_active) for name, table in tables]

    def loaded(self, now: Dump) -> Dump:
        """Returns the handlers of the running CRI plugin, which its Status names (`crictl info`). Raises NodeError."""
        deadline = time.monotonic() + LOADED_SECONDS
        while True:
            try:
                # StatusRequest{verbose = 1: true}, StatusResponse{map<string, string> info = 2}
                said = pairs(call(self._address, "Status", b"\x08\x01", deadline), 2)
                tables = json.loads(said["config"])["containerd"]["runtimes"].items()
                found = {name: _as_in_file(table) for name, table in tables}
                break
            except (OSError, Malformed, ValueError, LookupError, AttributeError) as error:
                if time.monotonic() > deadline:  # the plugin may not be ready yet
                    raise NodeError(f"{self.title} does not tell its handlers at {self._address}: {error}") from None
                time.sleep(0.1)
        loaded = deepcopy(now)
        toml.put(loaded, (*cri(now), "containerd", "runtimes"), found)
        return loaded

    def _handler(self, name: str, table: dict[str, Any], was: dict[str, str], note: str, nri: bool) -> Handler:
        kind = str(table.get("runtime_type", ""))
        by_path = path_of_shim(table)
        if kind == _RUNSC and (called := _runsc_of(table)):
            return Handler(name, behind(self.which(called) or called), (RUNTIME,) if real_of(called) else ())
        if kind not in RUNC_TYPES and not by_path:
            return Handler(name, "", (), f"{kind or 'no runtime_type'}: calls no OCI runtime; --adapter nri reaches it")
        binary = str(toml.get(table, ("options", "BinaryName"), ""))
        real = real_of(binary) if binary else None
        spec = str(table.get("base_runtime_spec", ""))
        wired = [RUNTIME] if real else []
        if is_our_spec(spec):
            wired.append(HOOK)
        if nri:
            wired.append(NRI_ADAPTER)
        original = real or (was.get("BinaryName", "") if is_ours(binary) else binary)
        notices = [text for text in (not_wrapped(table) if by_path else "", note) if text]
        return Handler(name, self._runtime(original), tuple(wired), "; ".join(notices))

    def _runtime(self, binary: str) -> str:
        """Returns the absolute path of a BinaryName, as the shim finds it. Raises NodeError."""
        found = self.which(binary or "runc")
        if found is None:
            raise NodeError(f"the OCI runtime {binary or 'runc'} is not installed on this node")
        return found

    def preexisting(self, now: Dump, policy: Policy, hooked: bool) -> list[str]:
        """Returns a warning about pods whose sandbox has another BinaryName: the CRI plugin keeps using it there."""
        names = [
            f"{identity.namespace}/{identity.pod}"
            for identity in shims.preexisting_pods(self._state(now))
            if not excluded(policy, identity)
        ]
        if not names:
            return []
        becomes = "is refused if it lacks a reserved value" if hooked else "bypasses reassert"
        return [
            f"{counted(len(names), 'pod')} created before the install; until it is recreated (kubectl drain), a "
            f"container that starts in such a pod {becomes}: {shims.listed(names)}"
        ]

    def warnings(self, now: Dump) -> list[str]:
        """Returns a warning for each runc handler without wrapper and hook, and for ways around the NRI plugin."""
        return VALIDATOR.warnings(now) + [
            f"handler {name} {not_wrapped(table)}"
            for name, table in sorted(runtimes(now).items())
            if path_of_shim(table) and not is_our_spec(str(table.get("base_runtime_spec", "")))
        ]

    def hints(self, now: Dump) -> list[str]:
        """Returns a hint for each key that some guides recommend and that containerd silently ignores."""
        found = []
        for name, table in sorted(runtimes(now).items()):
            for key in ("hooks", "env"):
                if key in (table.get("options") or {}):
                    instead = (
                        "hooks go into the OCI spec that base_runtime_spec names: reassert node install --adapter hook"
                        if key == "hooks"
                        else "reserve env in /etc/reassert/policy.yaml: reassert node install"
                    )
                    found.append(f"runtimes.{name}.options.{key} does nothing in containerd; {instead}")
        return found

    def without_cdi(self, now: Dump) -> str:
        """Returns why kubelet's CDI devices are ignored: 1.6 has none, and 1.7 has them switched off by default."""
        if self.version < (1, 7):
            return f"{self.title} has no CDI, which needs 1.7 or later"
        if toml.get(now, (*cri(now), "enable_cdi"), False):
            return ""
        return f"enable_cdi is false in {self._config}; add `cdi` to --adapter of `reassert node install`"

    # -- the wanted settings

    def wire(self, dump: Dump, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns files that set BinaryName and base_runtime_spec of the handlers, and enable NRI or CDI if chosen."""
        files = self.files(dump, base)
        wiring = Wiring()
        settings: dict[Key, Any] = {}
        was: dict[str, dict[str, str]] = {}
        # The wrapper sets env itself, and only for containers that a rule matches.
        env = [] if RUNTIME in choice.adapters else reserved_env(choice.policy)
        defaults: dict[str, dict[str, Any]] = {}
        chosen, created = self._chosen(dump, choice, notes) if choice.adapters != (CDI,) else ({}, None)
        for name, table in chosen.items():
            old = notes.get("handlers", {}).get(name) or before_wiring(table, notes)
            was[name] = old
            runtime = ("containerd", "runtimes", name)
            if name == created or not files.define((*runtime,)):
                # A table in a file replaces the built-in one, so the file must have all of its values.
                settings.update({(*files.cri(), *runtime, *key): value for key, value in own_values(table).items()})
            if RUNTIME in choice.adapters and not path_of_shim(table):
                path = wiring.add_dispatcher(self._runtime(old["BinaryName"]), choice)
                settings[(*files.cri(), *runtime, "options", "BinaryName")] = path
            if {HOOK, NRI_ADAPTER} & set(choice.adapters):
                configured = old["base_runtime_spec"]
                if configured not in defaults:
                    defaults[configured] = default_spec(configured, self._called("ctr"))
                spec = base_spec(defaults[configured], choice.program, env, choice.hook_file)
                path = f"{SPECS}/{name}.json"
                wiring.references.append((path, State(json.dumps(spec, indent=1).encode())))
                settings[(*files.cri(), *runtime, "base_runtime_spec")] = path
        wiring.add_cri(choice.adapters, self.name, self._address)
        switched = False
        if NRI_ADAPTER in choice.adapters:
            switched = bool(notes.get("nri")) or bool(toml.get(dump, (*NRI, "disable"), True))
            if self.version < (1, 7):
                raise NodeError(f"{self.title} has no NRI, which needs 1.7 or later; use --adapter runtime")
            socket = str(toml.get(dump, (*NRI, "socket_path"), NRI_SOCKET))
            default = str(toml.get(dump, (*cri(dump), "containerd", "default_runtime_name"), ""))
            add_plugin(wiring, choice, socket, self.handlers(dump, notes), default)
        if switched:
            settings[*NRI, "disable"] = False
        required = VALIDATOR.settings(dump, choice, notes)
        settings.update(required)
        enabled = False
        if CDI in choice.adapters:
            enabled = bool(notes.get("cdi")) or bool(self.without_cdi(dump))
            self._cdi(dump, choice, wiring, enabled)
        if enabled:
            settings[*files.cri(), "enable_cdi"] = True
        configuration, changed = files.change(settings) if settings else ([], [])
        wiring.references += configuration
        wiring.notes |= {
            "handlers": was,
            "settings": [*changed, *self._gvisors_shim(dump, choice, base, wiring)],
            "created": created,
            "nri": switched,
            "cdi": enabled,
        }
        if required:
            wiring.notes[NOTE] = VALIDATOR.before(dump, notes)
        effective = {in_dump(key, dump): value for key, value in settings.items()}
        wiring.expected = wanted_dump(dump, effective, notes, {created: chosen[created]} if created else {})
        return wiring

    def _gvisors_shim(self, dump: Dump, choice: Choice, base: Base, wiring: Wiring) -> list[dict[str, Any]]:
        """Puts dispatchers into the files of gVisor's own shim. Returns the notes with which `strip` removes them."""
        notes: list[dict[str, Any]] = []
        for name, table in runtimes(dump).items() if RUNTIME in choice.adapters else ():
            if table.get("runtime_type") != _RUNSC or choice.runtime_class not in (None, name):
                continue
            path = _runsc_config(table)
            before = base(path)
            if before is None:
                wiring.remarks.append(f"handler {name}: gVisor's shim has no {path}, in which binary_name could be set")
                continue
            text = toml.decode(before.content)
            was = toml.parse(text, path).get(_RUNSC_KEY)
            ours = wiring.add_dispatcher(self._runtime(str(was or "runsc")), choice)
            content = toml.encode(toml.edit(text, path, {(_RUNSC_KEY,): ours}))
            if path not in [other for other, _ in wiring.references]:  # two handlers may have one file
                wiring.references.append((path, before.with_content(content)))
            notes.append({"path": path, "key": [_RUNSC_KEY], "ours": ours, "was": was})
        return notes

    def files(self, dump: Dump, base: Base) -> Files:
        """Returns the configuration files. Raises NodeError.

        The `imports` of the dump do not count: 2.2 and later print a default that they do not read.
        """
        return Files.read(self._config, int(dump.get("version", 2)), [], base)

    def _chosen(
        self, dump: dict[str, Any], choice: Choice, notes: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], str | None]:
        """Returns the tables of the handlers to wire, and the name of a new handler, a copy of the default one."""
        there = {name: table for name, table in runtimes(dump).items() if name != notes.get("created")}
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
        default = str(toml.get(dump, (*cri(dump), "containerd", "default_runtime_name"), "runc"))
        if default not in known:
            raise NodeError(f"the default handler {default} calls no runc; name an existing one with --runtime-class")
        return {wanted: known[default]}, wanted

    def _cdi(self, dump: dict[str, Any], choice: Choice, wiring: Wiring, enables: bool) -> None:
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
        directories = toml.get(dump, (*cri(dump), "cdi_spec_dirs"), [])
        if os.path.dirname(CDI_FILE) not in map(os.path.normpath, directories):
            raise NodeError(f"{self._config}: cdi_spec_dirs does not name {os.path.dirname(CDI_FILE)}; add it")
        wiring.artifacts.append((path, state))

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns None for our own files, and other files without our settings."""
        if path.startswith(SPECS) or os.path.basename(path).startswith("99-reassert"):
            return None
        return toml.encode(strip(path, toml.decode(content), notes.get("settings", [])))

    # -- doing it

    def check(self, now: Dump, wiring: Wiring) -> None:
        """Checks that `containerd config dump` prints exactly the expected values."""
        if wiring.expected is None:
            return
        wrong = differences(comparable(wiring.expected), comparable(now))
        if wrong:
            raise NodeError(f"containerd does not read its configuration as intended: {'; '.join(wrong[:5])}")

    def restart(self) -> None:
        """Restarts containerd. Containers keep running: their shims are separate processes."""
        systemd.restart(self.service)
        self.wait(systemd.SECONDS)

    def wait(self, seconds: float) -> None:
        """Waits until containerd answers and its service is active. Raises NodeError."""
        asked = [self._called("ctr"), "--address", self._address, "version"]
        if not systemd.wait_until(lambda: systemd.command(asked).returncode == 0, seconds, 0.2):
            raise NodeError(f"containerd does not answer at {self._address}{systemd.last_lines(self.service)}")
        systemd.wait_active(self.service, seconds)

    def starter(self, now: Dump) -> Starter:
        """Returns a starter of test pods, which run the sandbox image of the configuration."""
        from hook.node.probe.pods import PodStarter  # imports gRPC

        image = toml.get(now, _PINNED) or toml.get(now, (*FORMATS[2].cri, "sandbox_image"))
        return PodStarter(Containerd.name, self._address, str(image))

    def users(self, now: Dump, path: str) -> int:
        """Returns how many running containers have a shim that calls this runtime."""
        return shims.users(path, self._state(now))

    def called_for(self, now: Dump, container_id: str) -> str:
        """The value that its shim was started with."""
        return shims.called_for(container_id, self._state(now))

    # -- containerd itself

    def read(self) -> Dump:
        """Returns the effective configuration. Raises NodeError with containerd's message."""
        # Without a file, 1.x starts with its defaults, but `config dump` fails.
        config = self._config if os.path.exists(self._config) else os.devnull
        return self.dump(config)

    def dump(self, config: str) -> Dump:
        """Returns the values that a configuration file and its imports have in containerd. Raises NodeError."""
        command = [self._called("containerd"), "--config", config, "config", "dump"]
        shown = systemd.output(command, f"containerd does not accept {self._config}")
        dump = toml.parse(shown, "containerd config dump")
        plugin = toml.get(dump, cri(dump))
        disabled = [str(name) for name in dump.get("disabled_plugins", [])]
        if plugin is None or any(name in ("cri", *(each.cri[1] for each in FORMATS.values())) for name in disabled):
            raise NodeError(f"{self._config}: the CRI plugin is disabled (disabled_plugins), so kubelet cannot use it")
        for name in ("default_runtime", "untrusted_workload_runtime"):
            if toml.get(plugin, ("containerd", name, "runtime_type")):
                raise NodeError(f"{self._config}: {name} is deprecated and not supported; write it as runtimes.NAME")
        return dump

    def _called(self, program: str) -> str:
        """Returns the path of one of containerd's own programs, or its name, for a message that it is missing."""
        return self.which(program) or program

    def _state(self, now: Dump) -> str:
        """Returns containerd's state directory, which has the bundles. No setting of reassert changes it."""
        return str(now.get("state", "/run/containerd"))


def _runsc_config(table: dict[str, Any]) -> str:
    """Returns the path of the file of a handler of gVisor's own shim."""
    return os.path.realpath(str(toml.get(table, ("options", "ConfigPath"), "") or _RUNSC_CONFIG))


def _runsc_of(table: dict[str, Any]) -> str:
    """Returns the runsc that the file of a handler names; "" without a file. Raises NodeError if it is no TOML."""
    path = _runsc_config(table)
    try:
        content = Path(path).read_bytes()
    except OSError:
        return ""
    return str(toml.parse(toml.decode(content), path).get(_RUNSC_KEY) or "runsc")


def _as_in_file(table: dict[str, Any]) -> dict[str, Any]:
    """Returns what `handlers` reads of a handler, by its names in config.toml (internal/cri/config's Runtime)."""
    names = {"runtime_type": "runtimeType", "options": "options", "base_runtime_spec": "baseRuntimeSpec"}
    return {name: table.get(other) or "" for name, other in names.items() if name != "options" or table.get(other)}
