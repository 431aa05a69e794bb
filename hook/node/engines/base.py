"""What the installer needs of a container engine. containerd, CRI-O, docker and podman are modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hook.node.change.files import Change, State
from hook.node.probe.starter import Starter
from hook.policy.model import Policy

RUNTIME, NRI, HOOK, CDI = "runtime", "nri", "hook", "cdi"
ADAPTERS = (RUNTIME, NRI, HOOK, CDI)


@dataclass(frozen=True)
class Choice:
    """What an administrator asked for. `adapters`: of ADAPTERS. `runtime_class`: wire this handler only; None: all.

    `program`: absolute path of the reassert executable that is to be called, as it lasts over upgrades. `policy`:
    the node's. `unit`: whether NRI's plugin is a service of this node; else others run it.
    """

    adapters: tuple[str, ...]
    runtime_class: str | None
    program: str
    policy: Policy
    unit: bool = True


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

    `artifacts`: files that the references name (dispatchers, specs); they come first and go last. `references`: files
    that the engine reads. `notes`: for the engine itself, kept in the record, JSON. `units`: systemd units of ours
    that have to run. `remarks`: what an administrator should be told.
    """

    artifacts: list[Change] = field(default_factory=list)
    references: list[Change] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Engine(Protocol):
    """One engine of this node.

    `name`: as --engine takes it. `title`: with its version. `adapters`: that it can be wired with, the default first.
    `service`: its systemd unit, "" where it has no daemon. `verb`: what `restart` does, for people: restart or reload.
    """

    name: str
    title: str
    adapters: tuple[str, ...]
    service: str
    verb: str

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        """Every handler that it knows, as configured now. `notes`: of the last Wiring, {} without one."""

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """How to wire it. Raises NodeError where that cannot be: what is wrong, what to do."""

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """A configuration file that was edited after we wrote it, without what is ours; None: nothing is left."""

    def uninstall_notes(self, notes: dict[str, Any]) -> list[str]:
        """What an administrator should know before it is taken out again. `notes`: of the last Wiring."""

    def warnings(self) -> list[str]:
        """What in its configuration lets containers go past reassert, or lets none start."""

    def hints(self) -> list[str]:
        """Settings that were meant to do reassert's work and do nothing, with what to write instead; no harm done."""

    def preexisting(self, policy: Policy, hooked: bool) -> list[str]:
        """What was made before the runtimes were wrapped, and what becomes of starts in it, for people.

        `hooked`: whether the verifying hook is wired too. Raises NodeError.
        """

    def check(self) -> None:
        """Let the engine itself read the files that are there now, as the last `wire` meant them. Raises NodeError."""

    def running(self) -> bool:
        """Whether its daemon runs; for an engine without one, whether it can be called."""

    def restart(self) -> None:
        """Make it read its configuration, and wait until it answers. Raises NodeError."""

    def users(self, path: str) -> int:
        """How many running containers (podman: commands) still call a program of ours at this path."""

    def starter(self) -> Starter:
        """How it starts a probe, for the caller to close. It connects when it is used. Raises NodeError."""
