"""`exclusive` where systemd makes the containers' cgroups, on cgroup v2, as on most nodes of Kubernetes.

systemd puts its own device program in force again after `daemon-reload` and when a property of the unit changes.
"""

from __future__ import annotations

import subprocess
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.node import Node

from e2e.node.booted import ENVIRONMENT, BootedNode
from e2e.node.conftest import Boot
from e2e.test_exclusive import ALLOW_ALL, Machine

PROGRAM = "/src/reassert/dist/reassert/reassert"
RUNTIMES = ("/usr/sbin/runc", "/usr/bin/crun")
OLD = "bookworm"
CLOSED, OPEN = "Operation not permitted", "No such device or address"


class Systemd:
    """The runtimes and systemctl of a booted node, with cgroup v2 at /sys/fs/cgroup."""

    def __init__(self, booted: BootedNode, node: Node, real: str) -> None:
        self._booted = booted
        self._real = [real, "--systemd-cgroup"]
        self.runtime = [PROGRAM, "runtime", "--real", real, *node.options(), "--", "--systemd-cgroup"]

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        entered = ["nsenter", "--target", str(self._booted.pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
        environment = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return subprocess.run(
            [*entered, "--cgroup", "env", "-i", *environment, *command],
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            **options,
        )

    def opens(self, container: str, path: str, numbers: str = "") -> str:
        """What a process of the container gets that opens a device; with numbers it makes the node first."""
        make = f"[ -e {path} ] || mknod {path} {numbers}; " if numbers else ""
        command = ["exec", container, "/bin/sh", "-c", f"{make}exec cat {path}"]
        lines = self.run(*self._real, *command, capture_output=True).stderr.splitlines()
        return next((line.rpartition(": ")[2] for line in lines if line.startswith(("cat: ", "mknod: "))), "")


@marks.claim("exclusive", "runtime")
@marks.hole(
    "With `exclusive` and systemd's cgroups, privileged containers lost all devices at the next `daemon-reload`",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("suite", [OLD, "trixie", "forky"])
def test_a_privileged_container_keeps_its_devices_when_systemd_sets_them_again(suite: str, boot: Boot) -> None:
    booted = boot(suite, images=False)
    # crun 1.8.1 of bookworm needs CAP_SYS_RESOURCE on cgroup v2, to lock memory for its BPF program
    for real in RUNTIMES[:1] if suite == OLD else RUNTIMES:
        keeps_its_devices(booted, real)


def keeps_its_devices(booted: BootedNode, real: str) -> None:
    """With one runtime of the node."""
    directory = booted.directory / real.rpartition("/")[2]
    directory.mkdir()
    node, bundle = Node(directory), Bundle(directory / "k8s.io" / "x")
    Machine(node, bundle).rules[:] = [ALLOW_ALL]
    bundle.spec["linux"]["cgroupsPath"] = "system.slice:cri-containerd:x"
    bundle.save()
    there = Systemd(booted, node, real)
    log = directory / "log"
    with log.open("w") as output:  # a pipe would stay open in the container
        create = [*there.runtime, "create", "--bundle", str(bundle.directory), "x"]
        created = there.run(*create, stdout=output, stderr=output)
    assert created.returncode == 0, log.read_text()
    there.run(real, "--systemd-cgroup", "start", "x", capture_output=True)
    for change in (
        ("/bin/true",),
        ("systemctl", "daemon-reload"),
        ("systemctl", "set-property", "--runtime", "cri-containerd-x.scope", "CPUWeight=50"),
    ):
        assert there.run(*change).returncode == 0
        assert there.opens("x", "/dev/null") == "", change
        assert there.opens("x", "/dev/try0", "c 240 0") == CLOSED, change
        assert there.opens("x", "/dev/mem200", "c 1 200") == OPEN, change  # of a driver of the node
        if booted.suite != OLD:  # runc 1.1.5 leaves out a device without a driver
            assert there.opens("x", "/dev/gpu1") == OPEN, change
    there.run(real, "--systemd-cgroup", "delete", "--force", "x", capture_output=True)
