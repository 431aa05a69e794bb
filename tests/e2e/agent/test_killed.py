"""The agent is killed, or stopped and resumed, at any system call of a request: the container is right all the same."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from e2e.agent.support import Agent
from e2e.support import need

pytestmark = [pytest.mark.frozen, pytest.mark.root]

STEP = int(os.environ.get("REASSERT_EACH_CALL", "12"))
"""The agent is stopped at every so many system calls; 1 for each of them. It is killed at each."""

ALWAYS = [("sendto", 1), ("rename", 1), ("sendto", 2)]
"""Where a promise is kept: the temporary file's name is told, the file is put in place, the answer is sent."""

READS = """#!/bin/busybox sh
# In the place of a runtime: keeps the config.json that it would start.
/bin/busybox cat config.json > read.json
"""


class Creation:
    """A container that is created through front before a runtime that keeps what it reads."""

    def __init__(self, agent: Agent) -> None:
        need(shutil.which("strace") is not None, "strace")
        self.agent = agent
        self.file = agent.before(READS)
        self.bundle = agent.node.directory / "bundle"
        self.config = self.bundle / "config.json"
        self.log = agent.node.directory / "strace.log"

    def fresh(self) -> None:
        shutil.rmtree(self.bundle, ignore_errors=True)
        self.bundle.mkdir()
        self.config.write_text(json.dumps({"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}, "root": {"path": "r"}}))

    def traced(self, *options: str) -> subprocess.Popen[bytes]:
        """A strace of the agent that has begun."""
        command = ["strace", "-f", "-o", str(self.log), *options, "-p", str(self.agent.pid)]
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert tracer.stderr
        assert select.select([tracer.stderr], [], [], 20)[0], "strace attaches to no process"
        assert b"attached" in tracer.stderr.readline()
        return tracer

    def injected(self, name: str, call: str, number: int) -> subprocess.Popen[bytes]:
        """A strace that sends a signal to the agent in system call `number` of that name, of any of its threads."""
        return self.traced("-e", f"inject={call}:signal={name}:when={number}")

    def calls(self, step: int) -> list[tuple[str, int]]:
        """Every so many system calls of a request: name, and how often a thread has made it by then."""
        self.fresh()
        tracer = self.traced()
        self.create()
        _ended(tracer)
        counts: Counter[tuple[str, str]] = Counter()
        for thread, call in re.findall(r"^(\d+) +(\w+)\(", self.log.read_text(), re.MULTILINE):
            counts[thread, call] += 1
        found = sorted({(call, number) for (_, call), most in counts.items() for number in range(1, most + 1)})
        assert ("rename", 1) in found
        return list(dict.fromkeys([*ALWAYS, *found[::step]]))

    def create(self) -> None:
        done = subprocess.run([self.file, "create", "0a"], cwd=self.bundle, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        read = json.loads((self.bundle / "read.json").read_text())
        assert read["process"]["env"] == ["REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"]
        assert len(read["hooks"]["createRuntime"]) == 1


def _ended(tracer: subprocess.Popen[bytes]) -> None:
    if tracer.poll() is None:
        tracer.send_signal(signal.SIGINT)
    try:
        tracer.wait(5)
    except subprocess.TimeoutExpired:  # strace 6.1 may miss the end of a killed process
        tracer.kill()
        tracer.wait(20)
    assert tracer.stderr
    tracer.stderr.close()


def test_killed(agent: Agent) -> None:
    creation = Creation(agent)
    for call, number in creation.calls(1):
        creation.fresh()
        tracer = creation.injected("SIGKILL", call, number)
        creation.create()
        _ended(tracer)
        if agent.process and agent.process.poll() is not None:
            agent.start()


def test_stopped_and_resumed(agent: Agent) -> None:
    """Whoever is resumed changes nothing: an engine may have written the config.json of a new start meanwhile."""
    creation = Creation(agent)
    again = json.dumps({"process": {"env": ["NEW=1"]}})
    stopped = []
    for call, number in creation.calls(STEP):
        creation.fresh()
        tracer = creation.injected("SIGSTOP", call, number)
        creation.create()
        if "\nState:\tS" not in Path(f"/proc/{agent.pid}/status").read_text():
            stopped.append((call, number))
        creation.config.write_text(again)
        _ended(tracer)
        os.kill(agent.pid, signal.SIGCONT)
        time.sleep(0.2)
        assert creation.config.read_text() == again, (call, number)
        assert sorted(path.name for path in creation.bundle.iterdir()) == ["config.json", "read.json"]
    assert set(ALWAYS) <= set(stopped)
    creation.fresh()
    creation.create()
