"""What every container engine is to the installer. containerd, CRI-O, docker and podman are modules beside this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from hook.node import systemd
from hook.node.change.files import Change, State
from hook.node.engines.artifacts.dispatchers import HOOK_FILE
from hook.node.probe.starter import Starter
from hook.policy.model import Policy

RUNTIME, NRI, HOOK, CDI = "runtime", "nri", "hook", "cdi"
ADAPTERS = (RUNTIME, NRI, HOOK, CDI)

RUNC_TYPES = ("io.containerd.runc.v1", "io.containerd.runc.v2")
"""containerd's and docker's types of a runtime whose shim calls runc, or what BinaryName says."""

Now = TypeVar("Now")
"""An engine's configuration as it understands it at one moment."""


@dataclass(frozen=True)
class Choice:
    """What an administrator asked for. `adapters`: of ADAPTERS. `runtime_class`: wire this handler only; None: all.

    `program`: absolute path of the reassert executable that is to be called, as it lasts over upgrades. `policy`:
    the node's. `unit`: whether NRI's plugin is a service of this node; else others run it. `agent`: whether a resident
    agent is wanted. `front`: absolute path of front, as it lasts over upgrades; "" where there is to be no agent.
    """

    adapters: tuple[str, ...]
    runtime_class: str | None
    program: str
    policy: Policy
    unit: bool = True
    agent: bool = True
    front: str = ""

    @property
    def hook_file(self) -> str:
        """What hook entries execute instead of the program, "" for the program."""
        return HOOK_FILE if self.front else ""


@dataclass(frozen=True)
class Handler:
    """A runtime handler of an engine, as a RuntimeClass names it.

    `runtime`: the OCI runtime that it calls, without reassert; "" where it calls none (kata, gVisor).
    `wired`: the adapters through which reassert is in its path now. `note`: what an administrator should know.
    """

    name: str
    runtime: str
    wired: tuple[str, ...]
    note: str = ""


Base = Callable[[str], State | None]
"""What a path holds without reassert: our own entries taken out, an administrator's later edits kept."""


@dataclass
class Wiring:
    """How an engine is to be wired: the files, nothing done yet.

    `artifacts`: generated files that the references name (dispatchers, specs); they come first and go last.
    `references`: files that the engine reads. `notes`: for the engine itself, kept in the record, JSON. `units`:
    systemd units of ours that have to run. `remarks`: what an administrator should be told. `expected`: what `check`
    is to find afterwards, in the engine's own terms; None where reassert is not wired.
    """

    artifacts: list[Change] = field(default_factory=list)
    references: list[Change] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    expected: Any = None

    def add_artifact(self, change: Change) -> str:
        """Have a file that references name, unless it is there already. Returns its path."""
        if change not in self.artifacts:
            self.artifacts.append(change)
        return change[0]


class Engine(ABC, Generic[Now]):
    """One engine of this node.

    `name`: as --engine takes it. `title`: with its version. `adapters`: that it can be wired with, the default first.
    `service`: its systemd unit, "" where it has no daemon. `verb`: what `restart` does, for people: restart or reload.

    `now`, in the methods below, is what `read` returned: there is one before a change and one after it.
    """

    name: str
    title: str
    adapters: tuple[str, ...]
    service: str = ""
    verb: str = "restart"

    @classmethod
    @abstractmethod
    def installed(cls) -> bool:
        """Whether this node has it."""

    @classmethod
    @abstractmethod
    def find(cls) -> Self:
        """The one of this node: its version, and where its files are. Raises NodeError where it cannot be called."""

    # -- what is

    @abstractmethod
    def read(self) -> Now:
        """The configuration as the engine understands it now, each file read once. Raises NodeError if it is broken."""

    @abstractmethod
    def handlers(self, now: Now, notes: dict[str, Any]) -> list[Handler]:
        """Every handler that it knows. `notes`: of the last Wiring, {} without one."""

    def warnings(self, now: Now) -> list[str]:
        """Settings by which containers bypass reassert, or by which none starts."""
        return []

    def hints(self, now: Now) -> list[str]:
        """Settings that were meant to do reassert's work and do nothing, with what to write instead; no harm done."""
        return []

    def preexisting(self, now: Now, policy: Policy, hooked: bool) -> list[str]:
        """Warnings about pods and containers from before the install, which still start through the unwrapped runtime.

        `hooked`: whether the verifying hook is wired too, and refuses what lacks the reserved values. Raises NodeError.
        """
        return []

    def uninstall_notes(self, before: Callable[[], Now], notes: dict[str, Any]) -> list[str]:
        """What an administrator should know before an uninstall. `notes`: of the last Wiring. Raises NodeError.

        `before`: gives a `now`. An uninstall works with a broken configuration too, which cannot be read.
        """
        return []

    def users(self, now: Now, path: str) -> int:
        """How many running containers (podman: commands) still call a program of ours at this path."""
        return 0

    def called_for(self, now: Now, container_id: str) -> str:
        """The real runtime that is called for a running container; "" where that cannot be told."""
        return ""

    def running(self) -> bool:
        """Whether its daemon runs; for an engine without one, whether it can be called."""
        return systemd.is_active(self.service)

    # -- what is to be

    @abstractmethod
    def wire(self, now: Now, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """How to wire it. Raises NodeError where that cannot be: what is wrong, what to do."""

    @abstractmethod
    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """A configuration file that was edited after we wrote it, without what is ours; None: nothing is left."""

    @abstractmethod
    def check(self, now: Now, wiring: Wiring) -> None:
        """Whether the engine understands its configuration as the wiring means it. Raises NodeError.

        `now`: read after the wiring's files were written. An empty Wiring: reassert was taken out.
        """

    # -- doing it

    def restart(self) -> None:
        """Make it read its configuration, and wait until it answers. Raises NodeError."""
        systemd.restart(self.service)
        systemd.wait_active(self.service)

    def settle(self) -> None:
        """Wait, a few seconds at most, for what still works by the configuration as it was before the last change."""

    @abstractmethod
    def starter(self, now: Now) -> Starter:
        """How it starts a probe, for the caller to close. It connects when it is used. Raises NodeError."""


AnyEngine = Engine[Any]
"""An engine for callers that pass `now` on and do not look into it."""
