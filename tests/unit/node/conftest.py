"""A node that is a directory, with an engine and a systemd that only remember what they were asked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hook.node import services, systemd
from hook.node.change import journal as journals
from hook.node.change import rewiring as change
from hook.node.change.files import State, put
from hook.node.probe import starter
from unit.node.fake import FakeNode


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """What was asked of systemd, which is there. Nothing of this machine is touched."""
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(systemd, "available", lambda: True)
    monkeypatch.setattr(systemd, "run", lambda *words: ran.append(words))
    monkeypatch.setattr(systemd, "is_active", lambda unit: True)
    monkeypatch.setattr(systemd, "wait_active", lambda unit: ran.append(("wait", unit)))
    monkeypatch.setattr(services, "ask", lambda path: {"nri": True})
    monkeypatch.setattr(change.tree, "PLACE", str(tmp_path / "opt/reassert"))
    monkeypatch.setattr(change.tree, "_SECONDS", 0)
    monkeypatch.setattr(change.tree, "let_starts_end", lambda: None)  # it waits for what else this machine starts
    monkeypatch.setattr(change.tree, "STAGING", str(tmp_path / "opt/aside"))
    monkeypatch.setattr(change.compiler, "clear", lambda: ran.append(("clear",)))
    monkeypatch.setattr(starter, "traces", list)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield ran
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "node")


@pytest.fixture
def order(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were put or removed, among the engine's calls, in order."""

    def logged(path: str, state: State | None) -> None:
        node.engine.calls.append(("+" if state else "-") + path.rpartition("/")[2])
        put(path, state)

    monkeypatch.setattr(journals, "put", logged)
    monkeypatch.setattr(change, "put", logged)
    return node.engine.calls
