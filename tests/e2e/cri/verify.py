"""`reassert node verify` and its benign probe, beside a test's engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cri.images import PAUSE
from e2e.cri.node import Containerd
from e2e.support import TOP, Node

INSIDE = Path(__file__).with_name("inside.py")

Wired = dict[str, list[str]]
"""Handlers by name, with the adapters that each is wired to."""


@dataclass(frozen=True)
class Verified:
    """What was said. `report`: {} where nothing could be tried; `error` says why."""

    status: int
    report: dict[str, Any]
    error: str

    def results(self) -> dict[str, tuple[str, str | None]]:
        """By handler: what became of its container, and of what was executed in it."""
        return {finding["name"]: (finding["result"], finding["exec"]) for finding in self.report["handlers"]}

    def saw(self, handler: str) -> list[str]:
        """What was seen under a handler."""
        [saw] = [finding["saw"] for finding in self.report["handlers"] if finding["name"] == handler]
        return list(saw)


def verify(containerd: Containerd, wired: Wired, image: str = PAUSE, probe: bool = False) -> Verified:
    """Run it for handlers of a containerd. `probe`: for a container that wants nothing."""
    socket = str(containerd.directory / "containerd.sock")
    return verify_inside(containerd.init, containerd.node, wired, socket=socket, image=image, probe=probe)


def verify_inside(
    pid: int, node: Node, wired: Wired, socket: str = "", image: str = "", probe: bool = False
) -> Verified:
    """Run it in the namespaces of a process, through a CRI socket or, without one, docker's command line."""
    node.compile()
    where = {"policy": str(node.policy), "store": str(node.store)}
    request = {**where, "socket": socket, "image": image, "probe": probe, "wired": wired}
    done = subprocess.run(
        [sys.executable, str(INSIDE), str(pid), json.dumps(request)],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        text=True,
        capture_output=True,
        timeout=120,
    )
    return Verified(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)
