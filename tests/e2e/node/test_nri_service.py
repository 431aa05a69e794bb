"""packaging/systemd/reassert-nri.service at its real place, under a real systemd that runs containerd too."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Iterator
from typing import Any

import marks
import pytest
from harness.paths import TOP

from e2e.cri.client import Container, Pod, wait_for
from e2e.cri.hostile import CA_BUNDLE, assert_only_ours, reserved_in
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import FORMATS, containerd_config
from e2e.nri.conftest import NRI_POLICY

UNIT = "reassert-nri.service"
POLICY = "/etc/reassert/policy.yaml"
CA = "/etc/company/ca"

HOSTILE_ENV = [("REQUESTS_CA_BUNDLE", "/tmp/evil"), ("NVIDIA_VISIBLE_DEVICES", "all")]
"""Once each: what comes twice is for the second line, base_runtime_spec, which is not there."""

CORRECTED = {"REQUESTS_CA_BUNDLE": CA_BUNDLE, "NVIDIA_VISIBLE_DEVICES": "void"}

POLICY_TEXT = NRI_POLICY.replace("hostPath: CA", f"hostPath: {CA}")


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    """A node with the program, the unit and a policy in their places, and NRI switched on."""
    files = {
        POLICY: POLICY_TEXT,
        f"{CA}/certs/company.crt": "company\n",
        f"/etc/systemd/system/{UNIT}": (TOP / "packaging/systemd" / UNIT).read_text(),
    }
    node = module_boot("forky", config=containerd_config(FORMATS["forky"], nri=True), files=files)
    node.run("cp", "-rT", "/src/reassert/dist/reassert", "/opt/reassert")
    node.run("chown", "-R", "root:", "/opt/reassert")
    node.run("ln", "-s", "/opt/reassert/reassert", "/usr/local/bin/reassert")
    (node.directory / "evil").mkdir()
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[BootedNode]:
    """That node, with the service running; the policy and the unit are as they were before, whatever a test does."""
    booted.run("systemctl", "start", UNIT)
    yield booted
    booted.path(POLICY).write_text(POLICY_TEXT)
    if booted.path(f"/run/systemd/system/{UNIT}.d").exists():
        booted.run("rm", "-r", f"/run/systemd/system/{UNIT}.d")
        booted.run("systemctl", "daemon-reload")
        booted.run("systemctl", "stop", UNIT)


def drop_in(node: BootedNode, text: str) -> None:
    """Override settings of the service, and restart it."""
    directory = node.path(f"/run/systemd/system/{UNIT}.d")
    directory.mkdir()
    (directory / "test.conf").write_text(f"[Service]\n{text}\n")
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", UNIT)


def said(node: BootedNode) -> list[dict[str, Any]]:
    """What the service itself wrote to the journal: its operation log, and its events in JSON."""
    lines = node.run("journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_UNIT={UNIT}").stdout.splitlines()
    return [json.loads(line) if line.startswith("{") else _logfmt(line) for line in lines]


def _logfmt(line: str) -> dict[str, Any]:
    return dict(word.split("=", 1) for word in shlex.split(line))


def connections(node: BootedNode) -> int:
    """How often a runtime took it in."""
    return sum(line["event"] == "nri.connected" for line in said(node))


def wait_for_state(node: BootedNode, **expected: str) -> None:
    """Until systemd says so of the service, of all properties at once."""
    wait_for(lambda: node.properties(UNIT, *expected) == expected, f"{UNIT}: {expected}", node.trouble)


def wait_for_restart(node: BootedNode, before: int) -> None:
    """Until systemd has started the service again; more than once where the machine is busy."""

    def restarted() -> bool:
        found = node.properties(UNIT, "ActiveState", "NRestarts")
        return found["ActiveState"] == "active" and int(found["NRestarts"]) > before

    wait_for(restarted, f"{UNIT}: a restart", node.trouble)


def start_hostile(node: BootedNode) -> tuple[Pod, Container]:
    """A pod that overrides what is reserved."""
    pod = node.cri.run_pod("")
    return pod, pod.run(env=HOSTILE_ENV, mounts=[(str(node.directory / "evil"), "/etc/ssl")])


def assert_corrects(node: BootedNode, **changed: str) -> None:
    """A hostile pod gets what the policy says, in its process and in exec."""
    pod, container = start_hostile(node)
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == CORRECTED | changed
    assert_only_ours(container.mounts())
    pod.remove()


def test_the_sandbox_of_the_unit_is_there(node: BootedNode) -> None:
    """systemd leaves out what a machine cannot do; the tests of what still works in it would prove nothing then."""
    process = f"/proc/{node.property(UNIT, 'MainPID')}"
    status = dict(line.split(":\t", 1) for line in node.path(f"{process}/status").read_text().splitlines())
    found = {name: status[name].strip() for name in ("CapBnd", "CapEff", "NoNewPrivs", "Seccomp")}
    # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; a filter of system calls (proc_pid_status(5))
    assert found == {"CapBnd": f"{6:016x}", "CapEff": f"{6:016x}", "NoNewPrivs": "1", "Seccomp": "2"}
    rows = [line.split() for line in node.path(f"{process}/mountinfo").read_text().splitlines()]
    writable = {row[4] for row in rows if "rw" in row[5].split(",")}
    assert "/" not in writable
    assert {"/var/lib/reassert", "/var/log/reassert", "/run/reassert"} <= writable


def test_it_is_active_when_a_runtime_has_taken_it_in(node: BootedNode) -> None:
    node.run("systemctl", "stop", UNIT)
    pod, container = start_hostile(node)
    assert reserved_in(container.environ()) == dict(HOSTILE_ENV), "corrected by whom?"
    pod.remove()

    node.run("systemctl", "stop", "containerd")
    before = connections(node)
    node.run("systemctl", "start", "--no-block", UNIT)
    wait_for(lambda: [line["event"] for line in said(node)][-1:] == ["nri.disconnected"], "its complaint", node.trouble)
    assert node.property(UNIT, "ActiveState") == "activating"
    node.run("systemctl", "start", "containerd")
    wait_for_state(node, ActiveState="active", StatusText="connected")
    wait_for(lambda: connections(node) > before, "the journal, which may come after systemd's state", node.trouble)
    node.wait_for_cri()
    assert_corrects(node)


def test_the_watchdog_ends_one_that_hangs(node: BootedNode) -> None:
    drop_in(node, "WatchdogSec=5s")
    restarts = int(node.property(UNIT, "NRestarts"))
    node.run("systemctl", "kill", "--signal=STOP", UNIT)
    wait_for_restart(node, restarts)
    assert_corrects(node)


@marks.promise("The plugin reconnects by itself, and can be launched by the runtime")
def test_it_outlives_a_restart_of_containerd(node: BootedNode) -> None:
    process, before = node.property(UNIT, "MainPID"), connections(node)
    node.run("systemctl", "restart", "containerd")
    node.wait_for_cri()
    wait_for(lambda: connections(node) > before, "the next connection", node.trouble)
    assert node.property(UNIT, "MainPID") == process
    assert_corrects(node)


def test_the_sandbox_of_the_unit_lets_a_policy_be_edited(node: BootedNode) -> None:
    """It is in force for the next container, or for the one after if compiling it takes long (internals/nri.md)."""

    def gpu() -> str:
        pod, container = start_hostile(node)
        found = reserved_in(container.environ())["NVIDIA_VISIBLE_DEVICES"]
        pod.remove()
        return found

    def warnings() -> list[dict[str, Any]]:
        lines = node.path("/var/log/reassert/events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if "sepc" in event.get("warning", "")]

    node.path(POLICY).write_text(POLICY_TEXT.replace("value: void", "value: none"))
    wait_for(lambda: gpu() == "none", "the new policy", node.trouble)
    node.path(POLICY).write_text(POLICY_TEXT.replace("spec:", "sepc:"))
    wait_for(lambda: gpu() == "none" and bool(warnings()), "the warning of a broken policy", node.trouble)
    wait_for(lambda: warnings()[0] in said(node), "it in the journal", node.trouble)


@pytest.mark.parametrize("address", ["127.0.0.1:9464", "unix:/run/reassert/metrics.sock"])
def test_the_sandbox_of_the_unit_lets_metrics_be_read(node: BootedNode, address: str) -> None:
    drop_in(node, f"ExecStart=\nExecStart=/usr/local/bin/reassert nri --metrics {address}")
    assert_corrects(node)
    assert "reassert_nri_connected 1.0" in metrics(node, address).splitlines()


def metrics(node: BootedNode, address: str) -> str:
    """What Prometheus would read."""
    if not address.startswith("unix:"):
        return node.run("busybox", "wget", "-q", "-O", "-", f"http://{address}/metrics").stdout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(node.path(address.removeprefix("unix:"))))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()
