"""An agent whose descriptors run out, and a program in its place that accepts no connection."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time

import pytest

from e2e.agent.support import WENT_COLD, Agent, Cold, reason_of
from e2e.support import POLICY, REASSERT
from hook.entry.protocol import STATUS

pytestmark = [pytest.mark.frozen, pytest.mark.engine, pytest.mark.root]


def test_a_start_is_cold_where_hardly_a_descriptor_is_free(start: Cold) -> None:
    """Requests that hang keep theirs. What could not be looked at must not count as looked at."""
    agent = start.agent
    agent.stop()
    agent.node.compile(POLICY.replace("spec:\n", "spec:\n  failurePolicy: Ignore\n"))
    agent.start("prlimit", "--nofile=64:64")
    (start.bundle / "rootfs").mkdir()
    (start.bundle / "rootfs/data").symlink_to("/etc/ssl")  # leads a device into a reserved mount
    device = {"path": "/data/null", "type": "c", "major": 1, "minor": 3}
    spec = {"process": {"env": []}, "root": {"path": "rootfs"}, "linux": {"devices": [device]}}
    (start.bundle / "config.json").write_text(json.dumps(spec))
    answered: set[int | str] = set()
    for count in range(64):
        held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        for connection in held:
            connection.connect(str(agent.socket))
        began = time.monotonic()
        done = subprocess.run([start.file, "create", "0a"], cwd=start.bundle, capture_output=True, timeout=60)
        assert done.returncode, f"accepted with {count} connections"
        answered.add(reason_of(done.stderr) if done.returncode == WENT_COLD else done.returncode)
        with contextlib.suppress(OSError):
            agent.ask(STATUS, fds=[])
        for connection in held:
            connection.close()
        if time.monotonic() - began > 0.9:  # the connection was not accepted
            break
    assert {1, "busy"} <= answered <= {1, "busy", "error", "timeout"}
    assert agent.process and agent.process.poll() is None, agent.said()


# -- the socket's place


def refused(agent: Agent) -> str:
    command = [str(REASSERT), "agent", "--socket", str(agent.socket), *agent.node.options()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1, done
    return done.stderr


def test_a_program_in_its_place_that_accepts_no_connection(start: Cold) -> None:
    """Its backlog is full, so that connect(2) would wait for ever."""
    start.agent.stop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(start.agent.socket))
        other.listen(0)
        assert "another agent listens on this socket" in refused(start.agent)
        assert "another program uses this socket" in refused(start.agent)
        assert start.reason() == "busy"
