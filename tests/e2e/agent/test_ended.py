"""SIGTERM ends the agent at once, also while requests hang: systemd starts no other one before it has ended."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.agent.support import Agent
from e2e.cri.client import wait_for
from hook.agent.answers import LATE
from hook.agent.service import REQUESTS
from hook.entry import protocol

pytestmark = [pytest.mark.frozen, pytest.mark.root]

HANGING = 32
"""Threads that hang at least when the agent is told to end."""


@contextmanager
def hanging(where: Path) -> Iterator[Path]:
    """A mount that answers no process that looks into it, which can be killed; those of e2e.stalled cannot."""
    where.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    assert libc.mount(b"none", str(where).encode(), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
    try:
        yield where
    finally:
        os.close(device)
        libc.umount2(str(where).encode(), 2)


def test_it_ends_while_its_requests_hang(agent: Agent) -> None:
    """Bundles in a FUSE file system that does not answer. On a busy machine some requests are late, and start cold."""
    held = []
    here = os.open(".", os.O_PATH)
    with hanging(agent.node.directory / "hangs") as stuck:
        for number in range(REQUESTS):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.connect(str(agent.socket))
            socket.send_fds(connection, [agent.frame("create", "--bundle", f"{stuck}/{number}", "0a")], [here])
            held.append(connection)
        wait_for(lambda: len(os.listdir(f"/proc/{agent.pid}/task")) > HANGING, "requests that hang")
        assert agent.stop() == 0
    assert not agent.socket.exists()
    assert [event["event"] for event in agent.node.logged()][-1] == "agent.ended"
    answers = []
    for connection in held:
        answers.append(connection.recv(100))
        connection.close()
    assert set(answers) <= {b"", protocol.cold(LATE)}
    assert answers.count(b"") >= HANGING
    os.close(here)
