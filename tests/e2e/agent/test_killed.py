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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.node import WANTED, Node
from harness.tools import need, remove_tree, scratch

from e2e.agent.support import FRONT, Agent

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.root,
    marks.promise(
        "A container is correct if the agent is killed or stopped at any moment, and a resumed agent changes nothing",
        about="Agent",
    ),
]

STEP = int(os.environ.get("REASSERT_EACH_CALL", "12"))
"""The agent is stopped at every so many system calls, and at those of PROMISES; 1 for each of them."""

KILLS = min(STEP, 6)
"""It is killed at every so many. tests/simulator kills it at any call of a hook."""

AGENTS = 4
"""Agents that take turns, each on a node of its own: a round mostly waits for an agent to start, or for front."""

PROMISES = ("poll", "rename", "sendto")
"""Where a promise is kept: whether front still waits, the file that is put in place, the answer."""

MAY_MISS = {"epoll_wait", "epoll_ctl", "recvmsg", "futex", "brk", "mmap", "munmap"}
MAY_MISS |= {"gettid", "rseq", "rt_sigprocmask", "set_robust_list", "unshare"}
"""Calls whose number differs from request to request: whether front has sent its request yet, which thread takes it,
whether memory is there, and whether the thread had begun when strace attached."""

READS = """#!/bin/busybox sh
# In the place of a runtime: keeps the file that it would read.
[ "$*" = --version ] || /bin/busybox cat NAME > read.json
"""


class Call:
    """A call of an engine through front, with an agent of its own. `name`: the bundle's file that is corrected."""

    name = "config.json"
    leaves = ("config.json", "read.json")
    """The files in the bundle after it."""

    def __init__(self, agent: Agent) -> None:
        need(shutil.which("strace") is not None, "strace")
        self.agent = agent
        self.file = agent.before(READS.replace("NAME", self.name))
        self.bundle = agent.node.directory / "bundle"
        self.log = agent.node.directory / "strace.log"

    def files(self) -> dict[str, Any]:
        """The files in the bundle before it, as JSON."""
        return {"config.json": {"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}, "root": {"path": "r"}}}

    def make(self) -> None:
        """Makes the call. Fails if a container is not right, or if one that must be refused is not."""
        done = subprocess.run([self.file, "create", "0a"], cwd=self.bundle, capture_output=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, b"")
        read = json.loads((self.bundle / "read.json").read_text())
        assert read["process"]["env"] == [WANTED]
        assert len(read["hooks"]["createRuntime"]) == 1

    def fresh(self) -> None:
        """A bundle, and an agent whose first request comes next."""
        shutil.rmtree(self.bundle, ignore_errors=True)
        self.bundle.mkdir()
        for name, content in self.files().items():
            (self.bundle / name).write_text(json.dumps(content))
        if not self.agent.process or self.agent.process.poll() is not None:
            self.agent.start()

    def restart(self) -> None:
        self.agent.stop(signal.SIGKILL)
        self.fresh()

    def left(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in self.bundle.iterdir()))

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

    def calls(self) -> list[tuple[str, int]]:
        """The system calls of a new agent's first request: name, and how often its thread has made it by then."""
        self.restart()
        tracer = self.traced()
        self.make()
        _ended(tracer)
        made = re.findall(r"^(\d+) +(\w+)\(", self.log.read_text(), re.MULTILINE)
        answering = [thread for thread, call in made if call == "sendto"][-1]
        own = [call for thread, call in made if thread == answering]
        answered = len(own) - own[::-1].index("sendto")
        own = own[: answered + 1]  # and one call after that
        counts: Counter[str] = Counter()
        found = []
        for call in own:
            counts[call] += 1
            found.append((call, counts[call]))
        return found

    def close(self) -> None:
        if self.agent.process and self.agent.process.poll() is None:
            os.kill(self.agent.pid, signal.SIGCONT)
            self.agent.stop(signal.SIGKILL)
        remove_tree(self.agent.node.directory)


class Exec(Call):
    """Of a process whose file is to be corrected."""

    name = "process.json"
    leaves = ("config.json", "process.json", "read.json")

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.root = agent.node.directory / "root"
        (self.root / "0a").mkdir(parents=True)
        (self.root / "0a/state.json").write_text(json.dumps({"config": {"labels": [f"bundle={self.bundle}"]}}))

    def files(self) -> dict[str, Any]:
        decided = {"version": 1, "policy": "x", "env": {"REQUESTS_CA_BUNDLE": "/ca"}, "absent": ["PYTHON*"]}
        return {
            "config.json": {"process": {"env": []}, "annotations": {"reassert/decision": json.dumps(decided)}},
            "process.json": {"args": ["sh"], "env": ["REQUESTS_CA_BUNDLE=/x", "PYTHONHTTPSVERIFY=0", "B=1"]},
        }

    def make(self) -> None:
        command = [self.file, "--root", str(self.root), "exec", "--process", self.name, "0a"]
        done = subprocess.run(command, cwd=self.bundle, capture_output=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, b"")
        read = json.loads((self.bundle / "read.json").read_text())
        assert read["args"] == ["sh"]
        assert sorted(read["env"]) == ["B=1", "REQUESTS_CA_BUNDLE=/ca"]


def _ended(tracer: subprocess.Popen[bytes]) -> None:
    if tracer.poll() is None:
        tracer.send_signal(signal.SIGINT)
    if not _ends(tracer, 1):  # strace 6.1 may miss the end of a killed process
        tracer.kill()
        tracer.wait(600)
    assert tracer.stderr
    tracer.stderr.close()


def _ends(process: subprocess.Popen[bytes] | None, seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    assert process
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.fixture
def several() -> Iterator[Callable[[type[Call]], list[Call]]]:
    """Makes AGENTS calls of one kind."""
    need(os.access(FRONT, os.X_OK), "front, which packaging/build.sh builds where musl-gcc is")
    made: list[Call] = []

    def make(kind: type[Call]) -> list[Call]:
        for _ in range(AGENTS):
            node = Node(scratch())
            node.compile()
            agent = Agent(node)
            agent.start()
            made.append(kind(agent))
        return made

    yield make
    for call in made:
        call.close()


def _in_turns(
    calls: list[Call], chosen: list[tuple[str, int]], one: Callable[[Call, str, int], bool]
) -> set[tuple[str, int]]:
    """Does `one` for each system call. Returns those for which it returned that the signal came."""

    def part(number: int) -> list[tuple[str, int]]:
        mine = chosen[number :: len(calls)]
        return [(name, count) for name, count in mine if one(calls[number], name, count)]

    with ThreadPoolExecutor(len(calls)) as pool:
        return {found for part in pool.map(part, range(len(calls))) for found in part}


@pytest.mark.parametrize("kind", [Call, Exec])
def test_killed(several: Callable[[type[Call]], list[Call]], kind: type[Call]) -> None:
    calls = several(kind)
    # a file that was just written is looked at more often: those calls count that each agent makes
    first, *others = [call.calls() for call in calls]
    found = [one for one in first if all(one in other for other in others)]
    chosen = {*found[::KILLS], *(one for one in found if one[0] in PROMISES)}

    def killed(seconds: float, call: Call, name: str, number: int) -> bool:
        call.restart()
        tracer = call.injected("SIGKILL", name, number)
        call.make()
        _ends(tracer, seconds)  # the agent does some calls after its answer
        _ended(tracer)
        assert call.left() == call.leaves, (name, number)
        return _ends(call.agent.process, 0.3)

    missing = chosen
    for seconds in (0.3, 1, 5, 20):  # on a busy machine a start may be cold, and the last call is late
        missing -= _in_turns(calls, sorted(missing), partial(killed, seconds))
        missing = {(name, number) for name, number in missing if name not in MAY_MISS}
    assert not missing


@pytest.mark.parametrize("kind", [Call, Exec])
def test_stopped_and_resumed(several: Callable[[type[Call]], list[Call]], kind: type[Call]) -> None:
    """An agent that is resumed changes nothing: an engine may have written the file of a new start meanwhile."""
    *calls, late = several(kind)
    found = calls[0].calls()
    promises = [one for one in found if one[0] in PROMISES]
    again = json.dumps({"process": {"env": ["NEW=1"]}})

    def late_rename(seconds: int) -> bool:
        """After the last look whether front still waits. Returns whether it came after the call and the new file."""
        late.restart()
        began = time.monotonic()
        tracer = late.traced("-e", f"inject=rename:delay_enter={seconds * 1_000_000}")
        late.make()
        file = late.bundle / late.name
        file.write_text(again)
        was_before = time.monotonic() - began < seconds
        while time.monotonic() - began < seconds + 5 and "(DELAYED)" not in late.log.read_text():
            time.sleep(0.05)
        _ended(tracer)
        if not was_before or "(DELAYED)" not in late.log.read_text():
            return False
        assert file.read_text() == again
        assert late.left() == late.leaves
        return True

    def stopped(call: Call, name: str, number: int) -> bool:
        call.restart()
        tracer = call.injected("SIGSTOP", name, number)
        call.make()
        assert call.agent.process
        status = Path(f"/proc/{call.agent.pid}/status").read_text()
        file = call.bundle / call.name
        file.write_text(again)
        _ended(tracer)
        os.kill(call.agent.pid, signal.SIGCONT)
        time.sleep(0.2)
        assert file.read_text() == again, (name, number)
        assert call.left() == call.leaves
        return "\nState:\tS" not in status

    with ThreadPoolExecutor(1) as beside:
        renamed = beside.submit(lambda: late_rename(2) or late_rename(8))
        came = _in_turns(calls, list(dict.fromkeys([*promises, *found[::STEP]])), stopped)
        came |= _in_turns(calls, sorted(set(promises) - came), stopped)  # as above
        assert renamed.result()
    assert {name for name, _ in promises} >= {"rename", "sendto"}
    assert set(promises) <= came
    calls[0].restart()
    calls[0].make()
