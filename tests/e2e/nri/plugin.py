"""A running `reassert nri`, as systemd or containerd runs it."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from e2e.cri.client import wait_for
from e2e.support import REASSERT, Node

_PIDFD_GETFD = 438
"""Its number is the same on all architectures."""


def _unread(process: int, fd: int) -> int:
    """Bytes that a descriptor of another process (a pidfd) could read at once, if it is a connection."""
    copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, fd, 0)
    if copy == -1:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    try:
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            return 0
        return int.from_bytes(fcntl.ioctl(copy, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:  # a socket that listens
        return 0
    finally:
        os.close(copy)


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

    def has_unread(self) -> bool:
        """Whether something lies in one of its sockets that it did not read."""
        process = os.pidfd_open(self.process.pid)
        try:
            return any(_unread(process, int(fd)) for fd in os.listdir(f"/proc/{self.process.pid}/fd"))
        finally:
            os.close(process)

    def close(self) -> None:
        """End it, also if it is stopped."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
