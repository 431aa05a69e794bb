"""What a service tells systemd: that it is ready, what it does, and, while it is healthy, that it lives."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest

from hook.resident.notifier import Notifier

pytestmark = marks.promise("systemd restarts a service that no longer reads requests", about="Agent")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield heard


def said(heard: socket.socket) -> list[str]:
    """What came since the last call: the kernel has it when the sender's call ends."""
    messages = []
    try:
        while True:
            messages.append(heard.recv(4096).decode())
    except BlockingIOError:
        return messages


HOUR, MICROSECOND = "3600000000", "3"
"""WATCHDOG_USEC: the watchdog is told three times in it."""


def test_an_unhealthy_service_does_not_tell_the_watchdog(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", MICROSECOND)
    notifier = Notifier()
    notifier.tick(healthy=False)
    assert said(systemd) == []
    notifier.tick(healthy=True)
    notifier.tick(healthy=True)
    notifier.tick(healthy=False)
    assert said(systemd) == ["WATCHDOG=1"] * 2


def test_the_watchdog_is_told_once_in_a_third_of_its_time(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", HOUR)
    notifier = Notifier()
    for _ in range(3):
        notifier.tick(healthy=True)
    assert said(systemd) == ["WATCHDOG=1"]


@pytest.mark.parametrize("microseconds", [None, "", "soon"])
def test_a_unit_without_a_watchdog_is_told_nothing(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, microseconds: str | None
) -> None:
    if microseconds is not None:
        monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    Notifier().tick(healthy=True)
    assert said(systemd) == []


def test_a_service_is_ready_once(systemd: socket.socket) -> None:
    notifier = Notifier()
    assert not notifier.is_ready
    notifier.ready()
    notifier.ready("reconnected")
    assert notifier.is_ready
    assert said(systemd) == ["READY=1\nSTATUS=connected", "STATUS=reconnected"]


def test_a_socket_that_is_gone_ends_no_service(systemd: socket.socket, tmp_path: Path) -> None:
    notifier = Notifier()
    (tmp_path / "notify").unlink()
    notifier.say("STATUS=x")
    assert said(systemd) == []
