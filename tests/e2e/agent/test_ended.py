"""SIGTERM ends the agent at once, also while requests hang: systemd starts no other one before it has ended."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from e2e.agent.support import Agent
from e2e.test_trial import hanging
from hook.agent.service import REQUESTS

pytestmark = [pytest.mark.frozen, pytest.mark.root]


def test_it_ends_while_all_its_requests_hang(agent: Agent) -> None:
    """Bundles in a FUSE file system that answers nobody. The limit is four times what it takes on an idle machine."""
    held = []
    here = os.open(".", os.O_PATH)
    with hanging(agent.node.directory / "hangs") as stuck:
        for number in range(REQUESTS):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.connect(str(agent.socket))
            socket.send_fds(connection, [agent.frame("create", "--bundle", f"{stuck}/{number}", "0a")], [here])
            held.append(connection)
        deadline = time.monotonic() + 20
        while len(list(Path(f"/proc/{agent.pid}/task").iterdir())) <= REQUESTS:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        began = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began < 4
    assert not agent.socket.exists()
    assert [event["event"] for event in agent.node.logged()][-1] == "agent.ended"
    for connection in held:
        assert connection.recv(100) == b"", "no answer: front starts cold"
        connection.close()
    os.close(here)
