"""The agent is killed, or stopped and resumed, at any system call of a request: the container is right all the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from e2e.agent.support import Agent
from e2e.support import need

pytestmark = [pytest.mark.frozen, pytest.mark.root]

STEP = int(os.environ.get("REASSERT_EACH_CALL", "9"))
"""Every so many system calls; 1 for each of them."""

CALLS = 130
"""More system calls than a request of this size makes in one thread."""

READS = """#!/bin/busybox sh
# In the place of a runtime: keeps the config.json that it would start.
/bin/busybox cat config.json > read.json
"""


class Creation:
    """A container that is created through front before a runtime that keeps what it reads."""

    def __init__(self, agent: Agent) -> None:
        need(shutil.which("strace") is not None, "strace")
        self.agent = agent
        real = agent.node.directory / "runc"
        real.write_text(READS)
        real.chmod(0o755)
        self.file = agent.dispatcher(str(real))
        self.bundle = agent.node.directory / "bundle"
        self.config = self.bundle / "config.json"

    def fresh(self) -> None:
        shutil.rmtree(self.bundle, ignore_errors=True)
        self.bundle.mkdir()
        self.config.write_text(json.dumps({"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}, "root": {"path": "r"}}))

    def injected(self, name: str, when: int) -> subprocess.Popen[bytes]:
        """A strace that sends a signal to the agent before system call number `when` of each of its threads."""
        log = self.agent.node.directory / "strace.log"
        log.unlink(missing_ok=True)
        tracer = subprocess.Popen(
            ["strace", "-f", "-o", str(log), "-e", f"inject=all:signal={name}:when={when}", "-p", str(self.agent.pid)],
            stderr=subprocess.PIPE,
        )
        assert tracer.stderr
        assert b"attached" in tracer.stderr.readline()
        return tracer

    def create(self) -> None:
        done = subprocess.run([self.file, "create", "0a"], cwd=self.bundle, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        read = json.loads((self.bundle / "read.json").read_text())
        assert read["process"]["env"] == ["REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"]
        assert len(read["hooks"]["createRuntime"]) == 1


def _ended(tracer: subprocess.Popen[bytes]) -> None:
    if tracer.poll() is None:
        tracer.send_signal(signal.SIGINT)
    tracer.wait(20)
    assert tracer.stderr
    tracer.stderr.close()


@pytest.mark.parametrize("when", range(1, CALLS, STEP))
def test_killed(agent: Agent, when: int) -> None:
    creation = Creation(agent)
    creation.fresh()
    tracer = creation.injected("SIGKILL", when)
    creation.create()
    _ended(tracer)


@pytest.mark.parametrize("when", range(1, CALLS, STEP))
def test_stopped_and_resumed(agent: Agent, when: int) -> None:
    """Whoever is resumed changes nothing: an engine may have written the config.json of a new start meanwhile."""
    creation = Creation(agent)
    creation.fresh()
    tracer = creation.injected("SIGSTOP", when)
    creation.create()
    again = json.dumps({"process": {"env": ["NEW=1"]}})
    stopped = "T" in Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()[0].upper()
    creation.config.write_text(again)
    _ended(tracer)
    os.kill(agent.pid, signal.SIGCONT)
    time.sleep(0.3)
    assert creation.config.read_text() == again
    assert sorted(path.name for path in creation.bundle.iterdir()) == ["config.json", "read.json"]
    assert stopped or when > 20
    creation.fresh()
    creation.create()
