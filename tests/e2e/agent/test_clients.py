"""An agent whose descriptors or threads run out, and a program in its place that accepts no connection."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import marks
import pytest
from harness.node import POLICY
from harness.paths import REASSERT
from harness.tools import cleaned, need

from e2e.agent.support import WENT_COLD, Agent, Cold, reason_of
from e2e.cri.client import wait_for
from hook.entry.protocol import STATUS

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.engine,
    pytest.mark.root,
    marks.promise("A start that the agent does not answer is cold, and events, `status` and metrics say why"),
]


@marks.hole("With `failurePolicy: Ignore`, hanging requests used up the agent's descriptors, and mounts went unchecked")
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
        done = subprocess.run([start.file, "create", "0a"], cwd=start.bundle, capture_output=True, timeout=600)
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
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


# -- threads


@marks.hole(
    "A container that reached the agent's socket and used up all processes of the node ended the agent and "
    "the NRI plugin in it",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_an_agent_that_gets_no_more_threads_goes_on(start: Cold) -> None:
    """A container can use up all processes of the node. A thread closes the connection of a caller without proof."""
    agent = start.agent
    controller = Path("/sys/fs/cgroup/pids")
    cgroup = (controller if controller.exists() else controller.parent) / f"reassert-tests-{os.getpid()}"
    cgroup.mkdir()
    try:
        need((cgroup / "pids.max").exists(), "the controller pids of cgroups")
        (cgroup / "cgroup.procs").write_text(str(agent.pid))
        (cgroup / "pids.max").write_text("1")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "/usr/bin/python3", "-c", CALLER]
        with subprocess.Popen([*command, str(agent.socket)], stdout=subprocess.PIPE) as caller:
            assert caller.stdout and caller.stdout.readline() == b"answered\n"
            wait_for(lambda: "max 0\n" not in (cgroup / "pids.events").read_text(), "a thread that was not started")
            assert not start.is_cold()
            (cgroup / "pids.max").write_text("max")
            assert caller.wait(600) == 0
        assert not start.is_cold()
    finally:
        agent.stop()
        cleaned(str(cgroup), cgroup.rmdir)


CALLER = """
import select, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
connection.send(b"x")
assert connection.recv(1 << 16)
print("answered", flush=True)
closed = select.poll()
closed.register(connection, select.POLLRDHUP)
closed.poll()
"""
