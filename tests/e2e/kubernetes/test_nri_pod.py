"""The NRI plugin in the pod that the chart makes: what it may do, what it sees, and that it still enforces."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.node import Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import need, remove_tree, scratch
from unit.kubernetes.chart import Object

from e2e.cri.client import Container, Pod, call, messages, wait_for
from e2e.cri.hostile import CA_BUNDLE
from e2e.cri.node import NRI_GENERATIONS, Containerd, Handler, running
from e2e.kubernetes.image import NAME, write_image
from e2e.kubernetes.pods import NriPod

pytestmark = marks.promise("The chart is valid, refuses invalid values, and its pods wire and unwire a node")

POLICY = f"""\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  exclude: {{namespaces: [kube-system]}}
  rules:
  - name: company-ca
    match: {{podSelector: {{matchLabels: {{tier: web}}}}}}
    env:
    - {{name: REQUESTS_CA_BUNDLE, value: {CA_BUNDLE}}}
    - {{name: FROM_THE_NODE, valueFrom: {{file: /etc/reassert/value}}}}
    mounts:
    - {{hostPath: /usr/local/share/company, mountPath: /etc/ssl}}
  - name: preset
    match: {{podSelector: {{matchLabels: {{tier: db}}}}}}
    mounts: [{{emptyDir: {{}}, mountPath: /cache}}]
"""
"""Of the node's own files, none of which the image has."""

HOSTILE = [("REQUESTS_CA_BUNDLE", "/tmp/evil"), ("FROM_THE_NODE", "mine"), ("TEXT", "a b")]


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    """A node with NRI that `node.sh` has been on: program and policy in their places, the chart's image pulled.

    With containerd 1.7; test_node_pod.py has the plugin's pod on 2.1.
    """
    generation = NRI_GENERATIONS["1.7"]
    root = generation.root
    need((root / ".complete").exists(), f"{root} (tests/roots.sh)")
    node = Node(scratch())
    with running(node, generation, [Handler("runc", RUNTIMES["runc"])]) as containerd:
        at = containerd.root.path
        shutil.copytree(REASSERT.parent, at("opt/reassert"))
        for path, text in {
            "etc/reassert/policy.yaml": POLICY,
            "etc/reassert/value": "the node's\n",
            "usr/local/share/company/certs/company.crt": "company\n",
        }.items():
            at(path).parent.mkdir(parents=True, exist_ok=True)
            at(path).write_text(text)
        at("run/nri").mkdir()
        at("run/nri/nri.sock").symlink_to(containerd.directory / "nri.sock")
        image = write_image(containerd.directory, root)
        containerd.ctr("image", "import", str(image))
        image.unlink()
        wait_for(lambda: containerd.cri.has_image(NAME), "the chart's image")
        yield containerd
    remove_tree(node.directory)


@pytest.fixture
def daemon(containerd: Containerd) -> Iterator[NriPod]:
    """The chart's pod on that node."""
    daemon = NriPod(containerd.cri, containerd.root.path)
    yield daemon
    daemon.end()


@pytest.fixture
def hostile(containerd: Containerd, tmp_path: Path) -> Iterator[Any]:
    """Starts a pod whose author overrides all that is reserved; `labels` of the pod."""
    pods: list[Pod] = []

    def start(**labels: str) -> Container:
        pods.append(containerd.cri.run_pod("runc", labels=labels))
        containerd.root.path(f"var/lib/kubelet/pods/{pods[-1].config.metadata.uid}").mkdir(parents=True, mode=0o750)
        return pods[-1].run(env=HOSTILE)

    yield start
    for pod in pods:
        pod.remove()


def reserved(container: Container) -> dict[str, str]:
    entries = dict(entry.split("=", 1) for entry in container.environ())
    return {name: entries[name] for name in ("REQUESTS_CA_BUNDLE", "FROM_THE_NODE")}


def test_it_enforces_with_the_nodes_own_files(daemon: NriPod, hostile: Any) -> None:
    """Labels of the pod, a value and a mount source of the node: all of that from inside the pod."""
    daemon.wait()
    assert reserved(hostile()) == dict(HOSTILE[:2])
    container = hostile(tier="web")
    assert reserved(container) == {"REQUESTS_CA_BUNDLE": CA_BUNDLE, "FROM_THE_NODE": "the node's"}
    assert container.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"


def test_it_makes_a_preset_s_directory_in_kubelet_s_of_the_pod(daemon: NriPod, hostile: Any) -> None:
    daemon.wait()
    container = hostile(tier="db")
    assert container.exec("/bin/busybox", "stat", "-c", "%a", "/cache") == "777\n"
    [mount] = container.mounts("/cache")
    assert "/pods/" in mount.root


def test_a_policy_that_is_exchanged_is_taken_up(daemon: NriPod, containerd: Containerd, hostile: Any) -> None:
    """As node.sh does it: another file takes the name."""
    daemon.wait()
    there = containerd.root.path("etc/reassert/policy.yaml")
    try:
        there.with_name("new").write_text(POLICY.replace(CA_BUNDLE, "/other"))
        there.with_name("new").rename(there)
        # A busy machine may need longer to compile it than a container waits; that one gets the policy before.
        wait_for(lambda: reserved(hostile(tier="web"))["REQUESTS_CA_BUNDLE"] == "/other", "the new policy", daemon.said)
    finally:
        there.write_text(POLICY)


def test_probes_tell_a_lost_runtime_from_a_dead_plugin(daemon: NriPod, containerd: Containerd) -> None:
    wait_for(lambda: daemon.probe("readinessProbe") and daemon.probe("livenessProbe"), "both", daemon.said)
    link = containerd.root.path("run/nri/nri.sock")
    socket_path = link.readlink()
    link.unlink()
    try:
        containerd.stop()
        containerd.start()
        wait_for(lambda: daemon.probe("livenessProbe") and not daemon.probe("readinessProbe"), "only liveness")
    finally:
        link.symlink_to(socket_path)
    wait_for(lambda: daemon.probe("readinessProbe"), "readiness again", daemon.said)


def test_what_it_may_do(daemon: NriPod, containerd: Containerd) -> None:
    """From the spec that the container was made of."""
    spec: Object = json.loads((containerd.bundle(daemon.container.id) / "config.json").read_text())
    process = spec["process"]
    assert process["capabilities"]["bounding"] == process["capabilities"]["effective"] == ["CAP_SYS_CHROOT"]
    assert process["noNewPrivileges"]
    assert spec["root"]["readonly"]
    assert spec["linux"]["seccomp"]["syscalls"]
    for path in ("/x", "/host/etc/x"):
        request = messages.ExecSyncRequest(container_id=daemon.container.id, cmd=["touch", path], timeout=30)
        answer = call(daemon.container.cri.runtime.ExecSync, request)
        assert answer.exit_code == 1
        assert b"Read-only file system" in answer.stderr
