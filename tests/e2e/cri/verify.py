"""`reassert node verify` and its benign probe, beside a test's containerd."""

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
from e2e.support import TOP

INSIDE = Path(__file__).with_name("inside.py")


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


def verify(containerd: Containerd, wired: dict[str, list[str]], image: str = PAUSE, probe: bool = False) -> Verified:
    """Run it for handlers, by name: the adapters that each is wired to. `probe`: a container that wants nothing."""
    node = containerd.node
    node.compile()
    request = {
        "policy": str(node.policy),
        "store": str(node.store),
        "socket": str(containerd.directory / "containerd.sock"),
        "image": image,
        "probe": probe,
        "wired": wired,
    }
    done = subprocess.run(
        [sys.executable, str(INSIDE), str(containerd.init), json.dumps(request)],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        text=True,
        capture_output=True,
        timeout=120,
    )
    return Verified(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)
