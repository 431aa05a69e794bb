"""Clients that are not front, and other programs in the place of the agent's socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.agent.support import WENT_COLD, Agent, Cold, reason_of
from e2e.cri.client import wait_for
from e2e.support import POLICY, REASSERT, run
from hook.entry.protocol import STATUS

pytestmark = [pytest.mark.frozen, pytest.mark.engine, pytest.mark.root]


def dropped(agent: Agent, count: int) -> dict[str, int]:
    """The reasons of so many dropped clients."""
    for _ in range(100):
        events = [event for event in agent.node.logged() if event["event"] == "agent.dropped"]
        if sum(event["count"] for event in events) >= count:
            found: dict[str, int] = {}
            for event in events:
                for reason, number in event["reasons"].items():
                    found[reason] = found.get(reason, 0) + number
            assert sum(found.values()) == count, found
            return found
        time.sleep(0.05)
    raise AssertionError(f"{agent.node.logged()}; {agent.said()}")


def test_clients_that_are_no_front_are_dropped_and_counted(start: Cold) -> None:
    agent = start.agent
    good = agent.frame("create", "0a")
    time.sleep(1.1)
    before = sum(event.get("count", 0) for event in agent.node.logged() if event["event"] == "agent.dropped")
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(30)]
    for connection in held:  # nothing at all
        connection.connect(str(agent.socket))
    assert not start.is_cold()
    assert agent.ask(os.urandom(1000)) == b""
    assert agent.ask(good[: len(good) // 2]) == b""
    assert agent.ask(good + b"x" * 100000) == b""
    assert agent.ask(good, fds=[]) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:  # hangs up
        connection.connect(str(agent.socket))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:  # 100 MB
        connection.connect(str(agent.socket))
        sent = 0
        try:
            while sent < 100 << 20:
                sent += connection.send(b"x" * 65536)
        except OSError:
            pass
    assert sent < 100 << 20
    assert not start.is_cold()
    found = dropped(agent, before + 36)
    assert found["no request within a second"] == 30
    for connection in held:
        assert connection.recv(10) == b""
        connection.close()
    assert not start.is_cold()
    assert agent.process and agent.process.poll() is None


def test_another_version_is_cold(start: Cold) -> None:
    assert start.agent.ask(start.agent.frame("create", "0a", version="9.9")) == b"reassert-agent/1\0Cversion\0"


def test_a_user_may_not_ask(start: Cold) -> None:
    """Nor if the socket is open to all users: neither a request nor the status is answered."""
    agent = start.agent
    assert agent.socket.stat().st_mode & 0o777 == 0o600
    assert agent.socket.parent.stat().st_mode & 0o777 == 0o700
    agent.socket.chmod(0o666)
    agent.socket.parent.chmod(0o755)
    code = (
        "import socket, os, sys; s = socket.socket(1, 5); os.setuid(65534); s.connect(sys.argv[1])\n"
        "try: s.send(bytes.fromhex(sys.argv[2])); print(s.recv(1 << 17))\n"
        "except OSError: print(b'')"
    )
    for frame in (agent.frame("create", "0a"), b"reassert-status/1\0"):
        done = run("/usr/bin/python3", "-c", code, str(agent.socket), frame.hex())
        assert done.stdout == "b''\n"
    assert not start.is_cold()
    deadline = time.monotonic() + 20
    while not any("uid 65534 is not root" in event.get("reasons", ()) for event in agent.node.logged()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stuck_request_holds_nobody_up(start: Cold) -> None:
    """Files that never answer, as on a hostPath that hangs: a FUSE of nobody is a FIFO here, opened for its writer."""
    stuck = start.agent.node.directory / "log.fifo"
    os.mkfifo(stuck)
    start.agent.node.compile(POLICY.rstrip() + "\n    onConflict: Deny\n")
    with ThreadPoolExecutor(40) as pool:
        waiting = [
            pool.submit(
                lambda: subprocess.Popen(
                    [start.file, "--log", str(stuck), "create", "0a"], cwd=start.bundle, stderr=subprocess.PIPE
                )
            )
            for _ in range(40)
        ]
        processes = [one.result() for one in waiting]
        (start.bundle / "free").mkdir()
        (start.bundle / "free/config.json").write_text('{"process": {"env": []}}')
        assert not start.is_cold("create", "--bundle", "free", "0a")
        assert {reason_of(process.communicate()[1]) for process in processes} == {"timeout"}
    reader = os.open(stuck, os.O_RDONLY | os.O_NONBLOCK)  # lets them go
    wait_for(lambda: json.loads(start.agent.ask(STATUS, fds=[]))["working"] == 0, "the stuck requests end")
    os.close(reader)
    assert not start.is_cold("create", "--bundle", "free", "0a")


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


def test_the_sockets_place_is_taken(start: Cold) -> None:
    agent = start.agent
    assert "another agent listens on this socket" in refused(agent)
    assert not start.is_cold()
    agent.stop()
    agent.socket.write_text("")
    assert "is a file, not the agent's socket" in refused(agent)
    assert start.reason() == "absent"
    agent.socket.unlink()
    agent.socket.mkdir()
    assert "is a directory, not the agent's socket" in refused(agent)
    assert start.reason() == "absent"
    agent.socket.rmdir()
    agent.socket.parent.chmod(0o755)
    assert "must be a directory that only root may use (chmod 700" in refused(agent)
    start.assert_right()


def test_another_programs_socket_in_its_place(start: Cold) -> None:
    start.agent.stop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(start.agent.socket))
        other.listen()
        assert "another program uses this socket" in refused(start.agent)
        assert start.reason() == "absent"


def test_a_program_in_its_place_that_accepts_no_connection(start: Cold) -> None:
    """Its backlog is full, so that connect(2) would wait for ever."""
    start.agent.stop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(start.agent.socket))
        other.listen(0)
        assert "another agent listens on this socket" in refused(start.agent)
        assert "another program uses this socket" in refused(start.agent)
        assert start.reason() == "busy"


def test_systemds_socket_is_taken_over(start: Cold) -> None:
    """sd_listen_fds(3), without systemd."""
    agent = start.agent
    agent.stop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(agent.socket))
        listener.listen()
        script = 'exec 3<&"$1"; shift; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        command = ["bash", "-c", script, "x", str(listener.fileno()), str(REASSERT), "agent", *agent.node.options()]
        agent.process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        for _ in range(50):
            if not start.is_cold():
                break
            time.sleep(0.1)
        assert not start.is_cold()
        assert agent.stop() == 0
        assert agent.socket.exists()


# -- many at once
