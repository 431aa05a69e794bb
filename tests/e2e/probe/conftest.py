"""Fixtures of the probe's tests: a containerd whose handlers are wired or not, and `node verify` beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import RUNTIMES
from e2e.cri.images import PAUSE
from e2e.cri.node import GENERATIONS, NRI_GENERATIONS, Containerd, Handler, running
from e2e.support import TOP, Node, scratch

INSIDE = Path(__file__).with_name("inside.py")


@dataclass(frozen=True)
class Verified:
    """What `node verify` said. `findings`: by handler."""

    status: int
    report: dict[str, Any]
    error: str

    @property
    def findings(self) -> dict[str, dict[str, Any]]:
        return {finding["name"]: finding for finding in self.report["handlers"]}


Verify = Callable[..., Verified]


@pytest.fixture(scope="module", params=["1.6", "2.1"])
def containerd(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    """A scratch node whose containerd knows, for each real runtime X, the handlers X (with reassert) and X-plain."""
    node = Node(scratch())
    handlers = []
    for name, real in RUNTIMES.items():
        handlers += [Handler(name, node.dispatcher(real)), Handler(f"{name}-plain", real)]
    with running(node, {**GENERATIONS, **NRI_GENERATIONS}[request.param], handlers) as containerd:
        yield containerd
    shutil.rmtree(node.directory)


@pytest.fixture
def verify(containerd: Containerd) -> Verify:
    """Runs it for some handlers under a policy. `probe`: only start a container that wants nothing."""

    def run(*names: str, policy: str, image: str = PAUSE, probe: bool = False) -> Verified:
        containerd.node.compile(policy)
        request = {
            "policy": str(containerd.node.policy),
            "store": str(containerd.node.store),
            "socket": str(containerd.directory / "containerd.sock"),
            "image": image,
            "probe": probe,
            "handlers": [
                [name, RUNTIMES[name.removesuffix("-plain")], [] if name.endswith("-plain") else ["runtime"]]
                for name in names
            ],
        }
        done = subprocess.run(
            [sys.executable, str(INSIDE), str(containerd.init), json.dumps(request)],
            env={**os.environ, "PYTHONPATH": str(TOP)},
            text=True,
            capture_output=True,
            timeout=120,
        )
        report = json.loads(done.stdout) if done.stdout else {}
        return Verified(done.returncode, report, done.stderr)

    return run
