"""The nodes of the other tests are what they are taken for."""

from __future__ import annotations

import pytest

from e2e.conftest import RUNTIMES
from e2e.cri.hostile import ENV, OVERRIDDEN, reserved_in
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import FORMATS


@pytest.fixture(scope="module", params=sorted(FORMATS))
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
