"""What each engine is made of: a `Config`, text in and text out, and a `Daemon`, which finds, reads and reloads it.

containerd, CRI-O, docker and podman are modules beside this one; facts.py has what is known before any is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from hook.core.facts.cri import SOCKETS_DIRECTORY
from hook.core.policy.model import Policy
from hook.core.policy.store import STORE
from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, dispatcher_for, dispatcher_on_disk, hook_file
from hook.node.change.files import Change, State
from hook.node.nodefiles import THIS_NODE, NodeFiles

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

RUNTIME, NRI, HOOK, CDI = "runtime", "nri", "hook", "cdi"
ADAPTERS = (RUNTIME, NRI, HOOK, CDI)

RUNC_TYPES = ("io.containerd.runc.v1", "io.containerd.runc.v2")
"""The runtime types of containerd and docker whose shim calls runc, or the program that BinaryName names."""

LOADED_SECONDS = 5.0
"""The longest wait for what a daemon has loaded, in seconds."""


@dataclass(frozen=True)
class Choice:
    """The options of an install. `adapters`: of ADAPTERS. `runtime_class`: wire only this handler; None: all.

    `program`: absolute path of the reassert executable that is to be called, as it lasts over upgrades. `policy`:
    the node's. `unit`: whether NRI's plugin is a service of this node; else others run it. `agent`: whether a resident
    agent is wanted. `front`: absolute path of front, as it lasts over upgrades; "" where there is to be no agent.
    `metrics`: the agent's options for metrics; None: no install had any. `log`: the same of all services for the
    operation log.
    """

    adapters: tuple[str, ...]
    runtime_class: str | None
    program: str
    policy: Policy
    unit: bool = True
    agent: bool = True
    front: str = ""
    metrics: dict[str, str] | None = None
    log: dict[str, str] | None = None

    @property
    def hook_file(self) -> str:
        """What hook entries execute instead of the program, "" for the program."""
        return hook_file() if self.front else ""


BYPASSES = "a name that the engine keeps for itself: a container that asks for it bypasses reassert"
"""The note of a handler that cannot be wired. `verify` names it, and its result is not affected."""


@dataclass(frozen=True)
class Handler:
    """A runtime handler of an engine, as a RuntimeClass names it.

    `runtime`: the OCI runtime that it calls without reassert; "" if it calls none (kata, gVisor). `wired`: the adapters
    that are wired for it now. `note`: a remark for the administrator. `can_be_wired`: whether an install wires it.
    `is_installed`: whether the node has the runtime; without it no container starts under the handler, and nothing is
    tried. `remedy`: the command that wires it, where it is not another install.
    """

    name: str
    runtime: str
    wired: tuple[str, ...]
    note: str = ""
    can_be_wired: bool = True
    is_installed: bool = True
    remedy: str = ""


NOT_INSTALLED = "not installed"
"""The note of a handler whose runtime the node lacks."""

Base = Callable[[str], State | None]
"""Returns the state of a path without reassert: our entries removed, later edits of an administrator kept."""


@dataclass
class Wiring:
    """The files that wire an engine. Nothing is written yet.

    `artifacts`: generated files that the references name (dispatchers, specs), written first and removed last.
    `references`: files that the engine reads. `notes`: JSON data of the engine, kept in its owner record. `units`:
    systemd units of ours that must run. `remarks`: notes for the administrator. `expected`: what `check` must find
    afterwards, in a form of the engine's own; None if reassert is not wired. `files`: where runtimes and dispatchers
    are looked for.
    """

    artifacts: list[Change] = field(default_factory=list)
    references: list[Change] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    expected: Any = None
    files: NodeFiles = THIS_NODE
    _dispatched: dict[str, str] = field(default_factory=dict)

    def add_dispatcher(self, called: str, choice: Choice, rootless: bool = False) -> str:
        """Adds the dispatcher for a runtime, or for what a dispatcher calls, and returns its path. Raises NodeError."""
        real = behind(called, self.files)
        change = dispatcher_for(real, choice.program, self._dispatched, rootless, choice.front, self.files)
        if change not in self.artifacts:
            self.artifacts.append(change)
        return change[0]

    def add_handlers(self, handler: str, called: str, is_installed: bool, choice: Choice) -> str:
        """The same for what a handler calls. If that is not installed: the dispatcher that it has, "" without one."""
        if is_installed:
            return self.add_dispatcher(called, choice)
        kept = dispatcher_on_disk(called, self._dispatched, self.files)
        why = f"since its runtime {called} is not installed"
        becomes = f"keeps its dispatcher, {why}"
        if not kept:
            becomes = f"is not wired, {why}: run `reassert install` when it is"
        self.remarks.append(f"handler {handler} {becomes}")
        if kept and kept not in self.artifacts:
            self.artifacts.append(kept)
        return kept[0] if kept else ""

    def add_cri(self, adapters: tuple[str, ...], engine: str, socket: str) -> None:
        """Adds the file from which a container start knows the engine's CRI socket (hook.core.facts.cri)."""
        if adapters != (CDI,):
            path = f"{STORE}/{SOCKETS_DIRECTORY}/{engine}"
            self.artifacts.append((path, State(f"{socket.removeprefix('unix://')}\n".encode())))


class Config(ABC):
    """An engine's configuration at one moment, as the engine understands it.

    It was read by the engine's Daemon. No method reads a file or starts a program: what a method needs of the node
    beside the configuration, it asks `NodeFiles` for. So each rule about a setting has tests of texts.
    """

    @abstractmethod
    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        """Returns every handler of the engine. `notes`: of the last Wiring, {} without one."""

    def not_loaded(self, loaded: Self, notes: dict[str, Any]) -> list[str]:
        """Returns the handlers that the daemon has loaded otherwise. `loaded`: what it told (Daemon.loaded)."""

        def without_plugin(of: Config) -> list[Handler]:  # its service may start between the two
            found = of.handlers(notes)
            return [replace(each, wired=tuple(name for name in each.wired if name != NRI)) for each in found]

        has = without_plugin(loaded)
        return [each.name for each in without_plugin(self) if each.wired and each not in has]

    def warnings(self) -> list[str]:
        """Returns warnings about settings by which containers bypass reassert, or by which none starts."""
        return []

    def blockers(self) -> list[str]:
        """Returns what keeps the daemon from starting again, without our changes too."""
        return []

    def hints(self) -> list[str]:
        """Returns hints about settings without effect that were meant to set env or hooks, with a correction."""
        return []

    def annotations(self) -> dict[str, list[str]]:
        """Returns the patterns of a pod's annotations that reach a container's config.json, by handler."""
        return {}

    def without_cdi(self) -> str:
        """Returns why this engine ignores the CDI devices that kubelet asks for, with the remedy; "" if it does not."""
        return ""

    @abstractmethod
    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns how to wire the engine. Raises NodeError with what is wrong and what to do if that is impossible."""

    @staticmethod
    def strip(path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns a file that was edited after the install without our settings; None if nothing is left.

        Nothing is left where reassert wrote the whole file. An uninstall needs it with a broken configuration too.
        """
        return None


C = TypeVar("C", bound=Config)


class Daemon(ABC, Generic[C]):
    """One engine of this node: what runs, or in podman's case the command.

    `name`: the value of --engine. `title`: with its version. `adapters`: those it supports, the default first.
    `config_class`: of its configuration. `service`: its systemd unit, "" without a daemon. `verb`: the word for
    what `restart` does: restart or reload. `restart_note`: what `restart` does to the node, for messages.
    """

    name: str
    title: str
    adapters: tuple[str, ...]
    config_class: type[C]
    service: str = ""
    verb: str = "restart"
    restart_note: str = "running containers stay"

    @classmethod
    @abstractmethod
    def find(cls) -> Self:
        """Returns the engine of this node, with its version and paths. Raises NodeError if it cannot be called."""

    @abstractmethod
    def read(self) -> C:
        """Returns the configuration of the files now, each file read once. Raises NodeError if it is broken."""

    def loaded(self, config: C) -> C:
        """Returns the configuration with what `handlers` reads as the running daemon has loaded it.

        Its files may say something else since. Raises NodeError if the daemon does not tell.
        """
        return config

    @abstractmethod
    def check(self, config: C, wiring: Wiring) -> None:
        """Checks that the engine understands its configuration as the wiring means it. Raises NodeError.

        `config`: read after the wiring's files were written. The Wiring of an uninstall is empty.
        """

    def running(self) -> bool:
        """Whether the daemon runs; for an engine without a daemon, whether it can be called."""
        return systemd.is_active(self.service)

    def restart(self) -> None:
        """Makes the engine read its configuration and waits until it answers. Raises NodeError."""
        systemd.restart(self.service)
        systemd.wait_active(self.service)

    def settle(self) -> None:
        """Waits, a few seconds at most, for commands that still use the configuration from before the last change."""

    # -- its containers

    def preexisting(self, config: C, policy: Policy, hooked: bool) -> list[str]:
        """Returns warnings about pods and containers from before the install: they start through the unwrapped runtime.

        `hooked`: whether the verifying hook is wired too, which refuses containers without the reserved values. Raises
        NodeError.
        """
        return []

    def uninstall_notes(self, before: Callable[[], C], notes: dict[str, Any]) -> list[str]:
        """Returns notes for the administrator before an uninstall. `notes`: of the last Wiring. Raises NodeError.

        `before`: reads the configuration. It is called only if needed: an uninstall must work with a broken one too.
        """
        return []

    def users(self, config: C, path: str) -> int:
        """Returns how many running containers (podman: commands) still call a program of ours at this path."""
        return 0

    def called_for(self, config: C, container_id: str) -> str:
        """The real runtime that is called for a running container; "" where that cannot be told."""
        return ""

    @abstractmethod
    def starter(self, config: C) -> Starter:
        """Returns a Starter for test containers, for the caller to close. It connects on use. Raises NodeError."""

    def clear_probes(self) -> None:
        """Removes test containers of killed commands, which end by themselves but stay. Raises NodeError."""
        from hook.node.probe import starter  # late, as each import of a probe: most commands start none

        if starter.traces() and self.running():
            with closing(self.starter(self.read())) as started:
                started.clean()


AnyEngine = Daemon[Config]
"""Any engine, for callers that pass its configuration on."""
