"""Real containers through front and the agent; and everything after which a start is cold."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.agent.support import PRINTER, WENT_COLD, Agent
from e2e.support import POLICY, REASSERT, Bundle, Running, run

pytestmark = [pytest.mark.frozen, pytest.mark.engine, pytest.mark.root]
RUNC = "/usr/sbin/runc"
WANTED = "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"


@pytest.fixture
def bundle(agent: Agent) -> Bundle:
    bundle = Bundle(agent.node.directory / "bundle")
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=x"]
    bundle.save()
    return bundle


def test_a_containers_life(agent: Agent, bundle: Bundle) -> None:
    """Nothing of it starts cold: create with the look at its mounts, exec, state, delete."""
    hook = agent.only_warm(agent.hook_file())
    file = agent.dispatcher(RUNC)
    Path(file).write_text(Path(file).read_text().replace(agent.hook_file(), hook))
    with Running(agent.only_warm(file), bundle) as running:
        assert WANTED in running.environ()
        assert [(point, "ro" in options.split(",")) for _, point, options in running.mounts()] == [("/etc/ssl", True)]
        assert WANTED in running.exec("/bin/env", options=("-e", "REQUESTS_CA_BUNDLE=y")).splitlines()
    (event,) = [event for event in agent.node.logged() if event["adapter"] == "runtime"]
    assert (event["event"], event["applied"], event["verified"]) == ("container.edited", True, "container")


def test_what_has_to_be_mounted_is_mounted_by_a_cold_start(agent: Agent, bundle: Bundle) -> None:
    """The image leads the path elsewhere, so that the runtime's mount is not where it is to be."""
    (bundle.rootfs / "etc/ssl/certs/image.crt").unlink()
    (bundle.rootfs / "etc/ssl/certs").rmdir()
    (bundle.rootfs / "etc/ssl").rmdir()
    (bundle.rootfs / "etc/ssl").symlink_to("/etc/pki")
    hook = agent.hook_file()
    with Running(agent.dispatcher(RUNC), bundle) as running:
        assert running.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"
    assert Path(hook).exists()


def test_a_mount_that_a_hook_took_away_is_put_back(agent: Agent, bundle: Bundle) -> None:
    """As with the cold hook: what the look misses, it mounts. Warm cannot, and says so to nobody but front."""
    config = bundle.saved()
    script = bundle.directory / "umount.sh"
    script.write_text('#!/bin/sh\npid=$(sed \'s/.*"pid":\\([0-9]*\\).*/\\1/\')\nexec nsenter -t "$pid" -m umount -l '
                      f"{bundle.rootfs}/etc/ssl\n")  # fmt: skip
    script.chmod(0o755)
    config["hooks"] = {"createRuntime": [{"path": str(script)}]}
    bundle.config.write_text(json.dumps(config))
    with Running(agent.dispatcher(RUNC), bundle) as running:
        assert running.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"


def edited_after_create(agent: Agent, policy: str, real: str = RUNC) -> str:
    """A dispatcher to a runtime that changes the policy before it creates the container."""
    new = agent.node.policy.with_name("new.yaml")
    new.write_text(agent.node.placed(policy))
    script = agent.node.directory / "edits"
    script.write_text(f'#!/bin/sh\n[ "$1" != create ] || cp {new} {agent.node.policy}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return agent.dispatcher(str(script))


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_a_policy_that_is_edited_between_create_and_its_hook(agent: Agent, bundle: Bundle, way: str) -> None:
    """The container starts with the env that create gave it; its own hook does not hold the edit against it."""
    file = edited_after_create(agent, POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/new.pem"))
    with Running(file if way == "warm" else agent.only_cold(file), bundle) as running:
        assert WANTED in running.environ()
        assert "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt" in running.exec("/bin/env").splitlines()
    config = bundle.saved()
    del config["annotations"]["reassert/decision"]  # nobody decided
    bundle.config.write_text(json.dumps(config))
    assert "env REQUESTS_CA_BUNDLE is not what the policy wants" in Running(RUNC, bundle).refused()


CHANGES = {
    "another reserved name": ("    mounts:", "    - {name: LATER, value: x}\n    mounts:", "env LATER is not what the"),
    "no such mount": ("mountPath: /etc/ssl", "mountPath: /etc/pki", "mount /etc/ssl was reserved at create"),
    "a denial": ("    mounts:", "    onConflict: Deny\n    mounts:", "env HTTP_PROXY must be absent and was set"),
}  # fmt: skip
"""Edits of the policy between create and its hook, and what the container is refused for."""


@pytest.mark.parametrize("way", ["warm", "cold"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_newer_policy_wants_is_not_lost(agent: Agent, bundle: Bundle, change: str, way: str) -> None:
    """Only the values of env names that create decided about are left as they were then."""
    old, text, refusal = CHANGES[change]
    policy = POLICY.replace(old, text)
    if change == "a denial":
        policy = policy.replace("PYTHONHTTPSVERIFY", "HTTP_PROXY")
        bundle.spec["process"]["env"] += ["HTTP_PROXY=x"]
        bundle.save()
    file = edited_after_create(agent, policy)
    assert refusal in Running(file if way == "warm" else agent.only_cold(file), bundle).refused()


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_env_that_is_not_what_create_decided_is_refused_after_a_change_of_the_policy(
    agent: Agent, bundle: Bundle, way: str
) -> None:
    """Something behind the wrapper takes it away, while the policy is edited too."""
    real = agent.node.directory / "spoils"
    real.write_text(f'#!/bin/sh\n[ "$1" != create ] || sed -i "s,{WANTED},REQUESTS_CA_BUNDLE=/evil," {bundle.config}\n'
                    f'exec {RUNC} "$@"\n')  # fmt: skip
    real.chmod(0o755)
    file = edited_after_create(agent, POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/new.pem"), str(real))
    refused = Running(file if way == "warm" else agent.only_cold(file), bundle).refused()
    assert "env REQUESTS_CA_BUNDLE is not what the policy wants" in refused
    assert "create it again" in refused


class Cold:
    """A dispatcher before a printer; the agent's answers are seen by the status of a file that cannot start cold."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        real = agent.node.directory / "runc"
        real.write_text(PRINTER)
        real.chmod(0o755)
        self.full = agent.dispatcher(str(real))
        self.file = agent.only_warm(self.full)
        self.bundle = agent.node.directory / "bundle"
        self.bundle.mkdir()
        self.reset()

    def reset(self) -> None:
        (self.bundle / "config.json").write_text(json.dumps({"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}}))

    def is_cold(self, *arguments: str, before: tuple[str, ...] = (), **options: object) -> bool:
        options = {"cwd": self.bundle, "stdin": subprocess.DEVNULL, **options}
        command = [*before, self.file, *(arguments or ("create", "0a"))]
        done = subprocess.run(command, capture_output=True, timeout=60, **options)  # type: ignore[call-overload]  # options of run
        assert done.returncode in (0, WENT_COLD), done.stderr
        return bool(done.returncode)

    def assert_right(self) -> None:
        """A start of the whole file gets a corrected config.json, whoever corrects it."""
        self.reset()
        done = subprocess.run([self.full, "create", "0a"], cwd=self.bundle, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        assert WANTED in (self.bundle / "config.json").read_text()


@pytest.fixture
def start(agent: Agent) -> Cold:
    return Cold(agent)


def test_warm_where_nothing_is_wrong(start: Cold) -> None:
    assert not start.is_cold()
    start.assert_right()


def test_cold_without_a_socket(start: Cold) -> None:
    start.agent.stop()
    assert not start.agent.socket.exists()
    assert start.is_cold()
    start.assert_right()


def test_cold_before_a_socket_that_nobody_serves(start: Cold) -> None:
    start.agent.stop(signal.SIGKILL)
    assert start.agent.socket.exists()
    assert start.is_cold()
    start.assert_right()
    start.agent.start()  # in the place of the dead one's
    assert not start.is_cold()


def test_cold_with_another_users_socket(start: Cold) -> None:
    start.agent.stop()
    command = (
        "import socket, os, time; s = socket.socket(1, 5); os.setuid(65534); s.bind(PATH); s.listen(); "
        "print(1, flush=True); time.sleep(60)"
    )
    directory = start.agent.node.directory / "theirs"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    path = directory / "agent.sock"
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", command.replace("PATH", repr(str(path)))], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdout.readline()
        text = Path(start.file).read_text().replace(str(start.agent.socket), str(path))
        Path(start.file).write_text(text)
        assert start.is_cold()
        other.kill()


def test_cold_with_a_stopped_agent_after_a_second(start: Cold) -> None:
    start.agent.stop(signal.SIGSTOP)
    began = time.monotonic()
    assert start.is_cold()
    assert 0.9 < time.monotonic() - began < 2.5
    start.assert_right()


@pytest.mark.parametrize("before", [("unshare", "-m"), ("unshare", "-U"), ("unshare", "-pf")], ids=str)
def test_cold_in_another_namespace(start: Cold, before: tuple[str, ...]) -> None:
    assert start.is_cold(before=before)
    assert not start.is_cold()


def test_cold_with_another_root(start: Cold) -> None:
    root = start.agent.node.directory / "root"
    root.mkdir()
    try:
        run("mount", "--rbind", "/", str(root))
        assert start.is_cold(before=("chroot", str(root), "/bin/sh", "-c", f'cd {start.bundle}; exec "$@"', "x"))
    finally:
        run("umount", "-l", str(root))


def test_cold_for_paths_that_mean_something_else_to_the_agent(start: Cold) -> None:
    for arguments in (
        ("create", "--bundle", "/proc/self/cwd", "0a"),
        ("create", "--bundle", "/proc/thread-self/root" + str(start.bundle), "0a"),
        ("--log", "/dev/stderr", "create", "0a"),
        ("--log=/proc/self/fd/2", "create", "0a"),
        ("exec", "--process", "/dev/stdin", "0a"),
    ):
        assert start.is_cold(*arguments), arguments
    (start.bundle / "link").symlink_to("/proc/self/cwd")
    assert start.is_cold("create", "--bundle", "link", "0a")


def test_cold_while_a_changed_policy_is_not_compiled(start: Cold) -> None:
    assert not start.is_cold()
    start.agent.node.write_policy(POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/new.pem"))
    assert start.is_cold()
    start.reset()
    run(start.full, "create", "0a", cwd=str(start.bundle))
    assert "REQUESTS_CA_BUNDLE=/new.pem" in (start.bundle / "config.json").read_text()
    assert not start.is_cold()


def test_cold_for_a_larger_frame_and_more_arguments_than_front_has_room_for(start: Cold) -> None:
    assert start.is_cold("create", "0a", "x" * 70000)
    assert start.is_cold("create", "0a", *["x"] * 40000)


def test_cold_for_a_large_config(start: Cold) -> None:
    (start.bundle / "config.json").write_text(json.dumps({"x": "y" * (5 << 20)}))
    assert start.is_cold()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"x",
        b"reassert-agent/1",
        b"reassert-agent/1\0",
        b"reassert-agent/2\0G",
        b"reassert-agent/1\0Gx\0",
        b"reassert-agent/1\0A",
        b"reassert-agent/1\0Acreate",
        b"reassert-agent/1\0A" + b"a\0" * 1025,
        b"reassert-agent/1\0A" + b"a" * 65535 + b"\0",
        b"reassert-agent/1\0R\0no\0",
        b"reassert-agent/1\0T\0",
        None,
    ],
    ids=lambda answer: repr(answer)[:40],
)
def test_cold_after_a_broken_answer(start: Cold, answer: bytes | None) -> None:
    start.agent.stop()
    start.agent.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(start.agent.socket))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(1 << 17)
            if answer is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                connection.send(answer)
                time.sleep(0.05)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert start.is_cold()
        thread.join()


# -- clients that are no front


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
    began = time.monotonic()
    with ThreadPoolExecutor(40) as pool:
        waiting = [
            pool.submit(
                lambda: subprocess.Popen(
                    [start.file, "--log", str(stuck), "create", "0a"], cwd=start.bundle, stderr=subprocess.DEVNULL
                )
            )
            for _ in range(40)
        ]
        processes = [one.result() for one in waiting]
        (start.bundle / "free").mkdir()
        (start.bundle / "free/config.json").write_text('{"process": {"env": []}}')
        assert not start.is_cold("create", "--bundle", "free", "0a")
        assert [process.wait() for process in processes] == [WENT_COLD] * 40
    assert time.monotonic() - began < 20
    reader = os.open(stuck, os.O_RDONLY | os.O_NONBLOCK)  # lets them go
    time.sleep(0.3)
    os.close(reader)
    assert not start.is_cold("create", "--bundle", "free", "0a")


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
    assert start.is_cold()
    agent.socket.unlink()
    agent.socket.mkdir()
    assert "is a directory, not the agent's socket" in refused(agent)
    assert start.is_cold()
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
        assert start.is_cold()


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


@pytest.fixture
def bundles(agent: Agent) -> Iterator[list[Bundle]]:
    """200 containers, most of them with the first one's files."""
    count = 200
    first = Bundle(agent.node.directory / "b0", ["/bin/true"])
    found = [first]
    first.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=x"]
    first.spec["linux"].pop("cgroupsPath", None)
    for number in range(1, count):
        bundle = object.__new__(Bundle)
        bundle.directory = agent.node.directory / f"b{number}"
        bundle.directory.mkdir()
        bundle.rootfs = first.rootfs
        bundle.spec = {**first.spec, "root": {"path": str(first.rootfs), "readonly": False}}
        found.append(bundle)
    for bundle in found:
        bundle.save()
    yield found
    shutil.rmtree(first.rootfs, ignore_errors=True)


def test_200_creations_at_once_with_an_edit_and_a_restart(agent: Agent, bundles: list[Bundle]) -> None:
    """None is unadjusted, none fails, and who begins after the edit gets the new policy."""
    file = agent.dispatcher(RUNC)
    new = POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/new.pem")
    edited = threading.Event()

    def create(bundle: Bundle) -> tuple[bool, Running]:
        after, running = edited.is_set(), Running(file, bundle)
        assert running.create() == 0, running.output()
        return after, running

    def disturb() -> None:
        time.sleep(1)
        agent.node.write_policy(new)
        edited.set()
        time.sleep(1)
        agent.stop(signal.SIGKILL)
        agent.start()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with ThreadPoolExecutor(len(bundles)) as pool:
            done = list(pool.map(create, bundles))
    finally:
        thread.join()
        for bundle in bundles:
            (bundle.directory / "left").touch()
    wanted = ("REQUESTS_CA_BUNDLE=/new.pem", WANTED)
    found = set()
    for after, running in done:
        env = running.bundle.saved()["process"]["env"]
        assert env[-1] in wanted[: 1 if after else 2], env
        found.add((after, env[-1]))
        run(RUNC, "delete", "--force", running.id)
    print(found)
    assert len(done) == len(bundles)
