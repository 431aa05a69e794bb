"""The Debian package on a node that runs: systemd, containerd, pods."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode, booted
from e2e.node.engines import CONFIG
from e2e.packaging.conftest import INSTALL, UPGRADE
from e2e.packaging.test_deb import POLICY, PROGRAM

UNIT = "reassert-nri.service"
AGENT = ("reassert-agent.socket", "reassert-agent.service")
VISIBLE = "NVIDIA_VISIBLE_DEVICES"

POLICY_TEXT = f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  rules:
  - {{name: gpu, env: [{{name: {VISIBLE}, value: void}}]}}
"""


def visible(node: BootedNode) -> set[str]:
    """What a hostile container gets, in its process and in exec."""
    pod = node.cri.run_pod("")
    container = pod.run(env=[(VISIBLE, "all")])
    found = {line for line in container.environ() + container.exec_environ() if line.startswith(VISIBLE)}
    pod.remove()
    return found


def sh(node: BootedNode, script: str) -> str:
    """Standard output of a script on the node."""
    return node.run("sh", "-euc", script).stdout


@pytest.fixture
def node() -> Iterator[BootedNode]:
    """A node with containerd 1.7."""
    with booted("trixie") as started:
        yield started


def test_from_installation_to_purge(node: BootedNode, debs: Path) -> None:
    (node.directory / "debs").mkdir()
    for name in ("1.deb", "2.deb"):
        os.link(debs / name, node.directory / "debs" / name)
    install, upgrade = (script.replace("/debs/", f"{node.directory}/debs/") for script in (INSTALL, UPGRADE))
    containerd = node.path(CONFIG).read_bytes()

    sh(node, install)
    state = {"ActiveState": "inactive", "UnitFileState": "disabled"}
    assert node.properties(UNIT, *state) == state
    checked = node.run("systemd-analyze", "verify", f"/usr/lib/systemd/system/{UNIT}")
    assert checked.stdout + checked.stderr == ""
    assert node.path(CONFIG).read_bytes() == containerd
    assert visible(node) == {f"{VISIBLE}=all"}

    node.path(POLICY).write_text(POLICY_TEXT)
    sh(node, "reassert node install --adapter runtime,nri")
    node.wait_for_cri()
    assert visible(node) == {f"{VISIBLE}=void"}
    agent = {"ActiveState": "active", "UnitFileState": "enabled"}
    assert [node.properties(unit, *agent) for unit in AGENT] == [agent, agent]
    assert not node.path(f"/etc/systemd/system/{AGENT[1]}").exists()
    assert node.properties(UNIT, *state) == state  # the plugin is in the agent
    answering = node.property(AGENT[1], "MainPID")

    wired = sh(node, "cat /usr/local/sbin/reassert-runc")
    engine = node.property("containerd.service", "MainPID")
    sh(node, upgrade)
    wait_for(lambda: node.property(AGENT[1], "MainPID") not in ("0", answering), "the new agent", node.trouble)
    assert sh(node, "cat /usr/local/sbin/reassert-runc") == wired
    assert node.property("containerd.service", "MainPID") == engine
    wait_for(lambda: node.property(AGENT[1], "ActiveState") == "active", "its connection", node.trouble)
    assert node.property(AGENT[0], "ActiveState") == "active"
    process = node.property(AGENT[1], "MainPID")
    assert sh(node, f"readlink /proc/{process}/exe") == sh(node, f"readlink -f {PROGRAM}")
    assert visible(node) == {f"{VISIBLE}=void"}
    sh(node, "reassert node status")

    sh(node, "dpkg --purge reassert")
    assert node.path(CONFIG).read_bytes() == containerd
    node.wait_for_cri()
    assert visible(node) == {f"{VISIBLE}=all"}
    assert [node.property(unit, "LoadState") for unit in (UNIT, *AGENT)] == ["not-found"] * 3


def test_the_package_and_install_sh_on_one_node(node: BootedNode, debs: Path) -> None:
    """Each leaves the other's wiring alone, and it moves only if that is asked for."""
    (node.directory / "debs").mkdir()
    os.link(debs / "1.deb", node.directory / "debs/1.deb")
    sh(node, INSTALL.replace("/debs/", f"{node.directory}/debs/"))
    node.path(POLICY).write_text(POLICY_TEXT)
    assert "is wired (runtime)" in sh(node, "/src/reassert/dist/reassert/reassert node install --no-probe")
    refused = node.run("/usr/bin/reassert", "node", "install", check=False)
    assert refused.returncode == 1
    assert "add --take-over to have engines call this one" in refused.stderr
    agents = node.property(AGENT[1], "MainPID")
    removed = sh(node, "dpkg --purge reassert 2>&1")
    assert "Nothing was changed: this node is wired with /opt/reassert/reassert." in removed
    assert node.property(AGENT[1], "MainPID") == agents
    assert node.path(POLICY).read_text() == POLICY_TEXT
    sh(node, "/opt/reassert/reassert node status")
    assert visible(node) == {f"{VISIBLE}=void"}

    sh(node, UPGRADE.replace("/debs/2", f"{node.directory}/debs/1"))
    sh(node, "/usr/bin/reassert node install --no-probe --take-over")
    assert "/usr/lib/reassert/" in sh(node, "cat /usr/local/sbin/reassert-runc")
    assert visible(node) == {f"{VISIBLE}=void"}
    sh(node, "dpkg --purge reassert")
    node.wait_for_cri()
    assert visible(node) == {f"{VISIBLE}=all"}
    assert not node.path("/opt/reassert").exists()
