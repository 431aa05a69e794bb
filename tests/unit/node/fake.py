"""An engine that only remembers what it was asked, on a node that is a directory; and a kill -9 of what works on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hook.node.change import journal as journals
from hook.node.change.files import Change, State, link, look
from hook.node.change.record import Record
from hook.node.change.rewiring import Rewiring, Target
from hook.node.engines.base import Base, Choice, Config, Daemon, Handler, Wiring
from hook.node.errors import NodeError

OURS = b"reassert: ours\n"


class Killed(BaseException):
    """What was under way is no more: whatever it still tries to change raises this again."""


@dataclass
class FakeConfig(Config):
    """Nothing is configured. `left`: adapters of its handler. `found`: what keeps the engine from starting again."""

    left: tuple[str, ...] = ()
    found: list[str] = field(default_factory=list)

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        return [Handler("runc", "/usr/sbin/runc", self.left)]

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        raise NotImplementedError

    def blockers(self) -> list[str]:
        return self.found

    @staticmethod
    def strip(path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        return content.replace(OURS, b"") or None


@dataclass
class FakeEngine(Daemon[Config]):
    """`fails`: which of its methods raise. `callers`: running containers by dispatcher. `left`: handlers' adapters."""

    name: str = "fake"
    title: str = "Fake 1.0"
    adapters: tuple[str, ...] = ("runtime",)
    config_class: type[Config] = FakeConfig
    service: str = ""
    verb: str = "restart"
    up: bool = True
    calls: list[str] = field(default_factory=list)
    fails: set[str] = field(default_factory=set)
    callers: dict[str, int] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    blockers_of: list[str] = field(default_factory=list)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise NodeError(f"{name} fails")

    @classmethod
    def find(cls) -> FakeEngine:
        return cls()

    def read(self) -> Config:
        return FakeConfig(self.left, self.blockers_of)

    def check(self, config: Config, wiring: Wiring) -> None:
        self._called("check")

    def running(self) -> bool:
        return self.up

    def restart(self) -> None:
        self._called("restart")

    def prove(self, config: Config) -> None:
        self._called("prove")

    def users(self, config: Config, path: str) -> int:
        return self.callers.get(path, 0)

    def starter(self, config: Config) -> Any:
        """Only for what interrupted probes left."""
        return SimpleNamespace(clean=lambda: self._called("clean"), close=lambda: None)


@dataclass
class FakeNode:
    """A node below a directory, with an engine of two files: one is there already, the other one never was."""

    top: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("etc", "bin", "sbin", "lib"):
            (self.top / name).mkdir(parents=True)
        self.config.write_bytes(b"theirs\n")
        self.config.chmod(0o640)
        os.utime(self.config, ns=(1_000_000_000, 2_000_000_000))

    @property
    def state(self) -> str:
        return f"{self.top}/lib/reassert/node"

    @property
    def config(self) -> Path:
        return self.top / "etc/engine.conf"

    @property
    def drop_in(self) -> Path:
        return self.top / "etc/engine.d/reassert.conf"

    def dispatcher(self, name: str = "runc") -> Path:
        return self.top / f"sbin/reassert-{name}"

    def wiring(self, *names: str) -> Wiring:
        """A dispatcher for each name, and both files."""
        wiring = Wiring()
        for name in names or ("runc",):
            text = f'#!/bin/sh\n# written by reassert: for a test\nexec /usr/sbin/{name} "$@"\n'
            wiring.artifacts.append((str(self.dispatcher(name)), State(text.encode(), mode=0o755)))
        edited = State(b"theirs\n" + OURS, mode=0o640)
        wiring.references = [(str(self.drop_in), State(OURS)), (str(self.config), edited)]
        return wiring

    def program(self) -> list[Change]:
        """The program's own: what dispatchers read, the command, and a first policy."""
        policy = self.top / "etc/reassert/policy.yaml"
        seed: list[Change] = [] if policy.exists() else [(str(policy), State(b"seed\n"))]
        start = (str(self.top / "bin/start"), State(b"reassert=/opt/reassert/0/reassert\n"))
        return [start, (str(self.top / "bin/reassert"), link("/opt/reassert/reassert")), *seed]

    def make(
        self, target: Target, engine: FakeEngine | None = None, prove: Callable[[Config], None] | None = None
    ) -> bool:
        """One change, under the lock, whose directory is away again if nothing stays in it."""
        with journals.locked(self.state):
            chosen = engine or self.engine
            rewiring = Rewiring(chosen, Record.read(self.state), target, chosen.read, directory=self.state)
            return rewiring.make(self.said.append, prove or self.engine.prove)

    def installed(self, wiring: Wiring | None = None) -> Target:
        return Target(self.wiring() if wiring is None else wiring, ["runtime"], None, self.program())

    def install(self, wiring: Wiring | None = None, engine: FakeEngine | None = None) -> bool:
        return self.make(self.installed(wiring), engine)

    def uninstall(self, engine: FakeEngine | None = None) -> bool:
        return self.make(Target(), engine)

    def everything(self) -> dict[str, object]:
        """Every file, by its path; of the administrator's own its time too."""
        found: dict[str, object] = {}
        for directory, names, files in os.walk(self.top):
            for path in [f"{directory}/{name}" for name in (*names, *files)]:
                state = look(path) if not os.path.isdir(path) else None
                time = os.lstat(path).st_mtime_ns if state and state.content == b"theirs\n" else 0
                found[path.removeprefix(f"{self.top}/")] = (state and (state.kind, state.mode, state.content), time)
        return found


@contextmanager
def killed_before(step: int) -> Iterator[None]:
    """A kill -9 before the n-th call that changes what is where. Raises Killed."""
    count = 0

    def counted(original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= step:
                raise Killed
            return original(*arguments, **options)

        return call

    names = ("rename", "unlink", "rmdir", "mkdir", "symlink")
    with patch.multiple(os, **{name: counted(getattr(os, name)) for name in names}):
        yield
