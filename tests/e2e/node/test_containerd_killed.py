"""`reassert node install` and `uninstall` that are killed or interrupted: the next one finishes the job.

What a single file goes through is tried in tests/unit/node/test_change.py; here it is the whole program on a node.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG
from e2e.node.files import TOPS, Snapshot, differences
from e2e.node.wiring import (
    FILES,
    PROGRAM,
    Before,
    assert_corrected,
    assert_overridden,
    prepared,
    reassert,
    status,
    unwire,
    wire,
)
from e2e.support import need, run

STEPS = 40
"""More renames than any of the commands makes."""


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    return prepared(module_boot("trixie", files=FILES))


@pytest.fixture
def node(booted: BootedNode) -> Iterator[BootedNode]:
    """A node without reassert."""
    yield unwire(booted)
    booted.run("systemctl", "start", "containerd")


def traced(node: BootedNode, inject: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`reassert node …` with a signal at a system call, as strace(1) has it: `rename:signal=KILL:when=3`."""
    call = inject.partition(":")[0]
    command = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={inject}"]
    return run(*command, *node.command(PROGRAM, "node", *arguments), check=False)


def installed_files(node: BootedNode) -> Snapshot:
    """What an installation consists of; the compiled policy may be made by anybody at any time."""
    files = node.snapshot((*TOPS, "/usr/local"))
    return {path: entry for path, entry in files.items() if not path.startswith("/var/lib/reassert/etc-")}


INSTALL, UNINSTALL = ("install", "--no-probe"), ("uninstall",)


@pytest.mark.parametrize("operation", [INSTALL, UNINSTALL], ids=" ".join)
def test_kill_9_at_each_step(node: BootedNode, operation: tuple[str, ...]) -> None:
    """Containerd is stopped: it makes no difference to the files, and its restarts take their time."""
    need(run("strace", "-V", check=False).returncode == 0, "strace")
    node.run("systemctl", "stop", "containerd")
    before = Before(node, CONFIG)
    reassert(node, *INSTALL)
    installed = installed_files(node)
    if operation is INSTALL:
        reassert(node, *UNINSTALL)
    for step in range(1, STEPS):
        done = traced(node, f"rename:signal=KILL:when={step}", *operation)
        if done.returncode == 0:
            break
        finishing = INSTALL if (step % 2) == (operation is INSTALL) else UNINSTALL
        print(operation, step, done.returncode, done.stdout, done.stderr, finishing)
        reassert(node, *finishing)
        if finishing is INSTALL:
            assert differences(installed, installed_files(node)) == [], step
        else:
            before.is_back()
        if finishing is operation:
            reassert(node, *(UNINSTALL if operation is INSTALL else INSTALL))
    assert step > 3
    assert differences(installed, installed_files(node)) == [] if operation is INSTALL else before.is_back() is None
