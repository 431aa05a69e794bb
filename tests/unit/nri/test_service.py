"""The process around the plugin: command line, systemd's notifications, reconnecting, metrics over HTTP."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest

from hook.core.policy import store
from hook.nri.report import Report
from hook.nri.service import ABSENT_PAUSE, FIRST_PAUSE, LONGEST_PAUSE, Service
from hook.ops.metrics import service
from hook.resident.metrics import NoMetrics
from unit.nri.support import RESPONSE, Peer, create_request, wait_until
from unit.support import ROOT, document, reassert

POLICY = document({"name": "gpu", "env": [{"name": "GPU", "value": "void"}]})


class Process:
    """`reassert nri` from this checkout, between a runtime's socket and systemd's; with `agent`, the agent instead."""

    def __init__(self, directory: Path, *options: str, agent: bool = False) -> None:
        self.directory = directory
        (directory / "policy.yaml").write_text(POLICY)
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(directory / "notify"))
        self.notified.settimeout(600)
        self.runtime = socket.socket(socket.AF_UNIX)
        self.options = options
        self.program = ["nri", "--socket", str(directory / "nri")]
        if agent:
            sockets = ["--socket", str(directory / "agent" / "agent.sock"), "--nri-socket", str(directory / "nri")]
            self.program = ["agent", "--nri", *sockets]

    def start(self, **watchdog: str) -> None:
        """Start it; nobody listens on the runtime's socket yet.

        `watchdog`: of a test that reads the notifications. Sending them waits when ten lie unread.
        """
        command = [sys.executable, str(ROOT / "hook" / "__main__.py"), *self.program]
        command += ["--policy", str(self.directory / "policy.yaml"), "--store", str(self.directory / "store")]
        command += ["--events", str(self.directory / "events.jsonl"), *self.options]
        environment = {**os.environ, "NOTIFY_SOCKET": str(self.directory / "notify"), **watchdog}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def listen(self) -> None:
        """The runtime is there."""
        self.runtime.bind(str(self.directory / "nri"))
        self.runtime.listen()
        self.runtime.settimeout(600)

    def accept(self, config: str = "") -> Peer:
        """The plugin's next connection, taken in. `config`: what the runtime has for it."""
        peer = Peer(self.runtime.accept()[0])
        assert peer.take_in(config=config) == 8  # CREATE_CONTAINER and nothing else
        return peer

    def wait_for(self, text: str) -> None:
        """A notification with this in it."""
        while text not in self.notified.recv(4096).decode():
            pass

    def close(self) -> None:
        self.notified.close()  # else what nobody has read holds the last notification up
        self.process.terminate()
        self.process.wait(600)
        self.runtime.close()


@pytest.fixture
def process(root_dir: Path) -> Iterator[Process]:
    process = Process(root_dir)
    yield process
    process.close()


def test_it_waits_for_the_runtime_comes_back_to_it_and_tells_systemd(process: Process) -> None:
    process.start(WATCHDOG_USEC="600000")
    process.wait_for("WATCHDOG=1")  # alive without a runtime
    process.listen()
    for ready in ("READY=1", "STATUS=connected"):
        peer = process.accept()
        process.wait_for(ready)
        answer = peer.call("CreateContainer", create_request(["GPU=all"]))
        assert RESPONSE.FromString(answer.payload).adjust.env[0].value == "void"
        process.wait_for("WATCHDOG=1")
        peer.socket.close()
    process.process.send_signal(signal.SIGTERM)
    process.wait_for("STOPPING=1")
    assert process.process.wait(600) == 0


@pytest.mark.slow
@pytest.mark.parametrize("agent", [False, True], ids=["nri", "agent"])
def test_event_of_the_last_answer_is_written_before_it_ends(root_dir: Path, agent: bool) -> None:
    process = Process(root_dir, agent=agent)
    try:
        process.listen()
        process.start()
        peer = process.accept()
        process.wait_for("READY=1")
        for number in range(5):  # one would be written by chance
            peer.send("CreateContainer", create_request(["GPU=all"], id=f"c{number}"))
        for _ in range(5):
            peer.response()
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(600) == 0
        events = [json.loads(line) for line in (root_dir / "events.jsonl").read_text().splitlines()]
        edited = [event["id"] for event in events if event["event"] == "container.edited"]
        assert edited == [f"c{number}" for number in range(5)]
    finally:
        process.close()


def test_a_policy_that_the_runtime_brings_counts_for_its_connection(process: Process) -> None:
    """Until it is compiled, which can take longer than a runtime waits, containers are refused."""
    process.start()
    process.listen()
    broken = "broken: ["
    for config, wanted in ((POLICY.replace("void", "brought"), "brought"), (broken, "brought"), ("", "void")):
        peer = Peer(process.runtime.accept()[0])  # the plugin has compiled its own policy
        with open(process.directory / "store" / ".lock", "r+b") as lock:
            if wanted == "brought":
                fcntl.lockf(lock, fcntl.LOCK_EX)  # nothing is compiled
            assert peer.take_in(config=config) == 8
            answer = peer.call("CreateContainer", create_request(["GPU=all"]))
        assert answer.status.code or config in (broken, "")
        while answer.status.code:
            assert "it has not been read yet" in answer.status.message
            answer = peer.call("CreateContainer", create_request(["GPU=all"]))
        assert RESPONSE.FromString(answer.payload).adjust.env[0].value == wanted
        peer.socket.close()


def test_no_pause_is_too_long_for_a_return_within_two_seconds() -> None:
    assert FIRST_PAUSE < ABSENT_PAUSE < LONGEST_PAUSE <= 1


@pytest.mark.parametrize(("absent", "longest"), [(True, ABSENT_PAUSE), (False, LONGEST_PAUSE)])
def test_pauses_grow_and_less_so_while_nobody_listens(root_dir: Path, absent: bool, longest: float) -> None:
    """A runtime that is there and sends us away would be asked as often."""
    chosen = Namespace(socket=f"{root_dir}/nri", policy=f"{root_dir}/none", store=f"{root_dir}/store", gvisor=[])
    report = Report(f"{root_dir}/events", NoMetrics())
    service = Service(chosen, "10", report, None)
    pauses: list[float] = []
    with socket.socket(socket.AF_UNIX) as runtime:
        if not absent:
            runtime.bind(chosen.socket)
            runtime.listen(16)

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 8:
                raise TimeoutError

        away = threading.Thread(target=lambda: [runtime.accept()[0].close() for _ in range(0 if absent else 8)])
        away.start()
        with pytest.raises(TimeoutError):
            service.connect_for_ever(sleep)
        away.join(20)
    report.close(60)
    assert pauses[:2] == [FIRST_PAUSE, 2 * FIRST_PAUSE]
    assert pauses == sorted(pauses)
    assert pauses[-1] == longest


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--plugin-index", "7"],
        ["--plugin-index", "x1"],
        ["--socket", "nri.sock"],
        ["--metrics", "0.0.0.0:9464"],
        ["--metrics", "example:9464"],
        ["--metrics", "unix:relative"],
        ["--metrics", "127.0.0.1:65536"],
        ["--metrics", "127.0.0.1:-1"],
        ["--socket", "/" + "x" * 107],
    ],
)
def test_a_wrong_command_line_is_told(options: list[str]) -> None:
    done = reassert("nri", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"reassert: {options[0]} takes ")


@pytest.mark.parametrize("given", ["²", "9" * 30, "999"])
def test_a_socket_that_no_runtime_left_open_is_told(given: str) -> None:
    done = reassert("nri", env={"NRI_PLUGIN_SOCKET": given})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"reassert: NRI_PLUGIN_SOCKET={given!r} is not an open socket; ")


@marks.hole("`--metrics unix:PATH` deleted any file at PATH", since="0.1.0", fixed="0.1.0", severity="low")
def test_metrics_take_no_file_away(root_dir: Path) -> None:
    """The path may be one that somebody mistyped: only a socket goes, of a plugin before."""
    file, link = root_dir / "file", root_dir / "link"
    file.write_text("precious")
    link.symlink_to("nowhere")
    for path in (file, link):
        done = reassert("nri", "--metrics", f"unix:{path}")
        assert (done.returncode, done.stderr) == (
            2,
            f"reassert: --metrics unix:{path}: {path} exists and is not a socket\n",
        )
    assert file.read_text() == "precious"
    assert link.is_symlink()


def scrape(path: Path) -> bytes:
    """What Prometheus gets."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(600)
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b""
        while chunk := client.recv(65536):
            text += chunk
        return text


@marks.hole(
    "Many connections to the metrics took the NRI plugin's descriptors", since="0.1.0", fixed="0.1.0", severity="low"
)
@marks.hole("Eight slow connections to `--metrics` kept Prometheus away", since="0.1.0", fixed="0.4.0", severity="low")
@pytest.mark.slow
def test_connections_that_drip_keep_no_scrape_away(process: Process, root_dir: Path) -> None:
    """However many there are; and each ends, though a byte comes now and then. The socket is root's alone."""
    path = root_dir / "metrics"
    process.options = ("--metrics", f"unix:{path}")
    socket.socket(socket.AF_UNIX).bind(str(path))  # of a plugin that was killed
    process.start(WATCHDOG_USEC="600000")
    process.wait_for("WATCHDOG=1")
    assert path.stat().st_mode & 0o777 == 0o600
    dripping: list[socket.socket] = []
    for _ in range(300):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(600)
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        dripping.append(client)
        if len(dripping) % 60 == 0:
            assert b"reassert_nri_connected 0.0" in scrape(path)
    assert dripping[0].recv(1) == b""
    assert len(list(Path(f"/proc/{process.process.pid}/fd").iterdir())) < service.CONNECTIONS + 25
    for _ in range(100):
        with contextlib.suppress(OSError):
            dripping[-1].send(b"x")
        if select.select([dripping[-1]], [], [], 1)[0]:
            break
    with contextlib.suppress(ConnectionResetError):
        assert dripping[-1].recv(1) == b"", "closed"
    assert b"reassert_nri_connected 0.0" in scrape(path)
    for client in dripping:
        client.close()


def test_edit_of_the_policy_is_compiled_and_shown_before_a_container_needs_it(process: Process) -> None:
    metrics = process.directory / "metrics"
    process.options = ("--metrics", f"unix:{metrics}")
    process.start()
    process.listen()
    process.accept()
    process.wait_for("READY=1")
    path, directory = str(process.directory / "policy.yaml"), str(process.directory / "store")

    def is_compiled() -> bool:
        stored = store.read_store(path, directory)
        return stored is not None and stored.has_compiled(store.file_key(os.stat(path)))

    def shown(*wanted: str) -> float:
        """When the policy in force was loaded, once these samples are there."""
        wait_until(lambda: all(text in scrape(metrics).decode() for text in wanted))
        return float(scrape(metrics).split(b"\nreassert_policy_loaded_timestamp_seconds ")[1].split()[0])

    def in_force(text: str) -> str:
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f'reassert_policy_info{{mode="Enforce",path="{path}",sha256="{digest}"}} 1.0'

    wait_until(is_compiled)
    first = shown(in_force(POLICY), "reassert_policy_held_back 0.0")
    edit = POLICY.replace("void", "none")
    Path(path).write_text(edit)
    assert not is_compiled()
    wait_until(is_compiled)
    second = shown(in_force(edit), "reassert_policy_held_back 0.0")
    assert 0 < first < second
    Path(path).write_text("broken: [")
    assert shown(in_force(edit), "reassert_policy_held_back 1.0") == second


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--socket=/" + "s" * 107, "--socket takes an absolute path of at most 107 bytes, not '/sss"),
        ("--plugin-index=x", "--plugin-index takes two digits, not 'x'"),
    ],
)
def test_option_that_cannot_be_is_told(option: str, said: str) -> None:
    command = [sys.executable, str(ROOT / "hook/__main__.py"), "nri", option]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
