"""A node that is a directory, with an engine that only remembers what it was asked; systemd is the machine's."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hook.node.change import tree
from unit.node.fake import FakeNode
from unit.ownmachine import Machine

_LOGS: list[tuple[str, list[str]]] = []
"""The directory of a node, and what has become of the files below it."""


def _log(event: str, arguments: tuple[object, ...]) -> None:
    """sys.addaudithook, which has no way back.

    Other files do not count: Python itself renames one when it compiles a module that is imported for the first time.
    """
    if _LOGS and event in ("os.rename", "os.remove"):
        top, log = _LOGS[-1]
        path = str(arguments[event == "os.rename"])
        name = path.rpartition("/")[2]
        if path.startswith(f"{top}/") and name != "lock" and not name.endswith(".reassert-new"):
            log.append(("+" if event == "os.rename" else "-") + name)


sys.addaudithook(_log)


@pytest.fixture
def ran(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The machine that is changed."""
    # What is waited for is the whole machine's, other tests' container starts too, and at each of 600 steps.
    monkeypatch.setattr(tree, "let_starts_end", lambda: None)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield machine
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "node")


@pytest.fixture
def order(node: FakeNode) -> Iterator[list[str]]:
    """Names of the files that were put or removed, among the engine's calls, in order."""
    _LOGS.append((str(node.top), node.engine.calls))
    yield node.engine.calls
    _LOGS.pop()
