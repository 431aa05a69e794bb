"""A node with CRI-O, which answers what it has loaded, and the frozen program's commands on it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from unit.node.opt import Opt
from unit.ownmachine import Machine
from unit.support import called, document

LOAD: list[Callable[[], None]] = []
"""Makes the node's CRI-O read its files."""

RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}


@contextmanager
def crio_node(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A node with a CRI-O that does not run yet."""
    machine.crio()
    for runtime in ("crun", "runc"):
        machine.program(runtime, ":")
    Opt(tmp_path, monkeypatch).frozen("a program")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    enforce(RULE)
    with machine.crio_daemon() as load:
        LOAD.append(load)
        yield machine
        LOAD.clear()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def enforce(*rules: dict[str, Any], **spec: Any) -> None:
    path = Path("/etc/reassert/policy.yaml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(document(*rules, **spec))


def install(adapter: str = "runtime", *options: str) -> None:
    words = ("--engine", "crio", "--adapter", adapter, "--no-agent", "--no-probe", *options)
    done = called("install", *words)
    assert done.returncode == 0, done.stderr
    Path("/run/units/crio.service").write_text("0\n")  # it is active from now on
    LOAD[0]()


def status() -> tuple[int, dict[str, Any]]:
    done = called("status", "--output", "json")
    return done.returncode, json.loads(done.stdout)
