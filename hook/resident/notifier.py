"""systemd's notification socket (sd_notify(3)), for processes that stay."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from hook.resident import oplog


class Notifier:
    """systemd's notification socket (sd_notify(3)). Without NOTIFY_SOCKET it does nothing."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        microseconds = os.environ.pop("WATCHDOG_USEC", "")
        self._interval = int(microseconds) / 1e6 / 3 if microseconds.isdigit() else 0.0
        self._next = 0.0
        self.is_ready = False
        """Whether systemd was told that the process serves requests."""

    def say(self, text: str) -> None:
        """Send one message; a missing or closed socket is not an error for the process."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.sendto(text.encode(), address)
        except OSError as error:
            oplog.warning("systemd.unreachable", key=error.errno, socket=self._address, exc_info=error)

    def ready(self, status: str = "connected") -> None:
        """Tell systemd that the process serves requests."""
        self.say(f"STATUS={status}" if self.is_ready else f"READY=1\nSTATUS={status}")
        self.is_ready = True

    def tick(self, healthy: Any) -> None:
        """Notify systemd's watchdog while the process can read requests (`healthy`)."""
        now = time.monotonic()
        if self._interval and healthy and now >= self._next:
            self._next = now + self._interval
            self.say("WATCHDOG=1")
