"""The nodes of the other tests are what they are taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.conftest import RUNTIMES
from e2e.cri.hostile import ENV, OVERRIDDEN, reserved_in
from e2e.cri.images import HOSTILE
from e2e.node.booted import NONE, PACKAGED, BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG, SUITES
from e2e.node.files import differences


@pytest.fixture(scope="module", params=SUITES)
def node(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    return module_boot(request.param)


def test_systemd_has_booted_it_without_a_failure(node: BootedNode) -> None:
    assert node.run("systemctl", "is-system-running", check=False).stdout == "running\n", node.trouble()
    assert node.run("cat", "/proc/1/comm").stdout == "systemd\n"
    assert node.property("containerd.service", "ActiveState") == "active"


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
def test_a_pod_outlives_a_restart_of_containerd(node: BootedNode, runtime: str) -> None:
    pod = node.cri.run_pod(runtime)
    container = pod.run(image=HOSTILE, env=ENV)
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == OVERRIDDEN
    was = node.property("containerd.service", "MainPID")
    node.run("systemctl", "restart", "containerd")
    node.wait_for_cri()
    assert node.property("containerd.service", "MainPID") != was
    assert reserved_in(container.exec_environ()) == OVERRIDDEN
    pod.remove()


@pytest.mark.parametrize(("suite", "config"), [("bookworm", PACKAGED), ("forky", NONE)])
def test_containerd_may_have_hardly_any_configuration(boot: Boot, suite: str, config: str) -> None:
    node = boot(suite, config=config)
    assert node.path(CONFIG).exists() == (config == PACKAGED)
    pod = node.cri.run_pod("")
    assert reserved_in(pod.run(image=HOSTILE, env=ENV).environ()) == OVERRIDDEN
    node.kill()
    assert [path for path in Path("/proc").glob("[0-9]*/cgroup") if node.directory.name in _read(path)] == []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except ProcessLookupError:
        return ""


def test_whatever_changes_on_a_node_is_seen(node: BootedNode) -> None:
    before = node.snapshot()
    assert before[CONFIG].content == node.path(CONFIG).read_bytes()
    assert differences(before, node.snapshot()) == []
    node.run(
        "sh",
        "-ec",
        f"""
        cp -p {CONFIG} /etc/kept
        touch -d 2001-01-01 {CONFIG}
        mkdir /opt/new
        ln -s target /etc/new
        chmod 600 /etc/hosts
        chown 1:2 /etc/hostname
        rm /etc/issue
        echo more >> /etc/fstab
        ln -sf elsewhere /etc/localtime
    """,
    )
    found = differences(before, node.snapshot())
    assert [line.split(" was ")[0] for line in found] == [
        "/etc/fstab: content",
        "/etc/hostname: owner",
        "/etc/hosts: mode",
        "/etc/issue: went",
        "/etc/kept: came",
        "/etc/localtime: content",
        "/etc/new: came",
        "/opt/new: came",
    ]
