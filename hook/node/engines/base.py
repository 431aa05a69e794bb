"""The base class of the container engines. containerd, CRI-O, docker and podman are modules beside this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from hook.core.facts.cri import DIRECTORY
from hook.core.policy.model import Policy
from hook.core.policy.store import STORE
from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, dispatcher_for, hook_file
from hook.node.change.files import Change, State

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

RUNTIME, NRI, HOOK, CDI = "runtime", "nri", "hook", "cdi"
ADAPTERS = (RUNTIME, NRI, HOOK, CDI)

RUNC_TYPES = ("io.containerd.runc.v1", "io.containerd.runc.v2")
"""The runtime types of containerd and docker whose shim calls runc, or the program that BinaryName names."""

LOADED_SECONDS = 5.0
"""The longest wait for what a daemon has loaded, in seconds."""

Now = TypeVar("Now")
"""An engine's configuration at one moment, as the engine understands it."""


@dataclass(frozen=True)
class Choice:
    """The options of an install. `adapters`: of ADAPTERS. `runtime_class`: wire only this handler; None: all.

    `program`: absolute path of the reassert executable that is to be called, as it lasts over upgrades. `policy`:
    the node's. `unit`: whether NRI's plugin is a service of this node; else others run it. `agent`: whether a resident
    agent is wanted. `front`: absolute path of front, as it lasts over upgrades; "" where there is to be no agent.
    `metrics`: the agent's options for metrics; None: no install had any.
    """

    adapters: tuple[str, ...]
    runtime_class: str | None
    program: str
    policy: Policy
    unit: bool = True
    agent: bool = True
    front: str = ""
    metrics: dict[str, str] | None = None

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
    that are wired for it now. `note`: a remark for the administrator.
    """

    name: str
    runtime: str
    wired: tuple[str, ...]
    note: str = ""


Base = Callable[[str], State | None]
"""Returns the state of a path without reassert: our entries removed, later edits of an administrator kept."""


@dataclass
class Wiring:
    """The files that wire an engine. Nothing is written yet.

    `artifacts`: generated files that the references name (dispatchers, specs), written first and removed last.
    `references`: files that the engine reads. `notes`: JSON data of the engine, kept in its owner record. `units`:
    systemd units of ours that must run. `remarks`: notes for the administrator. `expected`: what `check` must find
    afterwards, in a form of the engine's own; None if reassert is not wired.
    """

    artifacts: list[Change] = field(default_factory=list)
    references: list[Change] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    expected: Any = None
    _dispatched: dict[str, str] = field(default_factory=dict)

    def add_dispatcher(self, called: str, choice: Choice, rootless: bool = False) -> str:
        """Adds the dispatcher for a runtime, or for what a dispatcher calls, and returns its path. Raises NodeError."""
        change = dispatcher_for(behind(called), choice.program, self._dispatched, rootless, choice.front)
        if change not in self.artifacts:
            self.artifacts.append(change)
        return change[0]

    def add_cri(self, adapters: tuple[str, ...], engine: str, socket: str) -> None:
        """Adds the file from which a container start knows the engine's CRI socket (hook.core.facts.cri)."""
        if adapters != (CDI,):
            path = f"{STORE}/{DIRECTORY}/{engine}"
            self.artifacts.append((path, State(f"{socket.removeprefix('unix://')}\n".encode())))


class Engine(ABC, Generic[Now]):
    """One engine of this node.

    `name`: the value of --engine. `title`: with its version. `adapters`: those it supports, the default first.
    `service`: its systemd unit, "" without a daemon. `verb`: the word for what `restart` does: restart or reload.
    `restart_note`: what `restart` does to the node, for messages.

    `now`, in the methods below, is a result of `read`, before or after a change.
    """

    name: str
    title: str
    adapters: tuple[str, ...]
    service: str = ""
    verb: str = "restart"
    restart_note: str = "running containers stay"

    @classmethod
    def services(cls) -> tuple[str, ...]:
        """Returns the systemd units by which the engine may run on a node."""
        return (cls.service,) if cls.service else ()

    @classmethod
    @abstractmethod
    def find(cls) -> Self:
        """Returns the engine of this node, with its version and paths. Raises NodeError if it cannot be called."""

    # -- the state now

    @abstractmethod
    def read(self) -> Now:
        """Returns the configuration as the engine understands it, each file read once. Raises NodeError if broken."""

    @abstractmethod
    def handlers(self, now: Now, notes: dict[str, Any]) -> list[Handler]:
        """Returns every handler of the engine. `notes`: of the last Wiring, {} without one."""

    def warnings(self, now: Now) -> list[str]:
        """Returns warnings about settings by which containers bypass reassert, or by which none starts."""
        return []

    def blockers(self, before: Callable[[], Now]) -> list[str]:
        """Returns what keeps the daemon from starting again, without our changes too. `before`: returns `now`."""
        return []

    def hints(self, now: Now) -> list[str]:
        """Returns hints about settings without effect that were meant to set env or hooks, with a correction."""
        return []

    def without_cdi(self, now: Now) -> str:
        """Returns why this engine ignores the CDI devices that kubelet asks for, with the remedy; "" if it does not."""
        return ""

    def preexisting(self, now: Now, policy: Policy, hooked: bool) -> list[str]:
        """Returns warnings about pods and containers from before the install: they start through the unwrapped runtime.

        `hooked`: whether the verifying hook is wired too, which refuses containers without the reserved values. Raises
        NodeError.
        """
        return []

    def uninstall_notes(self, before: Callable[[], Now], notes: dict[str, Any]) -> list[str]:
        """Returns notes for the administrator before an uninstall. `notes`: of the last Wiring. Raises NodeError.

        `before`: returns `now`. It is called only if needed: an uninstall must work with a broken configuration too.
        """
        return []

    def users(self, now: Now, path: str) -> int:
        """Returns how many running containers (podman: commands) still call a program of ours at this path."""
        return 0

    def called_for(self, now: Now, container_id: str) -> str:
        """The real runtime that is called for a running container; "" where that cannot be told."""
        return ""

    def loaded(self, now: Now) -> Now:
        """Returns `now` with what `handlers` reads as the running daemon has loaded it, whatever its files say since.

        Raises NodeError if the daemon does not tell.
        """
        return now

    def not_loaded(self, now: Now, loaded: Now, notes: dict[str, Any]) -> list[str]:
        """Returns the handlers that the daemon has loaded otherwise than the files have them. `loaded`: its result."""

        def without_plugin(of: Now) -> list[Handler]:  # its service may start between the two
            found = self.handlers(of, notes)
            return [replace(each, wired=tuple(name for name in each.wired if name != NRI)) for each in found]

        has = without_plugin(loaded)
        return [each.name for each in without_plugin(now) if each.wired and each not in has]

    def running(self) -> bool:
        """Whether the daemon runs; for an engine without a daemon, whether it can be called."""
        return systemd.is_active(self.service)

    # -- the wanted state

    @abstractmethod
    def wire(self, now: Now, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Returns how to wire the engine. Raises NodeError with what is wrong and what to do if that is impossible."""

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns a file that was edited after the install without our settings; None if nothing is left.

        Nothing is left where reassert wrote the whole file.
        """
        return None

    @abstractmethod
    def check(self, now: Now, wiring: Wiring) -> None:
        """Checks that the engine understands its configuration as the wiring means it. Raises NodeError.

        `now`: read after the wiring's files were written. The Wiring of an uninstall is empty.
        """

    # -- actions

    def restart(self) -> None:
        """Makes the engine read its configuration and waits until it answers. Raises NodeError."""
        systemd.restart(self.service)
        systemd.wait_active(self.service)

    def settle(self) -> None:
        """Waits, a few seconds at most, for commands that still use the configuration from before the last change."""

    @abstractmethod
    def starter(self, now: Now) -> Starter:
        """Returns a Starter for test containers, for the caller to close. It connects on use. Raises NodeError."""

    def clear_probes(self) -> None:
        """Removes test containers of killed commands, which end by themselves but stay. Raises NodeError."""
        from hook.node.probe import starter  # late, as each import of a probe: most commands start none

        if starter.traces() and self.running():
            with closing(self.starter(self.read())) as started:
                started.clean()


AnyEngine = Engine[Any]
"""The type of any engine, for callers that pass `now` on unread."""
