"""A kubelet that allocates devices, and what containers see of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.node import Node
from harness.paths import TOP
from unit.kubelet import entry, write_checkpoint

from e2e.cri.client import Container, Pairs, Pod
from e2e.cri.node import Containerd

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GPU = {"envs": {VISIBLE: "GPU-4"}}


class Kubelet:
    """Allocates devices, notes it in the checkpoint, and asks for containers, as a real one does."""

    def __init__(self, node: Node) -> None:
        self.root = node.directory / "kubelet"
        self.entries: list[dict[str, Any]] = []
        example = (TOP / "config/examples/gpu-lockdown.yaml").read_text()
        node.write_policy(example.replace("spec:\n", f"spec:\n  kubelet: {{root: {self.root}}}\n", 1))

    def allocate(self, pod: Pod, name: str, *ids: str, resource: str = "example.com/gpu", **answer: Any) -> None:
        """Write a plugin's answer down, before the container is created."""
        self.entries.append(entry(pod.config.metadata.uid, name, *ids, resource=resource, **answer))
        write_checkpoint(self.root, *self.entries)

    def run(
        self, pod: Pod, name: str, answer: dict[str, Any], env: Pairs = (), mounts: Pairs = (), **container: Any
    ) -> Container:
        """A container with a plugin's answer: its env, mounts and devices before the pod's own."""
        self.allocate(pod, name, "GPU-4", **answer)
        return pod.run(
            name=name,
            env=[*answer.get("envs", {}).items(), *env],
            mounts=[*((m["host_path"], m["container_path"]) for m in answer.get("mounts", [])), *mounts],
            devices=[(d["host_path"], d["container_path"]) for d in answer.get("devices", [])],
            annotations=answer.get("annotations", {}) | container.pop("annotations", {}),
            **container,
        )


def visible(container: Container) -> str:
    """The devices that the process sees as its own, and every process that is exec'd as well."""
    of_process, of_exec = (
        [entry.partition("=")[2] for entry in environ if entry.startswith(VISIBLE + "=")]
        for environ in (container.environ(), container.exec_environ())
    )
    assert of_process == of_exec
    [value] = of_process
    return value


def seen_device(container: Container) -> str:
    """Type, numbers and mode of /dev/gpu0."""
    return container.exec("/bin/busybox", "stat", "-c", "%F %t:%T %a", "/dev/gpu0").strip()


def assert_device(container: Container) -> None:
    """/dev/gpu0 is the allocated node, and the devices cgroup lets it be opened."""
    assert seen_device(container) == "character special file 1:b 600"
    container.exec("/bin/sh", "-c", ": > /dev/gpu0")


def gpu_answer(gpu_node: Path, permissions: str = "rw") -> dict[str, Any]:
    """A plugin's answer with a device."""
    device = {"host_path": str(gpu_node), "container_path": "/dev/gpu0", "permissions": permissions}
    return GPU | {"devices": [device]}


def assert_only_the_allocated(kubelet: Kubelet, pod: Pod, gpu_node: Path) -> None:
    """A container has its device, asked of the engine or not or replaced; one without an allocation has none."""
    answer = gpu_answer(gpu_node)
    assert_device(kubelet.run(pod, "asked", answer))
    for name, others in (("lost", []), ("other", [("/dev/zero", "/dev/gpu0")])):
        kubelet.allocate(pod, name, "GPU-4", **answer)
        assert_device(pod.run(name=name, devices=others))
    none = pod.run(name="none")
    assert "gpu0" not in none.exec("/bin/ls", "/dev")
    none.exec("/bin/busybox", "mknod", "/tmp/gpu0", "c", "1", "11")
    with pytest.raises(AssertionError, match="not permitted"):
        none.exec("/bin/sh", "-c", ": > /tmp/gpu0")


def assert_nothing_but_the_allocated_opens(container: Container) -> None:
    """No node of the GPU's number is in /dev, and one that the container makes cannot be opened."""
    nodes = container.exec(
        "/bin/busybox", "find", "/dev", "-type", "c", "-exec", "/bin/busybox", "stat", "-c", "%t:%T", "{}", ";"
    )
    assert "1:b" not in nodes.split()
    assert "1:3" in nodes.split()
    container.exec("/bin/busybox", "mknod", "/tmp/gpu0", "c", "1", "11")
    with pytest.raises(AssertionError, match="not permitted"):
        container.exec("/bin/sh", "-c", ": > /tmp/gpu0")


def assert_a_resize_gives_nothing_back(kubelet: Kubelet, pod: Pod, gpu_node: Path, node: Node) -> None:
    """The engine hands its own linux.resources, with the rule for the device, to each update; crun wrote it."""
    node.write_policy(node.policy.read_text() + exclusive(gpu_node))
    allocated = kubelet.run(pod, "allocated", gpu_answer(gpu_node))
    asked = pod.run(name="asked", devices=[(str(gpu_node), "/dev/xvda")])
    assert_nothing_but_the_allocated_opens(asked)
    for shares in (512, 600):
        for container in (allocated, asked):
            container.update(shares)
        assert_device(allocated)
        with pytest.raises(AssertionError, match="not permitted"):
            asked.exec("/bin/sh", "-c", ": > /tmp/gpu0")
        asked.exec("/bin/sh", "-c", ": > /dev/null")


KIND = "vendor.example/gpu"


def cdi_spec(containerd: Containerd, gpu_node: Path, *env: str) -> str:
    """A CDI device, with a device node, and its fully qualified name."""
    directory = containerd.root.path("etc/cdi")
    directory.mkdir(exist_ok=True)
    edits = {"deviceNodes": [{"path": "/dev/gpu0", "hostPath": str(gpu_node)}], "env": list(env)}
    spec = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [{"name": "0", "containerEdits": edits}]}
    (directory / "vendor.json").write_text(json.dumps(spec))
    return f"{KIND}=0"


def exclusive(gpu_node: Path) -> str:
    """A rule, to be appended to a policy."""
    return f"  - {{name: only, deviceAllocations: {{exclusive: ['{gpu_node.parent}/gpu*']}}}}\n"
