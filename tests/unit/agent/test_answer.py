"""The agent over a socket: which clients it listens to, what it answers, and when it changes nothing."""

from __future__ import annotations

import array
import json
import os
import resource
import select
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import marks
import pytest

from hook import __version__
from hook.agent import told
from hook.agent.answers import LATE, Counters, Fallback
from hook.agent.clients import Client, Clients, Job
from hook.agent.memory import Memory
from hook.agent.service import listener_at
from hook.agent.work import Asking, answer
from hook.compile.in_force import refresh
from hook.core.base.errors import ReassertError, Usage
from hook.core.decide import Case
from hook.core.linux.mountns import own_directories
from hook.core.reserve.reserved_env import Reserved
from hook.core.verdict import Verdict
from hook.entry import SENTRY, protocol
from hook.entry import hook as hooks
from hook.entry.write_spec import stamp
from hook.resident.metrics import NoMetrics
from unit.core.linux.mountnamespace import MountNamespace, libc
from unit.shortage import free_descriptors
from unit.support import CONTAINERD, ROOT, config, document

pytestmark = [
    pytest.mark.root,
    marks.promise(
        "The agent does nothing for a caller that the kernel does not show to be the node's own root; front obeys"
        " no agent of another user or of a container"
    ),
]

Fixed = dict[str, Any]


class Agent:
    """Its socket and a node of its own. The policy sets CA; it mounts a directory at /etc/ssl in namespace team-ca."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bundle, self.ca = directory, directory / "bundle", directory / "node" / "ca"
        self.bundle.mkdir()
        self.config = self.bundle / "config.json"
        self.ns = MountNamespace(directory / "node")
        mount = {"mountPath": "/etc/ssl", "hostPath": str(self.ns.source)}
        env = {"name": "env", "env": [{"name": "CA", "value": "/ca.pem"}]}
        rules = env, {"name": "ca", "match": {"namespaces": ["team-ca"]}, "mounts": [mount]}
        (directory / "policy").write_text(document(*rules))
        refresh(f"{directory}/policy", f"{directory}/store")
        self.memory = Memory(f"{directory}/policy", f"{directory}/store", f"{directory}/events")
        self.counters = Counters(NoMetrics())
        self.poll = select.epoll()
        self.path = f"{directory}/run/sock"
        self.listener, self.ours = listener_at(self.path)
        self.clients = Clients(self.listener, self.poll, self.counters, lambda: b"status")
        self.front = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)  # waits
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(own_directories).result()

    def frame(
        self, *arguments: str, kind: str = "runtime", gets_hook: str = "", runtime_directory: str = "", **other: str
    ) -> bytes:
        """A request as front sends it. `gets_hook`: the dispatcher's --hook."""
        paths = (self.memory.source, self.memory.directory, self.memory.events)
        named = dict(zip(("policy", "store", "events"), paths, strict=True)) | {"version": __version__} | other
        head = [protocol.REQUEST.decode(), named["version"], kind, "/real", *(named[k] for k in ("policy", "store"))]
        return ("\0".join([*head, named["events"], gets_hook, runtime_directory, *arguments]) + "\0").encode()

    def connected(self, frame: bytes | None = None, *fds: int) -> socket.socket:
        """A connection, with what was sent."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(600)
        connection.connect(self.path)
        if frame is not None:
            connection.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        return connection

    def take(self) -> Job | None:
        """What the next ready descriptor brings."""
        [(fd, _)] = self.poll.poll(60, 1)
        return self.clients.take(fd)

    def ask(
        self, frame: bytes, given: int, late: float = 0.0, hung_up: bool = False, front: int = 0, umask: int = 0o22
    ) -> bytes:
        """The answer to a request. Raises Fallback. `late`: its age in seconds. `front`: the process that asks."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            client = Client(ours, front or self.front.pid, umask)
            client.began -= late
            if hung_up:
                theirs.close()
            request = protocol.Request(frame)
            return self._thread.submit(answer, self.memory, request, client, given).result()

    def write(self, **fields: Any) -> str:
        """Write config.json; its text."""
        text = json.dumps(config(["CA=/tmp/x"], **fields))
        self.config.write_text(text)
        return text

    def close(self) -> None:
        """End the threads and front."""
        self.front.communicate()
        self.clients.close()
        self._thread.shutdown()
        self.ns.close()


@pytest.fixture
def agent(root_dir: Path) -> Iterator[Agent]:
    agent = Agent(root_dir)
    yield agent
    agent.close()


@pytest.fixture
def here(agent: Agent) -> Iterator[int]:
    fd = os.open(agent.bundle, os.O_PATH)
    yield fd
    os.close(fd)


def cold(work: Callable[..., object], *given: Any, **more: Any) -> str:
    """Why the agent does not answer."""
    with pytest.raises(Fallback) as caught:
        work(*given, **more)
    return str(caught.value)


# -- clients


def test_request_with_its_descriptor_is_taken_and_its_caller_known(agent: Agent, here: int) -> None:
    mask = os.umask(0o27)
    try:
        with agent.connected(agent.frame("create", "0a"), here):
            job = agent.take()
    finally:
        os.umask(mask)
    assert job is not None
    assert (job.client.pid, job.client.umask, job.request.arguments) == (os.getpid(), 0o27, ["create", "0a"])
    assert os.path.samestat(os.fstat(job.given), os.fstat(here))
    assert not os.get_inheritable(job.given)
    os.close(job.given)


CALL = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
os.chroot(sys.argv[2])
os.umask(0o27)
print(os.getpid(), flush=True)
connection.recv(100)
"""


@pytest.mark.parametrize(
    ("before", "root", "is_ours"),
    [
        ("", "/", True),
        ("", "/proc", False),
        ("unshare --mount", "/", False),
        pytest.param("unshare --user --map-root-user", "/", False, marks=pytest.mark.users),  # none in a chroot
        ("unshare --pid --fork", "/", False),
        ("setpriv --bounding-set=-sys_time", "/", False),
    ],
)
def test_caller_counts_if_it_has_the_agents_root_namespaces_and_capabilities(
    agent: Agent, before: str, root: str, is_ours: bool
) -> None:
    command = [*before.split(), sys.executable, "-c", CALL, agent.path, root]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as caller:
        assert caller.stdout and caller.stdout.readline()
        assert agent.take() is None  # it has sent nothing yet
        found = [(client.unproven, client.umask) for client in agent.clients._silent.values()]
        agent.clients.close()
    assert found == [("", 0o27) if is_ours else ("caller", -1)]


def test_few_of_many_refused_callers_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container connects as often as it likes."""
    looked: list[int] = []

    def caller(pid: int) -> dict[str, object]:
        looked.append(pid)
        return {}

    monkeypatch.setattr(told, "caller", caller)
    began = time.monotonic()
    for pid in range(1000):
        told.tell_unanswered("caller", pid)
    seconds = int(time.monotonic() - began) + 2  # the first may have begun before
    assert 0 < len(looked) <= 20 * seconds


def test_request_that_comes_later_is_taken_then(agent: Agent, here: int) -> None:
    with agent.connected() as connection:
        assert agent.take() is None
        assert agent.poll.poll(0) == []
        connection.sendmsg(
            [agent.frame("create", "0a")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [here]))]
        )
        job = agent.take()
        assert job is not None
        os.close(job.given)
        agent.clients.expire()  # it is silent no longer
        assert agent.counters.as_json()["dropped"] == 0


@pytest.mark.parametrize(
    ("frame", "count", "why"),
    [
        (b"x", 1, "not a request"),
        (b"", 1, "closed without a request"),
        (None, 0, "the request has no descriptor"),
        (b"x" * (protocol.FRAME_LIMIT + 1), 1, "the request is too large"),
    ],
)
def test_client_that_no_front_can_be_is_dropped(
    agent: Agent, here: int, frame: bytes | None, count: int, why: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with agent.connected(agent.frame("create", "0a") if frame is None else frame, *[here] * count) as connection:
        assert agent.take() is None
        assert connection.recv(100) == b""
    assert agent.counters.new_drops() == {why: 1}
    assert len(os.listdir("/proc/self/fd")) == before


def test_silent_client_is_dropped_after_a_second_and_not_before(agent: Agent) -> None:
    with agent.connected() as connection:
        assert agent.take() is None
        began = time.monotonic()
        while not agent.counters.as_json()["dropped"]:
            agent.clients.expire()
            time.sleep(0.01)
        assert time.monotonic() - began > protocol.ANSWER_SECONDS - 0.1
        assert connection.recv(100) == b""
    assert agent.counters.new_drops() == {"no request within a second": 1}


def test_silent_clients_are_limited(agent: Agent, monkeypatch: pytest.MonkeyPatch, here: int) -> None:
    monkeypatch.setattr("hook.agent.clients.CLIENTS", 4)
    silent = []
    for _ in range(6):
        silent.append(agent.connected())
        assert agent.take() is None
    assert agent.counters.new_drops() == {"too many connections": 2}
    assert [connection.recv(10) for connection in silent[4:]] == [b"", b""]
    socket.send_fds(silent[0], [agent.frame("create")], [here])
    job = agent.take()
    assert job is not None
    os.close(job.given)
    silent.append(agent.connected())
    assert agent.take() is None
    assert agent.counters.new_drops() == {}, "one has sent its request"
    for connection in silent:
        connection.close()


def test_connection_that_fails_is_dropped_for_that(agent: Agent) -> None:
    """The kernel says so for what was in flight: a reset by the peer."""
    with agent.connected():
        assert agent.take() is None
        [client] = agent.clients._silent.values()
        client.connection.send(b"unread")
    assert agent.take() is None
    assert list(agent.counters.new_drops()) == ["Connection reset by peer"]


@pytest.mark.parametrize("free", range(4))
def test_caller_that_cannot_be_looked_at_is_no_foreign_one(
    agent: Agent, here: int, free: int, oplog_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Without a free descriptor the kernel is not asked: the reason is `error`, and the operation log has the error."""
    with agent.connected(agent.frame("create", "0a"), here) as connection:
        with free_descriptors(free):
            job = agent.take()
        if job:  # the descriptors were enough
            assert free == 3
            os.close(job.given)
            return
        agent.clients.expire()
        if free == 0:  # it is not accepted, and waits
            assert agent.counters.new_drops() == {"Too many open files": 1}
            connection.settimeout(0)
            with pytest.raises(BlockingIOError):
                connection.recv(100)
            return
        assert connection.recv(100) == protocol.cold("error")
    assert agent.counters.as_json()["cold"] == {"error": 1}
    [line] = [line for line in oplog_lines() if line["reason"] == "error"]
    assert (line["event"], "Too many open files" in line["error"]) == ("caller.refused", True)


def test_threads_that_close_the_connections_of_others_are_limited(agent: Agent) -> None:
    door, clients = agent.clients._door, [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(5)]
    door._THREADS = 2
    for ours, _ in clients:
        door.answer(ours, b"x")
    for _ in clients:
        door._moved = 0.0  # none was closed for long
        door.look_after()
    assert 1 <= len(door._threads) <= 2
    for _, theirs in clients:
        assert [theirs.recv(9), theirs.recv(9)] == [b"x", b""]
        theirs.close()


@pytest.mark.users
def test_client_of_another_user_is_dropped(agent: Agent) -> None:
    os.seteuid(65534)
    libc.setfsuid(0)  # it reaches the socket all the same
    try:
        connection = agent.connected()
    finally:
        os.seteuid(0)
    with connection:
        assert agent.take() is None
        assert connection.recv(100) == b""
    assert agent.counters.new_drops() == {"uid 65534 is not root": 1}


def test_request_for_whose_descriptor_none_is_free_is_an_error(agent: Agent, here: int) -> None:
    with agent.connected() as connection:
        assert agent.take() is None
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [here]))]
        connection.sendmsg([agent.frame("create", "0a")], sent)
        with free_descriptors(0):
            assert agent.take() is None
        assert connection.recv(100) == protocol.cold("error")
        agent.clients.expire()
        assert connection.recv(100) == b"", "it is closed, though not at once"


# -- the listening socket


def test_only_root_reaches_the_socket(agent: Agent) -> None:
    assert agent.ours
    assert stat.S_IMODE(os.stat(agent.path).st_mode) == 0o600
    assert stat.S_IMODE((agent.directory / "run").stat().st_mode) == 0o700
    assert os.listdir(agent.directory / "run") == ["sock"]


def test_path_that_is_not_free_or_safe_is_told(agent: Agent) -> None:
    run = agent.directory / "run"
    with pytest.raises(ReassertError, match="another agent listens on this socket"):
        listener_at(agent.path)
    agent.listener.close()
    listener, ours = listener_at(agent.path)  # nobody listens any more
    listener.close()
    assert ours
    for make, kind in ((Path.touch, "file"), (Path.mkdir, "directory")):
        make(run / kind)
        with pytest.raises(ReassertError, match=f"{kind} is a {kind}, not the agent's socket"):
            listener_at(f"{run}/{kind}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.bind(f"{run}/stranger")
        stranger.listen()
        with pytest.raises(ReassertError, match="another program uses this socket"):
            listener_at(f"{run}/stranger")
    run.chmod(0o750)
    with pytest.raises(ReassertError, match="must be a directory that only root may use"):
        listener_at(agent.path)
    with pytest.raises(Usage, match="at most 107 bytes"):
        listener_at("/" + "x" * 107)


LISTEN = """import os, sys
sys.path.insert(0, sys.argv[1])
from hook.agent.service import listener_at
try:
    listener, ours = listener_at(sys.argv[2])
    print(ours, listener.fileno(), listener.get_inheritable(), "LISTEN_PID" in os.environ or "LISTEN_FDS" in os.environ)
except Exception as error:
    print(error)"""


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (socket.SOCK_SEQPACKET, "LISTEN_FDS=1 LISTEN_PID=$$", "False 3 False False"),
        (socket.SOCK_STREAM, "LISTEN_FDS=1 LISTEN_PID=$$", "the socket unit has to have ListenSequentialPacket="),
        (socket.SOCK_SEQPACKET, "LISTEN_FDS=2 LISTEN_PID=$$", "another agent listens on this socket"),
        (socket.SOCK_SEQPACKET, "LISTEN_FDS=1 LISTEN_PID=1", "another agent listens on this socket"),
    ],
)
def test_systemds_socket_is_taken_over_and_not_removed(
    agent: Agent, kind: socket.SocketKind, given: str, found: str
) -> None:
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(f"{agent.directory}/run/systemds")
        listener.listen()
        script = f'exec 3<&"$1"; shift; {given} exec "$@"'
        program = [sys.executable, "-c", LISTEN, str(ROOT), agent.path]
        command = ["bash", "-c", script, "x", str(listener.fileno()), *program]
        done = subprocess.run(command, pass_fds=[listener.fileno()], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f"{found}\n"), done


# -- answers


@pytest.mark.parametrize(
    ("other", "how", "reason"),
    [
        ({"policy": "/other"}, {}, "options"),
        ({"store": "/other"}, {}, "options"),
        ({"events": "/other"}, {}, "options"),
        ({"version": "0.0.0"}, {}, "version"),
        ({}, {"late": protocol.ANSWER_SECONDS}, "late"),
        ({}, {"hung_up": True}, "late"),
    ],
)
def test_agent_that_must_not_answer_changes_nothing(
    agent: Agent, here: int, other: Fixed, how: Fixed, reason: str
) -> None:
    before = agent.write()
    frame = agent.frame("create", "--bundle", str(agent.bundle), "0a", **other)
    assert cold(agent.ask, frame, here, **how) == reason
    assert (agent.config.read_text(), os.listdir(agent.bundle)) == (before, ["config.json"])


def test_exec_is_corrected_where_the_callers_runtime_keeps_its_state(agent: Agent, here: int) -> None:
    """crun below XDG_RUNTIME_DIR, which is the caller's and not the agent's."""
    agent.write()
    assert agent.ask(agent.frame("create", "--bundle", str(agent.bundle), "0a"), here) == protocol.go()
    status, process = agent.directory / "crun/0a/status", agent.directory / "process.json"
    status.parent.mkdir(parents=True)
    status.write_text(json.dumps({"bundle": str(agent.bundle)}))
    process.write_text('{"env": ["CA=/tmp/x"]}')
    asked = agent.frame("exec", "--process", str(process), "0a", runtime_directory=str(agent.directory))
    assert agent.ask(asked, here) == protocol.go()
    assert json.loads(process.read_text())["env"] == ["CA=/ca.pem"]


def test_gofer_is_confined_by_a_cold_start_alone(agent: Agent, here: int) -> None:
    """The process that becomes the real runtime gets mounts of its own: a cold start, never the agent."""
    state(agent)
    frame = agent.frame("create", "--bundle", str(agent.bundle), "0a", gets_hook=SENTRY)
    assert cold(agent.ask, frame, here) == "mount"
    assert os.listdir(agent.bundle) == ["config.json"]


def test_file_that_no_free_descriptor_can_open_is_an_error(agent: Agent, here: int) -> None:
    """Only a path that depends on its reader is a reason `path`."""
    before = agent.write()
    frame = agent.frame("create", "--bundle", str(agent.bundle), "0a")
    with free_descriptors(2):  # for the socket pair
        assert cold(agent.ask, frame, here) == "error"
    assert agent.config.read_text() == before
    assert agent.ask(frame, here) == protocol.go()


def test_files_that_differ_for_the_caller_or_are_too_large_start_cold(agent: Agent, here: int) -> None:
    agent.write()
    (agent.directory / "cwd").symlink_to("/proc/self/cwd")
    os.mkfifo(agent.directory / "fifo")
    (agent.directory / "0a").mkdir()
    labels = {"labels": [f"bundle={agent.bundle}"]}
    (agent.directory / "0a/state.json").write_text(json.dumps({"config": labels}))
    (agent.directory / "0b").mkdir()
    (agent.directory / "0b/state.json").write_text('{"config": {"labels": ["bundle=/proc/self/cwd"]}}')
    assert agent.ask(agent.frame("create", "--bundle", str(agent.bundle), "0a"), here) == protocol.go()
    for arguments, reason in (
        (["create", "--bundle", "/proc/self/cwd", "0a"], "path"),
        (["create", "--bundle", f"/proc/thread-self/root{agent.bundle}", "0a"], "path"),
        (["create", "--bundle", f"{agent.directory}/cwd", "0a"], "path"),
        (["--root", f"{agent.directory}/cwd", "exec", "--process", "/p", "0a"], "path"),
        (["exec", "--process", "/proc/self/fd/0", "0a"], "path"),
        (["exec", "--process", "/dev/stdin", "0a"], "path"),
        (["create", "--bundle", "/dev", "0a"], "path"),
        (["create", "--config", str(agent.config), "--bundle", f"{agent.directory}/cwd", "0a"], "path"),
        (["--root", str(agent.directory), "exec", "--process", f"{agent.directory}/fifo", "0a"], "pipe"),
        (["--root", str(agent.directory), "exec", "--process", f"{agent.directory}/fifo", "0b"], "path"),
    ):
        assert cold(agent.ask, agent.frame(*arguments), here) == reason, arguments
    agent.config.write_text("{")
    refused, events = ["create", "--bundle", str(agent.bundle), "0a"], Path(agent.memory.events)
    before = events.read_text()
    assert cold(agent.ask, agent.frame("--log", "/proc/self/fd/1", *refused), here) == "path"
    assert events.read_text() == before, "the cold start tells of it"
    for umask, mode in ((0o22, 0o644), (0o77, 0o600)):
        log = agent.directory / f"log{umask}"
        answer = agent.ask(agent.frame("--log", str(log), *refused), here, umask=umask)
        assert (answer[:18], stat.S_IMODE(log.stat().st_mode)) == (protocol.refused(1, "")[:18], mode)
    with agent.config.open("a") as file:
        file.write(" " * (4 << 20))
    assert cold(agent.ask, agent.frame("create", "--bundle", str(agent.bundle), "0a"), here) == "size"


@pytest.mark.parametrize(
    ("file", "record"),
    [
        ("0a/state.json", {"config": {"labels": ["bundle=BUNDLE"]}}),  # runc
        ("0a/status", {"bundle": "BUNDLE"}),  # crun
        ("0a_sandbox:0a.state", {"bundleDir": "BUNDLE"}),  # runsc
    ],
)
def test_exec_finds_its_container_in_the_records_of_each_runtime(
    agent: Agent, here: int, file: str, record: Fixed
) -> None:
    agent.write(annotations=stamp({}, Reserved({"CA": "/ca.pem"}, []), fingerprint=""))
    target = agent.directory / "state" / file
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(record).replace("BUNDLE", str(agent.bundle)))
    line = ["--root", str(agent.directory / "state"), "exec", "-e", "CA={}", "0a", "sh"]
    asked, corrected = ([each.format(value) for each in line] for value in ("/tmp/x", "/ca.pem"))
    assert agent.ask(agent.frame(*asked), here) == protocol.changed(corrected)


# -- hooks


def state(agent: Agent, **process: Any) -> bytes:
    """What the runtime gives a hook on stdin, for a container of namespace team-ca that lacks the mount."""
    annotations = {**CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "team-ca"}
    made = config(["CA=/ca.pem"], annotations=annotations, root={"path": str(agent.ns.rootfs)})
    made["process"] |= process
    agent.config.write_text(json.dumps(made))
    return json.dumps({"id": "0a", "pid": agent.ns.pid, "bundle": str(agent.bundle)}).encode()


def hook(agent: Agent, stage: str, given: bytes, front: int = 0) -> bytes:
    """The answer to a hook. `front`: the process that asks."""
    fd = os.memfd_create("stdin")
    try:
        os.write(fd, given)
        return agent.ask(agent.frame(stage, kind="hook"), fd, front=front)
    finally:
        os.close(fd)


@pytest.mark.users  # setns(2), as in test_look
def test_agent_mounts_nothing_and_a_cold_hook_does(agent: Agent) -> None:
    """An agent that is late could mount after front gave up."""
    given = state(agent)
    assert cold(hook, agent, "createRuntime", given) == "mount"
    assert not agent.ns.rows("/etc/ssl")  # nor by an agent that is late

    class Caller(hooks.HookCaller):
        def state(self) -> bytes:
            return given

    where = [f"--{name}={getattr(agent.memory, of)}" for name, of in WHERE]
    caller = Caller(hooks.options_of([*where, "createRuntime"]), {})
    assert agent._thread.submit(hooks.run, caller).result() == 0
    assert len(agent.ns.rows("/etc/ssl")) == 1
    assert cold(hook, agent, "createRuntime", given) == "mount"  # read-only for a container that can remount
    given = state(agent, capabilities={"bounding": []})
    assert hook(agent, "createRuntime", given) == protocol.go()
    assert cold(hook, agent, "createRuntime", given + b" " * (4 << 20)) == "size"
    assert cold(hook, agent, "createRuntime", given.replace(str(agent.bundle).encode(), b"/")) == "bundle"
    for stage, reason in (("createContainer", "stage"), ("precreate", "options"), ("none", "options")):
        assert cold(hook, agent, stage, given) == reason


def test_hook_is_answered_whatever_the_runtimes_arguments_are(agent: Agent) -> None:
    """Whether the runtime restores a checkpoint is read of its command line, which can have any byte."""
    given = state(agent, capabilities={"bounding": []}).replace(b"team-ca", b"team-a")
    agent.config.write_text(agent.config.read_text().replace("team-ca", "team-a"))
    shell = ["sh", "-c", "sleep 60 & echo $!; wait", b"\xff"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE) as runtime:
        assert runtime.stdout
        front = int(runtime.stdout.readline())
        assert hook(agent, "createRuntime", given, front) == protocol.go()
        os.kill(front, 9)


WHERE = (("policy", "source"), ("store", "directory"), ("events", "events"))


# -- probes and counts


def test_start_without_an_event_names_its_runtime_or_else_its_container(agent: Agent, here: int) -> None:
    """Of a hook `status` finds the runtime by the container's id; the wrapper is told its real runtime."""
    given = state(agent, capabilities={"bounding": []}).replace(b'"0a"', b'"0b"')
    agent.config.write_text(agent.config.read_text().replace("team-ca", "team-a"))
    assert hook(agent, "createRuntime", given) == protocol.go()
    assert agent.ask(agent.frame("create", "--bundle", str(agent.bundle), "0a"), here) == protocol.go()
    last = agent.memory.starts.as_json()
    found = [(each["runtime"], each["exec"], [start.get("id") for start in each["starts"]]) for each in last]
    assert found == [("", False, ["0b"]), ("/real", False, [None])]


def test_probe_of_node_verify_is_counted_apart_and_cold_where_it_is_to_be(
    agent: Agent, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = agent.directory / "probes"
    monkeypatch.setattr("hook.core.events.PROBES", str(marks))
    counted: list[bool] = []

    class Counts(NoMetrics):
        def unchanged(self, adapter: str, probe: bool) -> None:
            counted.append(probe)

    agent.memory.starts.metrics = Counts()
    name = "0a" * 32
    (agent.directory / "unchanged").mkdir()
    (agent.directory / "unchanged/config.json").write_text(json.dumps(config(["CA=/ca.pem"])))

    def asked() -> bytes:
        return agent.ask(agent.frame("create", "--bundle", f"{agent.directory}/unchanged", name), here)

    given = state(agent, capabilities={"bounding": []}).replace(b'"0a"', f'"{name}"'.encode())
    assert asked() == protocol.go()
    assert len(agent.memory.starts.as_json()) == 1
    marks.mkdir()
    (marks / name).touch()
    assert asked() == protocol.go()
    assert counted == [False, True]
    assert [len(each["starts"]) for each in agent.memory.starts.as_json()] == [1], "it is no start of the node's users"
    (marks / name).write_text(protocol.COLD_PROBE)
    assert cold(asked) == cold(hook, agent, "createRuntime", given) == "probe"


@marks.hole(
    "A correction that the agent made just before front's deadline had no event",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
    found="fuzz",
)
def test_correction_that_is_in_place_has_its_event_though_front_waits_no_longer(agent: Agent, here: int) -> None:
    """A cold start would find the corrected file, and would have no event to write."""
    agent.write()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        request = protocol.Request(agent.frame("create", "0a"))
        caller = Asking(agent.memory, request, Client(ours, agent.front.pid, 0o22), here)
        other = Asking(agent.memory, request, Client(ours, agent.front.pid, 0o22), here)
        case, verdict = Case(caller, "0a"), Verdict()
        verdict.event = {"event": "container.edited"}
        caller.replace(str(agent.config), b"{}")
        theirs.close()
        caller.report(case, verdict)
        assert cold(other.report, case, verdict) == LATE, "nothing was replaced"
    [line] = Path(agent.memory.events).read_text().splitlines()
    assert json.loads(line)["event"] == "container.edited"


def test_to_ask_whether_front_still_waits_takes_no_wait(agent: Agent, here: int) -> None:
    """A start asks between all its steps. A thread that sleeps has given the processor away (getrusage(2))."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        client = Client(ours, agent.front.pid, 0o22)
        client.began += 60
        caller = Asking(agent.memory, protocol.Request(agent.frame("create", "0a")), client, here)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(100):
            caller.still_waits()
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 50


def test_exec_that_went_cold_after_its_file_was_replaced_is_counted_once(agent: Agent, here: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        request = protocol.Request(agent.frame("exec", "0a"))
        caller = Asking(agent.memory, request, Client(ours, agent.front.pid, 0o22), here)
        case = Case(caller, "0a")
        caller.replace(str(agent.config), b"{}")
        caller.count(case, is_exec=True)
        theirs.close()
        assert cold(caller.count, case, is_exec=True) == LATE
    assert [len(each["starts"]) for each in agent.memory.starts.as_json()] == [1]
