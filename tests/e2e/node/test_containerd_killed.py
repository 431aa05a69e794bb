"""`reassert install` and `uninstall`, killed or interrupted while containerd runs: the next one finishes the job.

What a kill leaves in files, step by step, is tried in tests/unit/node/test_rollback.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG
from e2e.node.wired import FILES, NOT_WIRED, PACKAGED, Wirable, package

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
INTERRUPTED = "reassert: interrupted\nEverything is as it was before.\n"
WIRED = {"crun": ["runtime"], "runc": ["runtime"]}


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    node = module_boot("trixie", files=FILES)
    package(node)
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """A node without reassert, before and after."""
    wirable = Wirable(booted, booted.snapshot(), PACKAGED)
    written = booted.path(CONFIG).stat().st_mtime_ns
    yield wirable
    wirable.take_out()
    booted.run("systemctl", "start", "containerd")
    booted.wait_for_cri()
    wirable.is_untouched()
    assert booted.path(CONFIG).stat().st_mtime_ns == written


def inside(process: subprocess.Popen[str]) -> int:
    """The process of a started `BootedNode.command`; its parent is nsenter, which only waits for it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    comm = Path(f"/proc/{process.pid}/comm")
    wait_for(lambda: comm.read_text() == "nsenter\n" and bool(children.read_text()), "the command's process")
    return int(children.read_text())


def end(node: Wirable, number: signal.Signals, when: str, operation: str) -> subprocess.CompletedProcess[str]:
    """Send a signal to an install or uninstall while it is `restarting` containerd, `starting` or `probing` after."""
    options = [] if when == "probing" or operation == "uninstall" else ["--no-probe"]
    process = subprocess.Popen(
        node.booted.command(PACKAGED, operation, *options),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    for line in process.stdout:
        if line.startswith("restarting "):
            break
    else:
        pytest.fail("it did not restart anything")
    if when == "starting":
        wait_for(lambda: node.booted.property("containerd", "ActiveState") == "activating", "its start")
    if when == "probing":  # a pod that is complete stays; what is half made when its client goes containerd removes
        wait_for(lambda: len(list(node.booted.path(BUNDLES).glob("*"))) > 1, "a probe")
    os.kill(inside(process), number)
    out, error = process.communicate(timeout=600)
    return subprocess.CompletedProcess(operation, process.returncode, out, error)


def pods(node: Wirable) -> list[str]:
    """Ids of what runs in Kubernetes' namespace; none while containerd does not answer."""
    return node.booted.run("ctr", "--namespace", "k8s.io", "container", "list", "--quiet", check=False).stdout.split()


def traces(node: Wirable) -> list[str]:
    """Directories of probes."""
    return [path.name for path in node.booted.path("/run").glob("reassert-verify-*")]


def test_install_that_was_killed_is_repeated(node: Wirable) -> None:
    assert end(node, KILL, "probing", "install").returncode == -KILL
    code, _, problems = node.status()
    assert code == 1
    (problem,) = (problem for problem in problems if "interrupted" in problem)
    assert problem == (
        "the last install of containerd was interrupted; "
        "an install or uninstall restores every file first: run `reassert install`"
    )
    said = node.install("--no-probe").stdout
    assert said.startswith("an earlier install of containerd was interrupted; restoring every file first\n")
    assert node.status() == (0, WIRED, [])
    assert (pods(node), traces(node)) == ([], [])
    for handler in WIRED:
        node.pod_gets(handler)


def test_pod_that_started_before_it_was_undone_goes_on(node: Wirable) -> None:
    """Through the dispatcher that its shim was told, which now only passes through."""
    assert end(node, KILL, "probing", "install").returncode == -KILL
    pod = node.hostile_pod("runc")
    container = pod.run()
    undone = node.node("uninstall").stdout
    assert "2 running containers or commands still call /opt/reassert/reassert-runc: it stays" in undone
    assert undone.count("still call") == 1
    assert "+ 1" in container.exec("/bin/sh", "-c", "echo + 1")
    assert node.changes() != []
    pod.remove()
    node.node("uninstall")
    node.is_untouched()


@contextmanager
def slow_start(node: Wirable, command: str) -> Iterator[None]:
    """containerd's service runs a command before it starts."""
    drop_in = node.booted.path("/run/systemd/system/containerd.service.d/slow.conf")
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text(f"[Service]\nRestart=no\nExecStartPre={command}\n")
    node.booted.run("systemctl", "daemon-reload")
    try:
        yield
    finally:
        drop_in.unlink()
        node.booted.run("systemctl", "daemon-reload")


BROKEN = "/bin/sh -c 'if grep -qs reassert- /etc/containerd/config.toml; then sleep 2; exit 1; fi'"


def test_install_that_was_killed_while_containerd_did_not_come_up(node: Wirable) -> None:
    """It was running before, so it is to run again, whatever it is doing when everything is put back."""
    with slow_start(node, BROKEN):
        assert end(node, KILL, "starting", "install").returncode == -KILL
        node.node("uninstall")
        node.is_untouched()
    node.pod_gets("runc", overridden=True)


def test_uninstall_that_was_killed(node: Wirable) -> None:
    node.install("--no-probe")
    with slow_start(node, "/bin/sleep 1"):
        assert end(node, KILL, "restarting", "uninstall").returncode == -KILL
    assert node.status()[0] == 1
    node.install("--no-probe")
    assert node.status() == (0, WIRED, [])
    node.pod_gets("runc")


@pytest.mark.parametrize(("number", "when"), [(TERM, "restarting"), (INT, "probing")])
def test_install_that_is_interrupted_puts_everything_back(node: Wirable, number: signal.Signals, when: str) -> None:
    done = end(node, number, when, "install")
    assert (done.returncode, done.stderr) == (1, INTERRUPTED)
    node.is_untouched()
    assert (pods(node), traces(node)) == ([], [])
    assert node.status()[0] == NOT_WIRED
