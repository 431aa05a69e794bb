"""Pods under a real cri-dockerd (tests/lab/cri-dockerd/run.sh) and Debian 12's dockerd, asked for as kubelet does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from e2e.cri.client import Container, Pod, call, key_values, messages, namespaces
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot, boot, module_boot
from e2e.node.test_dockershim import CHECKPOINT, PLUGIN, VISIBLE
from e2e.node.wired import POLICY_FILE
from lab.cri_dockerd import TYPES, files, start
from unit.kubelet import entry, write_checkpoint
from unit.podresources import PodResources, answer

__all__ = ["boot", "module_boot"]

KUBELET = "/var/lib/kubelet"
LABEL = "io.kubernetes."


class Kubelet:
    """What kubelet asks cri-dockerd for, and writes beside it."""

    def __init__(self, node: BootedNode) -> None:
        self.node = node
        driver = node.run("docker", "info", "--format", "{{.CgroupDriver}}").stdout.strip()
        self.systemd = driver == "systemd"
        self.pods: list[Pod] = []

    def pod(self, namespace: str, name: str, labels: dict[str, str] | None = None) -> Pod:
        """RunPodSandbox, with kubelet's labels, log directory and cgroup."""
        uid = str(uuid.uuid4())
        logs = f"/var/log/pods/{namespace}_{name}_{uid}"
        self.node.path(logs).mkdir(parents=True)
        parent = f"/kubepods/besteffort/pod{uid}"
        if self.systemd:
            parent = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
        own = {f"{LABEL}pod.namespace": namespace, f"{LABEL}pod.name": name, f"{LABEL}pod.uid": uid}
        config = messages.PodSandboxConfig(
            metadata=messages.PodSandboxMetadata(name=name, uid=uid, namespace=namespace),
            log_directory=logs,
            labels={**(labels or {}), **own},
            linux=messages.LinuxPodSandboxConfig(
                cgroup_parent=parent,
                security_context=messages.LinuxSandboxSecurityContext(namespace_options=namespaces()),
            ),
        )
        cri = self.node.cri
        made = call(cri.runtime.RunPodSandbox, messages.RunPodSandboxRequest(config=config)).pod_sandbox_id
        self.pods.append(Pod(cri, made, config))
        return self.pods[-1]

    def run(self, pod: Pod, name: str, env: dict[str, str] | None = None, image: str = HOSTILE) -> Container:
        """CreateContainer and StartContainer, with kubelet's labels, directories and termination log."""
        of = pod.config.metadata
        self.node.path(f"{pod.config.log_directory}/{name}").mkdir()
        log = f"{KUBELET}/pods/{of.uid}/containers/{name}/0badcafe"
        self.node.path(log).parent.mkdir(parents=True)
        self.node.path(log).touch()
        config = messages.ContainerConfig(
            metadata=messages.ContainerMetadata(name=name),
            image=messages.ImageSpec(image=image, user_specified_image=image),
            envs=key_values((env or {}).items()),
            mounts=[messages.Mount(host_path=log, container_path="/dev/termination-log")],
            log_path=f"{name}/0.log",
            labels={
                f"{LABEL}container.name": name,
                f"{LABEL}pod.name": of.name,
                f"{LABEL}pod.namespace": of.namespace,
                f"{LABEL}pod.uid": of.uid,
            },
            annotations={
                f"{LABEL}container.hash": "0badcafe",
                f"{LABEL}container.restartCount": "0",
                f"{LABEL}container.terminationMessagePath": "/dev/termination-log",
                f"{LABEL}container.terminationMessagePolicy": "File",
            },
            linux=messages.LinuxContainerConfig(
                security_context=messages.LinuxContainerSecurityContext(namespace_options=namespaces())
            ),
        )
        container = pod.make(config)
        container.start()
        return container

    def events(self) -> list[dict[str, Any]]:
        """The events about containers since the last call."""
        return self.node.container_events()

    def forget(self) -> None:
        """No pod, no container."""
        for pod in self.pods:
            pod.remove()
        self.node.path(CHECKPOINT).unlink(missing_ok=True)
        self.events()


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    node = module_boot("bookworm", files=files(), docker=True, images=False)
    start(node)
    return node


@pytest.fixture
def kubelet(node: BootedNode) -> Iterator[Kubelet]:
    kubelet = Kubelet(node)
    yield kubelet
    kubelet.forget()


def value(container: Container, name: str = VISIBLE) -> str:
    """A name's value in the container's process and, the same, in an exec'ed one; "" without."""
    found = [
        [entry.partition("=")[2] for entry in environ if entry.startswith(name + "=")]
        for environ in (container.environ(), container.exec_environ())
    ]
    assert found[0] == found[1]
    return found[0][0] if found[0] else ""


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_device_plugins_own_pod_keeps_all_and_a_tenants_gets_its_allocation(kubelet: Kubelet, start: str) -> None:
    """By the namespace, the GPU rule and a rule for the pod's labels; the sandboxes are left alone."""
    units = ("reassert-agent.socket", "reassert-agent.service")
    kubelet.node.run("systemctl", "stop" if start == "cold" else "start", *units)
    try:
        plugin = kubelet.pod(PLUGIN[0], "nvidia-device-plugin")
        assert value(kubelet.run(plugin, "nvidia-device-plugin-ctr")) == "all"
        assert kubelet.events() == [], "excluded, and the sandbox by its type"
        tenant = kubelet.pod("team-a", "train-0", {"tier": "web"})
        allocated = entry(
            tenant.config.metadata.uid, "train", "GPU-7", resource="nvidia.com/gpu", envs={VISIBLE: "GPU-7"}
        )
        write_checkpoint(kubelet.node.path(KUBELET), allocated)
        train = kubelet.run(tenant, "train", {VISIBLE: "all"})
        assert (value(train), value(train, "TIER")) == ("GPU-7", "web")
        other = kubelet.run(kubelet.pod("team-b", "train-1"), "train", {VISIBLE: "all"})
        assert (value(other), value(other, "TIER")) == ("void", "")
    finally:
        kubelet.node.run("systemctl", "start", *units)
    found = [(each["event"], each["start"], each["container"]["namespace"]) for each in kubelet.events()]
    assert found == [("container.edited", start, "team-a"), ("container.edited", start, "team-b")]


def test_kubelets_podresources_tells_the_types(kubelet: Kubelet) -> None:
    policy = kubelet.node.path(POLICY_FILE)
    before = policy.read_text()
    policy.write_text(TYPES)
    try:
        pod = kubelet.pod("team-a", "typed")
        with closing(PodResources(kubelet.node.path(KUBELET), answer("team-a", "typed", {"app": []}))):
            assert value(kubelet.run(pod, "app", {VISIBLE: "all"})) == "void"
            assert value(kubelet.run(pod, "init", {VISIBLE: "all"})) == "none"
    finally:
        policy.write_text(before)
