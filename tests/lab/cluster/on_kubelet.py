"""A real kubelet alone, with static pods: the emptyDirs of a rule, and types of containers.

tests/lab/cluster/run.sh runs it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest
from e2e.cri.client import wait_for
from e2e.cri.images import PLAIN
from e2e.node.booted import BootedNode, booted
from e2e.node.wired import FILES, POLICY_FILE, Wirable, usual_config

from lab.cluster.cluster import KUBELET_CONFIG, PROGRAMS

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  exclude: {containerTypes: [sandbox]}
  rules:
  - name: preset
    match: {podSelector: {matchLabels: {role: frontend}}}
    mounts:
    - {emptyDir: {}, mountPath: /cache}
    - {emptyDir: {medium: Memory, sizeLimit: 1Mi}, mountPath: /scratch}
  - {name: app, match: {containerTypes: [container]}, env: [{name: KIND, value: app}]}
  - {name: others, match: {containerTypes: [init, ephemeral]}, env: [{name: KIND, value: others}]}
"""
UNIT = """\
[Service]
KillMode=process
ExecStart=/src/reassert/tests/lab/cluster/kubelet.sh --config=/etc/kubernetes/kubelet.json
"""
KUBELET = {
    **KUBELET_CONFIG,
    "staticPodPath": "/etc/kubernetes/manifests",
    "fileCheckFrequency": "1s",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}
SCRIPTS = {
    "one": "echo mine > /cache/file; echo mine > /scratch/file; mkdir -p /cache/a/b; exec sleep 1000",
    "two": "until cat /cache/file /scratch/file; do sleep 1; done; echo both; exec sleep 1000",
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default", "labels": {"role": "frontend"}},
    "spec": {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {"name": name, "image": PLAIN, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script]}
            for name, script in SCRIPTS.items()
        ],
    },
}


def container(name: str, script: str, **more: object) -> dict[str, object]:
    """A container that wants another value than the policy's."""
    env = [{"name": "KIND", "value": "pods"}]
    command = ["/bin/sh", "-c", f"echo KIND=$KIND; {script}"]
    return {"name": name, "image": PLAIN, "imagePullPolicy": "Never", "command": command, "env": env, **more}


OF_TYPES = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "types", "namespace": "default"},
    "spec": {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 0,
        "initContainers": [
            container("init", "exit 0"),
            container("sidecar", "exec sleep 1000", restartPolicy="Always"),
        ],
        "containers": [container("main", "exec sleep 1000")],
    },
}
TMPFS = "tmpfs /run/reassert/volumes/"


@pytest.fixture
def node() -> Iterator[BootedNode]:
    """A node with reassert and a kubelet that knows no API server."""
    with booted("trixie", config=usual_config("trixie"), files={**FILES, POLICY_FILE: POLICY}) as node:
        node.path("/usr/local/bin/nvidia-container-runtime").chmod(0o755)
        Wirable(node, node.snapshot()).install()
        for path, text in {
            "/etc/kubernetes/kubelet.json": json.dumps(KUBELET),
            "/etc/systemd/system/kubelet.service": UNIT,
        }.items():
            node.path(path).parent.mkdir(parents=True, exist_ok=True)
            node.path(path).write_text(text)
        node.path("/etc/kubernetes/manifests").mkdir()
        shutil.copy(PROGRAMS / "kubelet", node.path("/usr/local/bin/kubelet"))
        node.run("systemctl", "start", "kubelet")
        yield node
        node.run("systemctl", "stop", "kubelet")


def test_kubelet_removes_a_pods_emptydir_and_the_agent_its_tmpfs(node: BootedNode) -> None:
    """Also after the agent was killed. A mount in kubelet's directory of the pod would keep it from that."""

    def logs() -> str:
        return node.run("sh", "-c", "cat /var/log/pods/*/two/*.log", check=False).stdout

    def mounts() -> str:
        return node.run("cat", "/proc/mounts").stdout

    def said() -> str:
        return "\n".join(node.journal("kubelet")[-30:])

    manifest = node.path("/etc/kubernetes/manifests/web.json")
    manifest.write_text(json.dumps(POD))
    wait_for(lambda: "stdout F both" in logs(), "the pod", said, 90)
    pods = node.path("/var/lib/kubelet/pods")
    [pod] = pods.iterdir()
    assert "file" in os.listdir(next((pod / "reassert").iterdir()))
    [memory] = [line for line in mounts().splitlines() if TMPFS in line and "size=1024k" in line]  # on its private copy
    assert pod.name in memory
    node.run("systemctl", "kill", "--signal=KILL", "reassert-agent.service")
    manifest.unlink()
    wait_for(lambda: not os.listdir(pods), "kubelet's directory of the pod gone", said, 60)
    wait_for(lambda: TMPFS not in mounts(), "the tmpfs unmounted", mounts, 120)


def test_app_containers_and_sidecars_are_told_from_init_containers(node: BootedNode) -> None:
    """By kubelet's PodResources, which lists no init containers but sidecars."""

    def logs(name: str) -> str:
        return node.run("sh", "-c", f"cat /var/log/pods/default_types-*/{name}/*.log", check=False).stdout

    def said() -> str:
        return "\n".join(node.journal("kubelet")[-30:])

    node.path("/etc/kubernetes/manifests/types.json").write_text(json.dumps(OF_TYPES))
    for name, kind in (("init", "others"), ("sidecar", "app"), ("main", "app")):
        wait_for(lambda name=name: "KIND=" in logs(name), f"the container {name}", said, 90)  # type: ignore[misc]
        assert f"KIND={kind}" in logs(name)
    assert "containerTypes" not in node.run("reassert", "policy", "check", "--node").stderr
    node.path("/etc/kubernetes/manifests/types.json").unlink()
    wait_for(lambda: not os.listdir(node.path("/var/lib/kubelet/pods")), "the pod gone", said, 60)
