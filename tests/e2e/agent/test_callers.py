"""Callers that the kernel does not show to be the node's own: nothing that they send changes a file.

Each connects to the socket, as one can whose container has a hostPath of /run, and sends requests of every kind, forged
to look like front's.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.paths import REASSERT, RUNTIMES
from harness.tools import need, run

from e2e.agent.support import Agent, Cold
from e2e.stalled import stalling
from hook.agent.answers import CALLER
from hook.entry import protocol

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.engine,
    pytest.mark.root,
    pytest.mark.users,
    marks.promise(
        "The agent does nothing for a caller that the kernel does not show to be the node's own root; front obeys"
        " no agent of another user or of a container",
        about="Agent",
    ),
]

SEND = """
import json, os, socket, sys
path, frames = sys.argv[1], json.load(open(sys.argv[2]))
file = os.open(sys.argv[2], os.O_RDONLY)
os.chdir(os.path.dirname(path))
os.setuid(int(sys.argv[3]))
for frame in map(bytes.fromhex, frames):
    for fds in ([], [os.open("/", os.O_PATH)], [os.open("/dev/null", os.O_RDONLY)], [file], [file, file]):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            try:
                connection.settimeout(600)
                connection.connect(os.path.basename(path))
                socket.send_fds(connection, [frame], fds)
                print(connection.recv(1 << 17).hex() or "closed", flush=True)
            except OSError as error:
                print("closed", error, flush=True)
print("done", flush=True)
"""
"""Prints the answer to each frame, with and without a descriptor."""

COLD_ANSWER = protocol.cold(CALLER).hex()
STATUS_ANSWER = b'{"version"'.hex()


class Target:
    """An agent, files of the node that its requests could change, and requests that would change them."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.bundle = agent.node.directory / "victim"
        (self.bundle / "rootfs").mkdir(parents=True)
        self.config = self.bundle / "config.json"
        self.config.write_text(json.dumps({"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}, "root": {"path": "rootfs"}}))
        self.broken = agent.node.directory / "broken"
        self.broken.mkdir()
        (self.broken / "config.json").write_text("{")
        self.process = agent.node.directory / "process.json"
        self.process.write_text('{"args": ["true"], "env": ["REQUESTS_CA_BUNDLE=x"]}')
        self.log = agent.node.directory / "profile.sh"
        self.log.write_text("# of the node\n")
        state = agent.node.directory / "state" / "0a"
        state.mkdir(parents=True)
        (state / "state.json").write_text(json.dumps({"config": {"labels": [f"bundle={self.bundle}"]}}))
        self.frames = self.forged()
        self.program = agent.node.directory / "send.py"
        self.program.write_text(SEND)
        self.requests = agent.node.directory / "requests.json"
        self.requests.write_text(json.dumps([frame.hex() for frame in self.frames]))
        self.before = self.files()

    def forged(self) -> list[bytes]:
        """A request of each kind, for each file that it could change."""
        frame, log = self.agent.frame, ("--log", str(self.log))
        state = ("--root", str(self.agent.node.directory / "state"))
        bundle, broken = ("--bundle", str(self.bundle)), ("--bundle", str(self.broken))
        hook = ("--bundle", str(self.bundle), "--config", str(self.broken / "config.json"), "createRuntime")
        return [
            protocol.STATUS,
            frame("create", *bundle, "0a"),
            frame("run", *bundle, "0a"),
            frame("create", "--config", str(self.config), *bundle, "0a"),
            frame(*log, "create", *broken, "0a;echo PWNED"),
            frame("--log-format", "json", *log, "create", *broken, "0a"),
            frame(*state, "exec", "--process", str(self.process), "0a"),
            frame(*log, *state, "exec", "--process", str(self.broken / "config.json"), "0a"),
            frame(*hook, kind="hook"),
            frame("--inject-env", "createRuntime", kind="hook"),
            frame("create", *bundle, "0a", version="9.9"),
            b"no request\\0",
        ]

    def files(self) -> dict[str, tuple[str, int]]:
        """The node's files that its own processes do not write meanwhile."""
        found = {}
        for directory, below, names in os.walk(self.agent.node.directory):
            if directory == str(self.agent.node.directory):
                below[:] = ["victim", "broken", "state", "etc", "ca"]
            for path in (Path(directory, name) for name in names if name != "agent.stderr"):
                found[str(path)] = (path.read_text(errors="replace"), path.lstat().st_ino)
        return found

    def assert_nothing_came(self, output: str, refused: str = COLD_ANSWER) -> None:
        """Every request was answered so, or its connection was closed; no file changed and no event was written."""
        assert self.files() == self.before
        *answers, last = output.splitlines()
        assert last == "done", output
        assert len(answers) == 5 * len(self.frames)
        status, rest = answers[:5], answers[5:]
        assert {answer.split()[0] for answer in rest} <= {refused, "closed"}, output
        assert refused == "closed" or all(answer.startswith(STATUS_ANSWER) for answer in status), output
        told = [event for event in self.agent.node.logged() if not event["event"].startswith("agent.")]
        assert not told

    def ask_by(self, *before: str, name: str = "/usr/bin/python3", uid: int = 0) -> str:
        """What the sender prints that a command of the node runs."""
        command = [*before, name, str(self.program), str(self.agent.socket), str(self.requests), str(uid)]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


@pytest.fixture
def target(agent: Agent) -> Iterator[Target]:
    yield Target(agent)
    assert agent.process and agent.process.poll() is None, agent.said()


def with_python(agent: Agent, *arguments: str) -> Bundle:
    """A container that runs the node's Python."""
    bundle = Bundle(agent.node.directory / "caller", ["/usr/bin/python3", *arguments])
    for name in ("lib", "lib64"):
        (bundle.rootfs / name).symlink_to(f"usr/{name}")
    bundle.bind("/usr", "/usr", "ro")
    return bundle


def contained(target: Target, real: str, spec: dict[str, object], **linux: object) -> str:
    """What the sender prints in a container that has the socket's directory, read-only. `spec`: of its process."""
    bundle = with_python(target.agent, "/send.py", "/s/agent.sock", "/r", "0")
    bundle.bind(target.program, "/send.py", "ro")
    bundle.bind(target.requests, "/r", "ro")
    bundle.bind(target.agent.socket.parent, "/s", "ro")
    bundle.spec["process"].update(spec)
    bundle.spec["linux"].update(linux)
    bundle.save()
    with Running(real, bundle) as container:
        return container.wait_for("done\n")


NONE: dict[str, object] = {"capabilities": {}}
RIGHTS = ("chown", "dac_override", "dac_read_search", "fowner", "fsetid", "sys_admin", "sys_chroot", "sys_ptrace")
"""Of packaging/systemd/reassert-agent.service."""

ALL = [f"CAP_{name.upper()}" for name in RIGHTS]


PRIVILEGED = {"capabilities": dict.fromkeys(("bounding", "effective", "permitted"), ALL)}
HOST_PID = [{"type": kind} for kind in ("mount", "ipc", "uts")]
CONTAINERS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "uid 0 without a capability": ("runc", NONE, {}),
    "privileged, as docker in docker": ("crun", PRIVILEGED, {}),
    "hostPID": ("runc", NONE, {"namespaces": HOST_PID}),
}
"""Its runtime, and what is special in `process` and in `linux` of its config.json."""


@marks.hole(
    "Root of a container without capabilities replaced files of the node through the agent's socket",
    since="0.3.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container(target: Target, name: str) -> None:
    runtime, process, linux = CONTAINERS[name]
    target.assert_nothing_came(contained(target, RUNTIMES[runtime], process, **linux))


REJOIN = "import ctypes, os, sys; root = os.open('/', os.O_PATH); assert not ctypes.CDLL(None).unshare(0x20000); "
REJOIN += "os.fchdir(root); os.chroot('.'); os.execv(sys.argv[1], sys.argv[1:])"
"""Another mount namespace with the agent's own root directory, by a descriptor from before."""


@pytest.mark.parametrize(
    "before",
    [
        ("unshare", "--mount"),
        ("unshare", "--pid", "--fork"),
        ("unshare", "--user", "--map-root-user"),  # its uid 0 is the node's root, and has all capabilities there
        ("/usr/bin/python3", "-c", REJOIN),
    ],
    ids=["mount", "pid", "user", "mount with the node's root"],
)
def test_another_namespace(target: Target, before: tuple[str, ...]) -> None:
    output = target.ask_by(*before)
    target.assert_nothing_came(output)
    assert COLD_ANSWER in output


@contextmanager
def another_root() -> Iterator[Path]:
    """The machine's root directory by another mount, with /proc, /dev and the tests' directories.

    Read-only, and in a directory that is removed only while it is empty: where it cannot be unmounted, nothing may
    take it for a scratch directory and remove what is in it.
    """
    root = Path(tempfile.mkdtemp(dir="/run"))
    try:
        run("mount", "--bind", "--make-private", "/", str(root))
        run("mount", "-o", "remount,bind,ro", str(root))
        for name in ("dev", "proc", "var/lib/reassert-tests"):
            run("mount", "--bind", "--make-private", f"/{name}", str(root / name))
            run("mount", "-o", "remount,bind,ro", str(root / name))
        yield root
    finally:
        run("umount", "--lazy", str(root), check=False)
        root.rmdir()


def test_another_root_directory(target: Target) -> None:
    """The node's own, by another mount: the same inode and device, in the node's mount namespace."""
    with another_root() as root:
        output = target.ask_by("chroot", str(root))
    target.assert_nothing_came(output)
    assert COLD_ANSWER in output


def test_too_few_capabilities_in_the_nodes_own_namespaces(target: Target) -> None:
    """Of those that the agent has. Under a name that looks like the line of /proc/PID/status that says it."""
    target.agent.stop()
    target.agent.start("setpriv", "--bounding-set", ",".join(["-all", *[f"+{right}" for right in RIGHTS]]))
    name = target.agent.node.directory / "CapEff:\tfffffff"
    name.symlink_to("/usr/bin/python3")
    target.before = target.files()
    for drop in ("-all", "-sys_admin", "-dac_override"):
        output = target.ask_by("setpriv", "--bounding-set", drop, "--inh-caps", drop, name=str(name))
        target.assert_nothing_came(output)
        assert COLD_ANSWER in output


def test_an_ordinary_user_with_an_open_socket(target: Target) -> None:
    target.agent.socket.chmod(0o666)
    target.agent.socket.parent.chmod(0o755)
    target.assert_nothing_came(target.ask_by(uid=65534), "closed")


HEIR = """
import ctypes, os, signal, socket, subprocess, sys, time
def heir_of(pid):
    heir = None
    while heir is None or heir.pid != pid:
        if heir:
            heir.kill()
            heir.wait()
        open("/proc/sys/kernel/ns_last_pid", "w").write(str(pid - 1))
        heir = subprocess.Popen(["sleep", "60"])
    return heir
"""
"""A process of the node, with all its rights, that gets the number of one that has ended."""

REUSE = (
    HEIR
    + """
path, frame, *command = sys.argv[1:]
agent = subprocess.Popen(command)
for _ in range(2000):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        if os.path.exists(path) and probe.connect_ex(path) == 0:
            break
    time.sleep(0.01)
agent.send_signal(signal.SIGSTOP)
os.waitid(os.P_PID, agent.pid, os.WSTOPPED)
reader, writer = os.pipe()
caller = os.fork()
if not caller:  # connects without a capability, and leaves the connection to a process of its own
    ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    socket.send_fds(connection, [bytes.fromhex(frame)], [os.open("/", os.O_PATH)])
    if os.fork():
        os._exit(0)
    connection.settimeout(600)
    try:
        os.write(writer, connection.recv(1 << 17).hex().encode() or b"closed")
    except OSError:
        os.write(writer, b"closed")
    os._exit(0)
os.close(writer)
os.waitpid(caller, 0)
heir = heir_of(caller)
agent.send_signal(signal.SIGCONT)
print(os.read(reader, 1 << 17).decode())
heir.kill()
agent.terminate()
agent.wait()
"""
)
"""In a pid namespace of its own, where nobody else takes a number."""


def test_a_caller_that_exits_and_whose_pid_a_process_of_the_node_gets(target: Target) -> None:
    agent = target.agent
    agent.stop()
    options = [str(REASSERT), "agent", "--socket", str(agent.socket), *agent.node.options()]
    create, in_exec, in_hook = (target.frames[at] for at in (1, 6, 8))
    for frame in (create, in_exec, in_hook):
        inside = ["/usr/bin/python3", "-c", REUSE, str(agent.socket), frame.hex(), *options]
        done = run("unshare", "--pid", "--fork", "--mount-proc", *inside)
        assert done.stdout.strip() in (COLD_ANSWER, "closed"), done
        assert target.files() == target.before
    agent.start()


CHROOTED = """
import os, socket, sys, time
agent = os.open("/s", os.O_RDONLY | os.O_DIRECTORY)
os.chroot("/volume")
os.fchdir(agent)
print("chrooted", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]
for each in held:
    each.connect("agent.sock")
print("connected", flush=True)
time.sleep(100)
"""
"""Callers whose root directory is in a volume."""


@marks.hole(
    "Three connections from a file system that hangs froze the agent and the NRI plugin",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_callers_whose_root_directory_does_not_answer_hold_no_start_up(start: Cold) -> None:
    """uid 0 with CAP_SYS_CHROOT, which containerd gives each container; the socket's directory is read-only."""
    agent = start.agent
    assert not start.is_cold()
    bundle = with_python(agent, "-c", CHROOTED)
    kinds = ("bounding", "effective", "permitted")
    bundle.spec["process"]["capabilities"] = {kind: ["CAP_SYS_CHROOT"] for kind in kinds}
    with stalling(agent.node.directory) as volume:
        bundle.bind(agent.socket.parent, "/s", "ro")
        bundle.bind(volume.path, "/volume", "ro")
        bundle.save()
        with Running(RUNTIMES["crun"], bundle) as container:
            container.wait_for("chrooted")
            volume.stall()
            (agent.socket.parent / "go").touch()
            container.wait_for("connected")
            assert [start.is_cold() for _ in range(5)] == [False] * 5
            assert agent.stop() == 0, "it ends at once"
            volume.answer()


IN_ITS_PLACE = """
import os, socket, sys
os.unlink("/s/agent.sock")
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("/s/agent.sock")
listener.listen()
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    connection.recv(1 << 17)
    connection.send(bytes.fromhex(sys.argv[1]))
    connection.close()
"""


@marks.hole(
    "uid 0 of a container with a writable hostPath of /run took the agent's place, and its own bundle ran as root",
    since="0.3.0",
    fixed="0.4.0",
    severity="medium",
)
def test_a_container_in_the_agents_place_is_not_asked(start: Cold) -> None:
    """uid 0 and no capability, with a writable hostPath of the socket's directory."""
    agent = start.agent
    assert not start.is_cold()
    bundle = with_python(agent, "-c", IN_ITS_PLACE, protocol.go().hex())
    bundle.bind(agent.socket.parent, "/s")
    bundle.spec["process"].update(NONE)
    bundle.save()
    with Running(RUNTIMES["crun"], bundle) as container:
        container.wait_for("listening")
        assert start.reason() == "peer"
        start.assert_right()


INHERITED = (
    HEIR
    + """
path, answer, file = sys.argv[1:]
ready, write = os.pipe()
liar = os.fork()
if liar == 0:  # listens, and leaves the socket to a process of its own
    assert not ctypes.CDLL(None).unshare(0x20000)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    if os.fork():
        os._exit(0)
    os.write(write, b"x")
    while True:
        connection, _ = listener.accept()
        connection.recv(1 << 17)
        connection.send(bytes.fromhex(answer))
        connection.close()
os.read(ready, 1)
os.waitpid(liar, 0)
heir_of(liar)
done = subprocess.run([file, "create", "0a"], stderr=subprocess.PIPE)
print(done.returncode, done.stderr.decode())
"""
)
"""In a pid namespace of its own, where nobody else takes a number, and which ends with it."""


@marks.hole(
    "uid 0 of a container with a writable hostPath of /run took the agent's place, and its own bundle ran as root"
)
def test_the_pid_of_a_listener_that_has_ended_proves_nothing(start: Cold) -> None:
    start.agent.stop()
    start.agent.socket.unlink(missing_ok=True)
    inside = ["/usr/bin/python3", "-c", INHERITED, str(start.agent.socket), protocol.go().hex(), start.file]
    done = run("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *inside)
    assert done.stdout.split() == ["99", "--cold=peer"], done


LINGER = """
import os, select, socket, struct, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
server.bind(("127.0.0.1", 0))
server.listen(100)
asked = []
held = []
for _ in range(20):
    lingers = socket.create_connection(server.getsockname())
    held.append(server.accept())
    lingers.setblocking(False)
    try:
        while True:
            lingers.send(b"x" * 65536)
    except BlockingIOError:
        pass
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    asked.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    asked[-1].connect(sys.argv[1])
    socket.send_fds(asked[-1], [b"x"], [lingers.fileno()])
    lingers.close()
print("sent", flush=True)
asked[0].recv(1 << 16)
print("answered", flush=True)
closed = select.poll()
for one in asked:  # which is closed first, and waits, the agent's threads decide
    closed.register(one, select.POLLRDHUP)
closed.poll()
print("closed", flush=True)
sys.stdin.read()
"""
"""Passes the last descriptors of sockets whose close(2) waits for a reader."""


@marks.hole(
    "Root of a container that became another user passed descriptors whose close(2) waits, and froze agent "
    "and NRI plugin",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("uid", [0, 65534])
def test_descriptors_whose_close_waits_hold_no_start_up(start: Cold, uid: int) -> None:
    """Of a caller with CAP_DAC_OVERRIDE, with which root of a container that becomes another user finds the socket."""
    agent = start.agent
    assert not start.is_cold()
    agent.stop(signal.SIGSTOP)
    rights = ["--bounding-set=-all,+dac_override", "--inh-caps=-all,+dac_override"]
    if uid:
        rights += ["--ambient-caps=-all,+dac_override", f"--reuid={uid}"]
    command = ["setpriv", *rights, "/usr/bin/python3", "-c", LINGER, str(agent.socket)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        try:
            assert sender.stdout and sender.stdout.readline() == b"sent\n"
            assert agent.process
            agent.process.send_signal(signal.SIGCONT)
            assert not start.is_cold()
            assert sender.stdout.readline() == b"answered\n"
            assert sender.stdout.readline() == b"closed\n"
            assert [start.is_cold() for _ in range(5)] == [False] * 5
        finally:
            sender.kill()


OLD_KERNEL = """
import ctypes, os, struct, sys
ARCH, NUMBER = {"x86_64": (0xC000003E, 55), "aarch64": (0xC00000B7, 209)}[os.uname().machine]
code = [
    (0x20, 0, 0, 4), (0x15, 0, 5, ARCH),    # seccomp_data.arch
    (0x20, 0, 0, 0), (0x15, 0, 3, NUMBER),  # getsockopt
    (0x20, 0, 0, 32), (0x15, 0, 1, 77),     # its third argument
    (0x06, 0, 0, 0x00050000 | 92),          # ENOPROTOOPT
    (0x06, 0, 0, 0x7FFF0000),
]
filter = b"".join(struct.pack("HBBI", *one) for one in code)
buffer = ctypes.create_string_buffer(filter)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)))
assert ctypes.CDLL(None).prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a program as on Linux before 6.5: seccomp(2) hides SO_PEERPIDFD."""


def test_on_a_kernel_without_so_peerpidfd(target: Target, start: Cold) -> None:
    need(platform.machine() in ("x86_64", "aarch64"), "seccomp's numbers of this architecture")
    target.agent.stop()
    target.agent.start("/usr/bin/python3", "-c", OLD_KERNEL)
    target.before = target.files()
    assert not start.is_cold()
    start.assert_right()
    target.before = target.files()
    target.assert_nothing_came(target.ask_by("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
