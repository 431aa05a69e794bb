"""`reassert node install` and `uninstall` that are killed or interrupted: the next one finishes the job.

Every single step is tried in tests/unit/node/test_journal.py; here it is the frozen program on a node.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG
from e2e.node.files import Snapshot, differences
from e2e.node.wired import FILES, NOT_WIRED, PROGRAM, Wirable
from e2e.support import need, run

INSTALL, UNINSTALL = ("install", "--no-probe"), ("uninstall",)
STEPS = 40
"""More renames than either of them makes."""

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
INTERRUPTED = "reassert: interrupted\nEverything is as it was before.\n"
WIRED = {"crun": ["runtime"], "runc": ["runtime"]}


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    return module_boot("trixie", files=FILES)


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """A node without reassert, before and after."""
    wirable = Wirable(booted, booted.snapshot())
    written = booted.path(CONFIG).stat().st_mtime_ns
    yield wirable
    wirable.node("uninstall")
    booted.run("systemctl", "start", "containerd")
    booted.wait_for_cri()
    wirable.is_untouched()
    assert booted.path(CONFIG).stat().st_mtime_ns == written


def installed(node: Wirable) -> Snapshot:
    """What an installation consists of; what is compiled of the policy comes whenever somebody reads it."""
    everything = node.booted.snapshot()
    return {path: entry for path, entry in everything.items() if not path.startswith("/var/lib/reassert/etc-")}


def signalled(
    node: Wirable, number: signal.Signals, step: int, operation: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """`reassert node …` with a signal at its n-th rename."""
    need(run("strace", "-V", check=False).returncode == 0, "strace")
    tracing = ["strace", "-f", "-o", "/dev/null", "-e", f"inject=rename:signal={number.name}:when={step}"]
    return run(*tracing, *node.booted.command(PROGRAM, "node", *operation), check=False)


@pytest.mark.parametrize("operation", [INSTALL, UNINSTALL], ids=" ".join)
def test_killed_at_each_step(node: Wirable, operation: tuple[str, ...]) -> None:
    """Before each rename, by which every file comes into its place. Another install, or uninstall, finishes the job.

    Containerd is stopped: that makes no difference to the files, and its restarts take their time.
    """
    node.booted.run("systemctl", "stop", "containerd")
    node.node(*INSTALL)
    complete = installed(node)
    other = UNINSTALL if operation is INSTALL else INSTALL
    if operation is INSTALL:
        node.node(*UNINSTALL)
    for step in range(1, STEPS):
        done = signalled(node, KILL, step, operation)
        if done.returncode == 0:
            assert step > 4
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        finishing = operation if step % 2 else other
        node.node(*finishing)
        left = differences(complete, installed(node)) if finishing is INSTALL else node.changes()
        assert left == [], f"killed before rename {step}, then {finishing}: {left}"
        if finishing is operation:
            node.node(*other)
    pytest.fail(f"{operation} was still killed at rename {STEPS}")


def end(node: Wirable, number: signal.Signals, when: str, *operation: str) -> subprocess.CompletedProcess[str]:
    """Send a signal to `reassert node …` while it is `restarting` containerd, `starting` or `probing` after that."""
    process = subprocess.Popen(
        node.booted.command(PROGRAM, "node", *operation), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    for line in process.stdout:
        if line.startswith("restarting "):
            break
    else:
        pytest.fail("it did not restart anything")
    if when == "starting":
        wait_for(lambda: node.booted.property("containerd", "ActiveState") == "activating", "its start")
    if when == "probing":
        wait_for(lambda: bool(pods(node)), "a probe")
    # Its parent is nsenter, which only waits for it.
    [inside] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(inside), number)
    out, error = process.communicate(timeout=90)
    return subprocess.CompletedProcess(operation, process.returncode, out, error)


def pods(node: Wirable) -> list[str]:
    """Ids of what runs in Kubernetes' namespace; none while containerd does not answer."""
    return node.booted.run("ctr", "--namespace", "k8s.io", "container", "list", "--quiet", check=False).stdout.split()


@pytest.mark.parametrize(("number", "when"), [(KILL, "restarting"), (KILL, "probing")])
def test_install_that_was_killed_is_repeated(node: Wirable, number: signal.Signals, when: str) -> None:
    assert end(node, number, when, "install").returncode == -number
    code, _, problems = node.status()
    assert code == 1
    assert "an interrupted install of containerd: run it again to finish or undo it" in problems
    said = node.install().stdout
    assert said.startswith("an earlier install of containerd was interrupted; putting everything back first\n")
    assert node.status() == (0, WIRED, [])
    assert set(node.verified().values()) == {"protected"}
    assert pods(node) == []


def test_install_that_was_killed_is_undone(node: Wirable) -> None:
    assert end(node, KILL, "probing", "install").returncode == -KILL
    node.node("uninstall")
    node.is_untouched()
    node.pod_gets("runc", overridden=True)


SLOW = """\
[Service]
Restart=no
ExecStartPre=/bin/sh -c 'if grep -qs reassert- /etc/containerd/config.toml; then sleep 2; exit 1; fi'
"""


def test_install_that_was_killed_while_containerd_did_not_come_up(node: Wirable) -> None:
    """It was running before, so it is to run again, whatever it is doing when everything is put back."""
    drop_in = node.booted.path("/run/systemd/system/containerd.service.d/slow.conf")
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text(SLOW)
    node.booted.run("systemctl", "daemon-reload")
    try:
        assert end(node, KILL, "starting", "install", "--no-probe").returncode == -KILL
        node.node("uninstall")
        node.is_untouched()
    finally:
        drop_in.unlink()
        node.booted.run("systemctl", "daemon-reload")
    node.pod_gets("runc", overridden=True)


@pytest.mark.parametrize("repeated", ["install", "uninstall"])
def test_uninstall_that_was_killed(node: Wirable, repeated: str) -> None:
    node.install("--no-probe")
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
    assert pods(node) == []
    assert node.status()[0] == NOT_WIRED


@pytest.mark.parametrize("step", [1, 4])
def test_install_that_is_interrupted_while_it_writes(node: Wirable, step: int) -> None:
    """At the journal, and at one of the files."""
    done = signalled(node, TERM, step, INSTALL)
    assert (done.returncode, done.stderr) == (1, INTERRUPTED)
    node.is_untouched()


def test_uninstall_that_is_interrupted_when_nothing_refers_to_it_any_more(node: Wirable) -> None:
    """Then there is no way back, and it goes on to its end."""
    node.install("--no-probe")
    done = signalled(node, TERM, 4, UNINSTALL)
    assert (done.returncode, done.stderr) == (0, "")
    node.is_untouched()


def test_uninstall_that_is_interrupted_puts_everything_back(node: Wirable) -> None:
    node.install("--no-probe")
    complete = installed(node)
    done = end(node, TERM, "restarting", "uninstall")
    assert (done.returncode, done.stderr) == (1, INTERRUPTED)
    assert differences(complete, installed(node)) == []
    assert node.status() == (0, WIRED, [])
    node.pod_gets("runc")
