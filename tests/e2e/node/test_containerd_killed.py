"""`reassert node install` and `uninstall`, killed or interrupted while containerd runs: the next one finishes the job.

What a kill leaves in files, step by step, is tried in test_killed.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cri.client import wait_for
from e2e.node import killed
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG
from e2e.node.files import Snapshot, differences
from e2e.node.wired import FILES, NOT_WIRED, PACKAGED, Wirable, package

INSTALL, UNINSTALL = ("install", "--no-probe"), ("uninstall",)

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


def installed(node: Wirable) -> Snapshot:
    """What an installation consists of; what is compiled of the policy comes whenever somebody reads it."""
    everything = node.booted.snapshot()
    return {path: entry for path, entry in everything.items() if not path.startswith("/var/lib/reassert/etc-")}


def interrupted(node: Wirable, step: int, operation: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """`reassert node …` with a SIGTERM at its n-th rename."""
    return killed.signalled(node.booted, TERM, "rename", step, PACKAGED, "node", *operation)


def end(node: Wirable, number: signal.Signals, when: str, operation: str) -> subprocess.CompletedProcess[str]:
    """Send a signal to `reassert node …` while it is `restarting` containerd, `starting` or `probing` after that."""
    options = [] if when == "probing" or operation == "uninstall" else ["--no-probe"]
    process = subprocess.Popen(
        node.booted.command(PACKAGED, "node", operation, *options),
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
    os.kill(killed.inside(process), number)
    out, error = process.communicate(timeout=90)
    return subprocess.CompletedProcess(operation, process.returncode, out, error)


def pods(node: Wirable) -> list[str]:
    """Ids of what runs in Kubernetes' namespace; none while containerd does not answer."""
    return node.booted.run("ctr", "--namespace", "k8s.io", "container", "list", "--quiet", check=False).stdout.split()


def traces(node: Wirable) -> list[str]:
    """Directories of probes."""
    return [path.name for path in node.booted.path("/run").glob("reassert-verify-*")]


@pytest.mark.parametrize(("number", "when"), [(KILL, "restarting"), (KILL, "probing")])
def test_install_that_was_killed_is_repeated(node: Wirable, number: signal.Signals, when: str) -> None:
    assert end(node, number, when, "install").returncode == -number
    code, _, problems = node.status()
    assert code == 1
    (problem,) = (problem for problem in problems if "interrupted" in problem)
    assert problem == (
        "the last install of containerd was interrupted; "
        "run `reassert node install` or `uninstall`: both restore every file first"
    )
    said = node.install("--no-probe").stdout
    assert said.startswith("an earlier install of containerd was interrupted; restoring every file first\n")
    assert node.status() == (0, WIRED, [])
    assert (pods(node), traces(node)) == ([], [])
    for handler in WIRED:
        node.pod_gets(handler)


def test_install_that_was_killed_is_undone(node: Wirable) -> None:
    assert end(node, KILL, "probing", "install").returncode == -KILL
    assert pods(node)
    node.node("uninstall")
    node.is_untouched()
    assert (pods(node), traces(node)) == ([], [])
    node.pod_gets("runc", overridden=True)


def test_pod_that_started_before_it_was_undone_goes_on(node: Wirable) -> None:
    """Through the dispatcher that its shim was told, which now only passes through."""
    assert end(node, KILL, "probing", "install").returncode == -KILL
    pod = node.hostile_pod("runc")
    container = pod.run()
    undone = node.node("uninstall").stdout
    assert "2 running containers or commands still call /usr/local/sbin/reassert-runc: it stays" in undone
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


@pytest.mark.parametrize("repeated", ["install", "uninstall"])
def test_uninstall_that_was_killed(node: Wirable, repeated: str) -> None:
    node.install("--no-probe")
    with slow_start(node, "/bin/sleep 1"):
        assert end(node, KILL, "restarting", "uninstall").returncode == -KILL
    assert node.status()[0] == 1
    node.node(repeated)
    if repeated == "install":
        assert node.status() == (0, WIRED, [])
        node.pod_gets("runc")
    else:
        node.is_untouched()


@pytest.mark.parametrize(("number", "when"), [(TERM, "restarting"), (INT, "probing")])
def test_install_that_is_interrupted_puts_everything_back(node: Wirable, number: signal.Signals, when: str) -> None:
    done = end(node, number, when, "install")
    assert (done.returncode, done.stderr) == (1, INTERRUPTED)
    node.is_untouched()
    assert (pods(node), traces(node)) == ([], [])
    assert node.status()[0] == NOT_WIRED


@pytest.mark.parametrize("step", [1, 4])
def test_install_that_is_interrupted_while_it_writes(node: Wirable, step: int) -> None:
    """At the journal, and at one of the files."""
    done = interrupted(node, step, INSTALL)
    assert (done.returncode, done.stderr) == (1, INTERRUPTED)
    node.is_untouched()


def test_uninstall_that_is_interrupted_when_nothing_refers_to_it_any_more(node: Wirable) -> None:
    """Then there is no way back, and it goes on to its end."""
    node.install("--no-probe")
    done = interrupted(node, 4, UNINSTALL)
    assert (done.returncode, done.stderr) == (0, "")
    node.is_untouched()


def test_uninstall_that_is_interrupted_puts_everything_back(node: Wirable) -> None:
    node.install("--no-probe")
    complete = installed(node)
    with slow_start(node, "/bin/sleep 1"):
        done = end(node, TERM, "restarting", "uninstall")
    assert (done.returncode, done.stderr) == (1, INTERRUPTED)
    assert differences(complete, installed(node)) == []
    assert node.status() == (0, WIRED, [])
    node.pod_gets("runc")
