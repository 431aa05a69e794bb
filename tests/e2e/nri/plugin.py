"""A running `reassert nri`, as systemd or containerd runs it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from harness.node import Node
from harness.paths import REASSERT

from e2e.cri.client import wait_for


class Plugin:
    """The frozen program, connected to a containerd's NRI socket. `beside`: a process whose files it has."""

    def __init__(self, node: Node, socket: Path, *options: str, beside: int = 0) -> None:
        self.node = node
        self.output = node.directory / "nri.jsonl"
        command = [str(REASSERT), "nri", "--socket", str(socket), *node.options(), *options]
        if beside:
            command = ["nsenter", "--target", str(beside), "--mount", *command]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.wait_until_connected()

    def said(self) -> list[dict[str, Any]]:
        """What it wrote to standard output."""
        return [json.loads(line) for line in self.output.read_text().splitlines() if line.startswith("{")]

    def connections(self) -> int:
        """How often a runtime took it in."""
        return sum(line["event"] == "nri.connected" for line in self.said())

    def wait_until_connected(self, times: int = 1) -> None:
        """Until a runtime has taken it in."""
        wait_for(lambda: self.connections() >= times, "the plugin's connection", self.output.read_text)

    def directory(self) -> Path:
        """Its /proc/PID."""
        return Path(f"/proc/{self.process.pid}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        """End it, also if it is stopped."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(600)
