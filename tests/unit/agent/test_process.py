"""`reassert agent` from this checkout as a process: what it answers, counts, logs, and how it ends."""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest

from hook import __version__
from hook.compile.in_force import refresh
from hook.core.policy import store
from hook.entry import protocol
from unit.kubelet import entry, write_checkpoint
from unit.support import CONTAINERD, ROOT, config, document, leased, reassert

pytestmark = [
    pytest.mark.root,
    marks.promise(
        "An edit is compiled by the agent or the NRI plugin, before a container start needs it", about="Policy"
    ),
    marks.promise("A stuck request holds no other one up, and SIGTERM ends the agent while all hang"),
]

RULE = {"name": "r", "env": [{"name": "CA", "value": "/ca.pem"}]}


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Process:
    """The agent, systemd's socket, and a bundle whose container lacks the policy's env."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bundle = directory, directory / "bundle"
        self.policy, self.store, self.events = (str(directory / name) for name in ("policy", "store", "events"))
        self.path = str(directory / "run" / "sock")
        self.config = self.bundle / "config.json"
        self.bundle.mkdir()
        Path(self.policy).write_text(document(RULE))
        refresh(self.policy, self.store)
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(directory / "notify"))
        self.notified.settimeout(600)

    def start(self, *before: str, form: str = "json", stderr: int | None = None) -> None:
        """`form`: of the operation log. `stderr`: a descriptor for it, in place of a file."""
        command = [*before, sys.executable, str(ROOT / "hook" / "__main__.py"), "agent", "--socket", self.path]
        command += ["--policy", self.policy, "--store", self.store, "--events", self.events, "--log-format", form]
        environment = {**os.environ, "NOTIFY_SOCKET": str(self.directory / "notify")}
        with (self.directory / "stderr").open("wb") as file:
            given = file.fileno() if stderr is None else stderr
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=given)
        assert self.notified.recv(4096).decode().splitlines() == ["READY=1", "STATUS=listening"]
        wait_until(lambda: self.events in self.files())  # the last of those that it keeps open

    def files(self) -> set[str]:
        """What the agent has open."""
        found = set()
        for link in os.scandir(f"/proc/{self.process.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(link))
        return found

    def frame(self, *arguments: str, kind: str = "runtime", version: str = __version__, real: str = "/real") -> bytes:
        """A request as front sends it."""
        head = [protocol.REQUEST.decode(), version, kind, real, self.policy, self.store, self.events, "", ""]
        return ("\0".join([*head, *arguments]) + "\0").encode()

    def connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(600)
        connection.connect(self.path)
        return connection

    def send(self, frame: bytes) -> socket.socket:
        """A connection with a request in it."""
        connection, here = self.connected(), os.open(self.bundle, os.O_PATH)
        connection.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [here]))])
        os.close(here)
        return connection

    def ask(self, frame: bytes) -> bytes:
        with self.send(frame) as connection:
            return connection.recv(protocol.FRAME_LIMIT)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask(protocol.STATUS))
        return found

    def has_compiled(self) -> bool:
        """Whether the store has the policy file as it is now."""
        stored = store.read_store(self.policy, self.store)
        return stored is not None and stored.has_compiled(store.file_key(os.stat(self.policy)))

    def create(self, value: str = "/ca.pem") -> bytes:
        """The answer to a container's create, which sets its env."""
        self.config.write_text(json.dumps(config(["CA=/tmp/x"])))
        answer = self.ask(self.frame("create", "--bundle", str(self.bundle), "0a"))
        assert json.loads(self.config.read_text())["process"]["env"] == [f"CA={value}"]
        return answer

    def logged(self, kind: str) -> list[dict[str, Any]]:
        """The events of the agent itself, of one kind."""
        log = Path(self.events)
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [event for event in events if event["event"] == f"agent.{kind}"]

    def said(self) -> list[dict[str, Any]]:
        """The operation log."""
        return [json.loads(line) for line in (self.directory / "stderr").read_text().splitlines()]

    def end(self) -> None:
        """SIGTERM, as systemd sends it."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(600) == 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(600)
        self.notified.close()


@pytest.fixture
def agent(root_dir: Path) -> Iterator[Process]:
    process = Process(root_dir)
    process.start()
    yield process
    process.close()


def test_what_it_answered_is_in_its_status_and_in_its_last_event(agent: Process) -> None:
    wait_until(lambda: agent.logged("listening"))  # which comes after READY=1
    [event] = agent.logged("listening")
    assert (event["adapter"], event["level"], event["message"]) == ("agent", "info", f"listening at {agent.path}")
    assert agent.create() == protocol.go()
    state = agent.directory / "state" / "0a"
    state.mkdir(parents=True)
    (state / "state.json").write_text(json.dumps({"config": {"labels": [f"bundle={agent.bundle}"]}}))
    started = ["--root", str(state.parent), "exec", "-e", "CA=/tmp/y", "0a", "sh"]
    assert agent.ask(agent.frame(*started)).startswith(protocol.ANSWER + b"\0A")
    agent.config.write_text("{")
    assert agent.ask(agent.frame("create", "--bundle", ".", "0a")).startswith(protocol.ANSWER + b"\0R\x01reassert: ")
    for _ in range(2):
        assert agent.ask(agent.frame("create", "0a", version="0")) == protocol.cold("version")
    assert agent.ask(b"x") == b""
    counts = {"warm": {"go": 1, "changed": 1, "refused": 1}, "cold": {"version": 2}, "dropped": 1}
    wait_until(lambda: counts.items() <= agent.status().items())  # it answers and closes a connection before it counts
    found = agent.status()
    assert {key: found[key] for key in counts} == counts
    assert (found["version"], found["pid"], found["nri"]) == (__version__, agent.process.pid, None)
    assert [found[name] for name in ("policy", "store", "events")] == [agent.policy, agent.store, agent.events]
    resident = int(Path(f"/proc/{agent.process.pid}/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    assert 0.8 * resident < found["memoryKiB"] < 1.2 * resident
    assert (found["working"], 0 <= found["seconds"] < 60) == (0, True)
    [last] = found["last"]
    assert (last["runtime"], last["exec"], [start["start"] for start in last["starts"]]) == ("/real", True, ["warm"])
    wait_until(lambda: agent.logged("dropped"))
    [event] = agent.logged("dropped")
    assert (event["level"], event["count"], event["reasons"]) == ("warning", 1, {"not a request": 1})
    assert event["message"] == "connections without a valid request were dropped"
    agent.end()
    assert agent.notified.recv(4096) == b"STOPPING=1"
    [event] = agent.logged("ended")
    assert {key: event["answers"][key] for key in counts} == counts
    assert (event["level"], event["message"]) == ("info", "answered 3 container starts and hooks")
    assert os.listdir(agent.directory / "run") == []
    said = agent.said()
    assert [line["event"] for line in said] == [
        *("agent.started", "policy.in-force", "start.cold", "caller.refused", "agent.stopped", "start.cold")
    ]
    assert {key: said[4][key] for key in ("warm", "cold", "dropped")} == {
        "warm": "go:1 changed:1 refused:1",
        "cold": "version:2",
        "dropped": 1,
    }


def test_nothing_of_a_request_stays(agent: Process) -> None:
    """No descriptor, no working directory in a bundle, which could not be unmounted, and no umask."""
    agent.create()
    process = Path(f"/proc/{agent.process.pid}")
    before = len(os.listdir(process / "fd"))
    for _ in range(30):
        agent.create()
        agent.ask(agent.frame("create", "0a", version="0"))
        agent.ask(b"x")
    wait_until(lambda: len(os.listdir(process / "fd")) <= before)
    wait_until(lambda: {os.readlink(task / "cwd") for task in (process / "task").iterdir()} == {"/"})
    assert len(os.listdir(process / "task")) <= 5


@pytest.mark.users  # the machine's own CAP_SYS_NICE
def test_its_place_among_the_nodes_processes(agent: Process) -> None:
    """Container starts wait for it; and it needs a descriptor for each client."""
    assert os.getpriority(os.PRIO_PROCESS, agent.process.pid) == -10
    soft, hard = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 65536)


def test_stuck_requests_hold_up_neither_others_nor_its_end(agent: Process) -> None:
    """The --log of a refusal is a FIFO that nobody reads. systemd starts no other agent before this one has ended."""
    os.mkfifo(agent.directory / "log")
    (agent.directory / "broken").mkdir()
    (agent.directory / "broken/config.json").write_text("{")
    create = ["create", "--bundle", str(agent.directory / "broken"), "0a"]
    frame = agent.frame("--log", str(agent.directory / "log"), *create)
    stuck = [agent.send(frame) for _ in range(8)]
    assert agent.create() == protocol.go()
    stuck += [agent.send(frame) for _ in range(192)]
    wait_until(lambda: agent.status()["working"] == 200)
    began = time.monotonic()
    agent.end()
    assert time.monotonic() - began > 0.9, "it waits a second for them"
    for connection in stuck:
        connection.close()


WAITING = """
import sys
sys.path.insert(0, sys.argv[1])
from hook.agent.holder import Holder
from hook.resident.policy import Resident
from hook.core.policy.store import NoPolicy
at = sys.argv[2]
"""


@pytest.mark.parametrize(
    ("thread", "file"),
    [
        ("Resident(at + '/policy', at + '/store').get(0)", "store/.lock"),
        ("Holder(set()).hold(NoPolicy(at + '/policy', ''), at + '/compiled', at + '/log')", "log"),
    ],
)
def test_thread_that_waits_for_a_lease_holds_up_no_end(root_dir: Path, thread: str, file: str) -> None:
    """A container can have a lease on each file that it sees. systemd starts no other agent or plugin meanwhile."""
    (root_dir / "policy").write_text(document(RULE))
    (root_dir / "store").mkdir()
    (root_dir / file).touch()
    with leased(root_dir / file):
        subprocess.run([sys.executable, "-c", WAITING + thread, str(ROOT), str(root_dir)], check=True)
        with pytest.raises(BlockingIOError):  # the process has not waited until the kernel ended the lease
            os.open(root_dir / file, os.O_WRONLY | os.O_NONBLOCK)


def test_no_more_requests_than_the_limit(agent: Process) -> None:
    os.mkfifo(agent.directory / "log")
    agent.config.write_text("{")
    frame = agent.frame("--log", str(agent.directory / "log"), "create", "--bundle", str(agent.bundle), "0a")
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            stack.enter_context(agent.send(frame))
        wait_until(lambda: agent.status()["working"] == 256)
        assert agent.ask(frame) == protocol.cold("busy")
        assert len(os.listdir(f"/proc/{agent.process.pid}/task")) < 256 + 8
        reader = os.open(agent.directory / "log", os.O_RDONLY | os.O_NONBLOCK)  # lets them go
        wait_until(lambda: agent.status()["working"] == 0)
        os.close(reader)
    assert agent.create() == protocol.go()


@pytest.mark.parametrize("how", ["written", "renamed"])
def test_edit_of_the_policy_is_compiled_before_a_start_needs_it(agent: Process, how: str) -> None:
    """A broken one is held back, and its correction compiled."""
    new = document({**RULE, "env": [{"name": "CA", "value": "/new.pem"}]})
    for text, value in (("kind: [", "/ca.pem"), (new, "/new.pem")):
        path = Path(agent.policy) if how == "written" else agent.directory / "edit"
        path.write_text(text)
        path.rename(agent.policy)
        wait_until(agent.has_compiled)
        assert agent.create(value) == protocol.go()


def test_what_delays_other_starts_is_a_cold_starts(agent: Process) -> None:
    """A checkpoint of kubelet or a list that is far longer than usual."""
    rule = {"name": "gpu", "deviceAllocations": {"devices": True}}
    checkpoint = write_checkpoint(agent.directory, entry("pod-uid", "app", "GPU-4"))
    Path(agent.policy).write_text(document(RULE, rule, kubelet={"root": str(agent.directory)}))
    refresh(agent.policy, agent.store)
    create = agent.frame("create", "--bundle", ".", "0a")
    agent.config.write_text(json.dumps(config([], annotations=CONTAINERD)))
    assert agent.ask(create) == protocol.go()
    os.truncate(checkpoint, (32 << 20) + 1)
    assert agent.ask(create) == protocol.cold("size")
    for count, found in ((9000, protocol.go()), (10_001, protocol.cold("size"))):
        agent.config.write_text(json.dumps(config([f"A{number}=1" for number in range(count)])))
        assert agent.ask(create) in (found, protocol.cold("long"))


@pytest.mark.parametrize("name", ["socket", "events"])
def test_relative_path_is_told(name: str) -> None:
    done = reassert("agent", f"--{name}", "x")
    assert (done.returncode, done.stderr) == (2, f"reassert: --{name} takes an absolute path, not 'x'\n")
