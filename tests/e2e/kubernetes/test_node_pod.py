"""The node pod of the chart, a real privileged pod on a node that systemd has booted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.kubernetes.chart import find, objects
from unit.support import ROOT

from e2e.cri.client import wait_for
from e2e.cri.images import HOSTILE
from e2e.kubernetes.image import NAME, write_image
from e2e.kubernetes.kubelet import ConfigMapVolume, container_config, probe
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot, boot, module_boot
from hook.system import Untrusted, trusted

__all__ = ["boot", "module_boot"]

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  exclude: {namespaces: [kube-system]}
  rules:
  - {name: ca, env: [{name: REQUESTS_CA_BUNDLE, value: /etc/ca.pem}]}
"""
BROKEN = POLICY.replace("rules:", "rulez:")
UNIT = "reassert-kubernetes.service"
LEFT_FOR_RUNNING_CONTAINERS = {
    "/usr/local/sbin/reassert-runc",
    "/var/lib/reassert",
    "/var/lib/reassert/node",
    "/var/lib/reassert/node/installed.json",
    "/var/lib/reassert/node/lock",
}
"""A container's end calls what its start called, and the pod that takes reassert out is such a container itself."""
IN_FORCE = "/etc/reassert/policy.yaml"


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A worker node with the chart's image pulled; of the oldest systemd that there is."""
    node = module_boot("bookworm")
    image = write_image(node.directory, ROOT / "build/roots/trixie")
    node.ctr("image", "import", str(image))
    image.unlink()
    wait_for(lambda: node.cri.has_image(NAME), "the chart's image")
    return node


class Daemon:
    """The pod of the chart's node DaemonSet, as kubelet starts it. `policy`: what the ConfigMap says."""

    def __init__(self, node: BootedNode, policy: str = POLICY, state: str = "present", **values: Any) -> None:
        self.node = node
        spec = find(objects({"node": values}), "DaemonSet")["spec"]["template"]["spec"]
        (self._described,) = spec["containers"]
        assert spec["hostPID"]
        self.pod = node.cri.run_pod("runc", namespace="kube-system", name="reassert-node", privileged=True)
        volumes = node.path(f"/var/lib/kubelet/pods/{self.pod.id}/volumes")
        self.policy = ConfigMapVolume(volumes / "policy")
        self.policy.write({"policy.yaml": policy})
        (volumes / "work").mkdir()
        paths = {name: f"/var/lib/kubelet/pods/{self.pod.id}/volumes/{name}" for name in ("policy", "work")}
        config = container_config(self._described, NAME, paths, {"INTERVAL": "1", "STATE": state})
        self.container = self.pod.make(config)
        self.container.start()

    def ready(self) -> tuple[bool, str]:
        """Whether the readiness probe succeeds, and what it says."""
        return probe(self.container, self._described, "readinessProbe")

    def wait(self, ready: bool, why: str = "") -> None:
        """Until it is ready, or not for this reason."""

        def as_wanted() -> bool:
            time.sleep(0.5)  # a probe is work for the node too
            now, said = self.ready()
            assert why or " failed, see" not in said, self.said()  # it stays so
            return now is ready and why in said

        wait_for(as_wanted, f"ready {ready} {why}", lambda: f"{self.ready()}\n{self.said()}", 120)

    def said(self) -> str:
        """Its log."""
        return self.container.log.read_text()

    def end(self) -> None:
        """As kubelet ends a pod."""
        self.node.wait_for_cri()
        self.pod.remove()


@pytest.fixture
def daemon(node: BootedNode) -> Iterator[Any]:
    """Starts node pods; at the end the node is as it was."""
    before = node.snapshot()
    started: list[Daemon] = []

    def start(**more: Any) -> Daemon:
        started.append(Daemon(node, **more))
        return started[-1]

    yield start
    for each in started:
        each.end()
    node.run("/src/reassert/dist/reassert/reassert", "node", "uninstall")
    node.run("rm", "-rf", "/etc/reassert", "/var/lib/reassert", "/var/lib/reassert-kubernetes")
    assert node.snapshot() == before


def hostile(node: BootedNode) -> str:
    """What a pod has for REQUESTS_CA_BUNDLE whose author sets it."""
    pod = node.cri.run_pod("runc")
    container = pod.run(image=HOSTILE, env=[("REQUESTS_CA_BUNDLE", "/tmp/evil")])
    try:
        return dict(entry.split("=", 1) for entry in container.environ())["REQUESTS_CA_BUNDLE"]
    finally:
        pod.remove()


def test_the_node_is_wired_verified_and_put_back_to_the_byte(daemon: Any, node: BootedNode) -> None:
    before = node.snapshot()
    assert hostile(node) == "/tmp/evil"
    first = daemon()
    first.wait(True)
    assert hostile(node) == "/etc/ca.pem"
    assert "every handler is protected" in first.said()
    first.end()
    wired, engine = node.snapshot(), node.property("containerd.service", "MainPID")
    second = daemon()  # as after an update of the DaemonSet
    second.wait(True)
    assert node.snapshot() == wired
    assert node.property("containerd.service", "MainPID") == engine
    second.end()
    last = daemon(state="absent")
    last.wait(True)
    assert hostile(node) == "/tmp/evil"
    assert "it stays and passes through to /usr/sbin/runc" in last.said()
    assert set(node.snapshot()) - set(before) == LEFT_FOR_RUNNING_CONTAINERS
    last.end()
    daemon(state="absent").wait(True)
    assert node.snapshot() == before


def test_a_policy_follows_the_configmap_unless_it_is_broken(daemon: Any, node: BootedNode) -> None:
    pod = daemon()
    pod.wait(True)
    pod.policy.write({"policy.yaml": BROKEN})
    pod.wait(False, "the ConfigMap's policy has errors")
    assert "/etc/reassert/policy.yaml.candidate:5:3: error" in pod.said()
    assert node.path(IN_FORCE).read_text() == POLICY
    assert hostile(node) == "/etc/ca.pem"
    pod.policy.write({"policy.yaml": POLICY.replace("ca.pem", "other.pem")})
    pod.wait(True)
    assert hostile(node) == "/etc/other.pem"
    assert [path.name for path in node.path("/etc/reassert").iterdir()] == ["policy.yaml"]
    node.path(IN_FORCE).write_text(POLICY)  # somebody on the node
    wait_for(lambda: "other.pem" in node.path(IN_FORCE).read_text(), "the ConfigMap's policy", pod.said)


def test_a_first_policy_that_is_broken_wires_nothing(daemon: Any, node: BootedNode) -> None:
    before = node.snapshot()
    daemon(policy=BROKEN).wait(False, "the node has no policy yet and the ConfigMap's has errors: nothing is wired")
    ours = ("/var/lib/reassert-kubernetes", "/etc/reassert")
    assert {path: entry for path, entry in node.snapshot().items() if not path.startswith(ours)} == before


def test_the_default_policy_only_logs_and_is_ready(daemon: Any, node: BootedNode) -> None:
    """In Audit mode there is nothing that `verify` could see."""
    daemon(policy=(ROOT / "config/policy.yaml").read_text()).wait(True)
    assert hostile(node) == "/tmp/evil"


def test_one_handler_alone(daemon: Any, node: BootedNode) -> None:
    daemon(runtimeClass="crun").wait(True)
    assert hostile(node) == "/tmp/evil"
    pod = node.cri.run_pod("crun")
    assert "REQUESTS_CA_BUNDLE=/etc/ca.pem" in pod.run(image=HOSTILE).environ()
    pod.remove()


def test_the_end_of_the_pod_does_not_interrupt_the_node(daemon: Any, node: BootedNode) -> None:
    """What is under way is the node's own service; the next pod waits for it."""
    first = daemon()
    wait_for(lambda: node.property(UNIT, "ActiveState") == "active", UNIT, first.said)
    first.container.remove()
    second = daemon()
    second.wait(True)
    assert "waiting for" in second.said() or "is wired already" in second.said()
    assert hostile(node) == "/etc/ca.pem"


def test_a_failure_is_said_and_not_tried_again(daemon: Any, node: BootedNode) -> None:
    """Each try may restart the engine, for the same failure."""
    config = node.path("/etc/containerd/config.toml")
    good = config.read_text()
    config.write_text(good + "\n[broken\n")
    try:
        pod = daemon()
        pod.wait(False, "reassert node install failed")
        assert pod.said().count("node install failed") == 1
        assert "config.toml" in pod.said()
    finally:
        config.write_text(good)
    assert hostile(node) == "/tmp/evil"


def test_kubelets_own_directory_would_not_be_trusted(directory: Path) -> None:
    """Why the policy is copied and not read where the ConfigMap is mounted: all may write to that directory."""
    volume = ConfigMapVolume(directory / "policy")
    volume.write({"policy.yaml": POLICY})
    with pytest.raises(Untrusted, match="policy is writable by others"):
        trusted(str(directory / "policy/policy.yaml"))
    (directory / "policy").chmod(0o755)
    trusted(str(directory / "policy/policy.yaml"))
