"""With config/examples/gpu-lockdown.yaml a container's devices are what was allocated, however a pod asks for more."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.kubelet import entry, write_checkpoint

from e2e.cri.client import Container, CriError, Pairs, Pod
from e2e.cri.conftest import StartPod
from e2e.cri.images import HOSTILE, PLAIN
from e2e.cri.node import Containerd
from e2e.support import TOP, Node

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GPU = {"envs": {VISIBLE: "GPU-4"}}
ASKED_BY_MOUNT = "/var/run/nvidia-container-devices"

OVERRIDES = {
    "nothing": (PLAIN, []),
    "image": (HOSTILE, []),
    "pod": (PLAIN, [(VISIBLE, "all")]),
    "both": (HOSTILE, [(VISIBLE, "all")]),
    "another": (PLAIN, [(VISIBLE, "GPU-5")]),
    "empty": (HOSTILE, [(VISIBLE, "")]),
    "fieldref": (HOSTILE, [(VISIBLE, "all")]),  # as kubelet resolves the fieldRef metadata.name of a pod named `all`
    "twice": (HOSTILE, [(VISIBLE, "all"), (VISIBLE, "0")]),
}
"""By container name: its image, and the env of its pod spec. HOSTILE's ENV has `all`."""


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


@pytest.fixture
def kubelet(node: Node) -> Iterator[Kubelet]:
    """A kubelet of the scratch node, on which no device was allocated yet."""
    kubelet = Kubelet(node)
    yield kubelet
    for path in (kubelet.root / "device-plugins").glob("*"):
        path.unlink()


def visible(container: Container) -> str:
    """The devices that the process sees as its own, and every process that is exec'd as well."""
    of_process, of_exec = (
        [entry.partition("=")[2] for entry in environ if entry.startswith(VISIBLE + "=")]
        for environ in (container.environ(), container.exec_environ())
    )
    assert of_process == of_exec
    [value] = of_process
    return value


def test_without_reassert_the_override_wins(start_pod: StartPod, kubelet: Kubelet) -> None:
    container = kubelet.run(start_pod("plain"), "c", GPU, [(VISIBLE, "all")])
    assert visible(container) == "all"


def test_every_override_of_an_allocation_is_undone(start_pod: StartPod, kubelet: Kubelet, node: Node) -> None:
    pod = start_pod(name="all")
    for name, (image, env) in OVERRIDES.items():
        container = kubelet.run(pod, name, GPU, env, image=image)
        assert visible(container) == "GPU-4", name
    [event] = [event for event in node.logged() if event["id"] == container.id]
    [edit] = [edit for edit in event["edits"] if edit["name"] == VISIBLE]
    assert (edit["rule"], edit["after"], edit["from"]) == ("gpu", "GPU-4", "example.com/gpu GPU-4")
    assert (kubelet.root / "device-plugins/kubelet_internal_checkpoint").stat().st_mode & 0o777 == 0o600


def test_whoever_was_allocated_nothing_gets_void(start_pod: StartPod, kubelet: Kubelet) -> None:
    """There is no checkpoint at first, as for a static pod that starts before any plugin has registered."""
    pod = start_pod(name="all")
    assert visible(pod.run(name="early", image=HOSTILE, env=[(VISIBLE, "all")])) == "void"
    kubelet.allocate(pod, "lucky", "GPU-1", **GPU)
    for name, (image, env) in OVERRIDES.items():
        container = pod.run(name=name, image=image, env=[*env, ("NVIDIA_IMEX_CHANNELS", "0")])
        assert visible(container) == "void", name
        assert not [e for e in container.environ() if e.startswith("NVIDIA_IMEX_CHANNELS")]
    assert visible(start_pod().run(name="lucky", env=[(VISIBLE, "all")])) == "void"  # that was another pod's


def test_each_container_of_a_pod_gets_its_own(start_pod: StartPod, kubelet: Kubelet) -> None:
    pod = start_pod()
    first = kubelet.run(pod, "init", {"envs": {VISIBLE: "GPU-7"}}, [(VISIBLE, "all")], image=HOSTILE)
    assert visible(first) == "GPU-7"
    first.remove()
    assert visible(kubelet.run(pod, "c", GPU, [(VISIBLE, "all")], image=HOSTILE)) == "GPU-4"
    assert visible(pod.run(name="sidecar", env=[(VISIBLE, "GPU-4")])) == "void"


def test_of_two_resources_the_one_that_kubelet_took_counts(start_pod: StartPod, kubelet: Kubelet) -> None:
    pod = start_pod()
    for name, sent in (("a", ["GPU-4", "all"]), ("b", ["MIG-1", "all"]), ("c", ["all"])):
        kubelet.allocate(pod, name, "GPU-4", **GPU)
        kubelet.allocate(pod, name, "MIG-1", resource="example.com/mig", envs={VISIBLE: "MIG-1", "MIG": "1"})
        created = pod.create(name=name, image=HOSTILE, env=[*((VISIBLE, value) for value in sent), ("MIG", "2")])
        if name == "c":
            with pytest.raises(CriError, match=r"GPU-4 and \S*mig MIG-1 set env") as error:
                created.start()
            assert f"set env {VISIBLE} differently, and neither value is there" in str(error.value)
            continue
        created.start()
        assert visible(created) == sent[0]
        assert "MIG=1" in created.environ()


@pytest.mark.parametrize("path", [f"{ASKED_BY_MOUNT}/all", "//var/run/../run/nvidia-container-devices/0/"])
def test_asking_by_a_mount_is_refused(start_pod: StartPod, kubelet: Kubelet, path: str) -> None:
    answer = GPU | {"mounts": [{"host_path": "/dev/null", "container_path": f"{ASKED_BY_MOUNT}/GPU-4"}]}
    pod = start_pod()
    honest = kubelet.run(pod, "honest", answer)
    assert [point for _, point, _ in honest.mounts(ASKED_BY_MOUNT)] == [f"{ASKED_BY_MOUNT}/GPU-4"]
    with pytest.raises(CriError) as error:
        kubelet.run(pod, "greedy", answer, mounts=[("/dev/null", path)])
    assert f"rule no-devices-by-mount: mount {ASKED_BY_MOUNT} is reserved and" in str(error.value)
    assert "OCI runtime create failed: reassert: refused default/p/greedy: " in str(error.value)


def test_asking_by_an_annotation_is_of_no_use(start_pod: StartPod, kubelet: Kubelet, containerd: Containerd) -> None:
    """Neither by the pod's nor by the container's; what the plugin answered reaches the OCI spec."""
    allowed, asked = "cdi.k8s.io/plugin_4", "cdi.k8s.io/mine"
    pod = start_pod("open", annotations={asked: "vendor.example/gpu=all", "pods/own": "1"})
    answer = GPU | {"annotations": {allowed: "vendor.example/gpu=4"}}
    more = {"cdi.k8s.io/more": "vendor.example/gpu=all"}
    notes = containerd.annotations(kubelet.run(pod, "c", answer, annotations=more).id)
    assert {key: value for key, value in notes.items() if "cdi" in key} == {allowed: "vendor.example/gpu=4"}
    assert notes["pods/own"] == "1"
    forged = kubelet.run(pod, "forged", answer, annotations={allowed: "vendor.example/gpu=all"})
    assert not [key for key in containerd.annotations(forged.id) if "cdi" in key]


@pytest.fixture
def gpu_node(node: Node) -> Iterator[Path]:
    """A device that no container gets by default (/dev/kmsg's, which nobody reads here), under a name of its own."""
    path = node.directory / "gpu0"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 11))
    yield path
    path.unlink()


def assert_device(container: Container) -> None:
    """/dev/gpu0 is the allocated node, and the devices cgroup lets it be opened."""
    seen = container.exec("/bin/busybox", "stat", "-c", "%F %t:%T %a", "/dev/gpu0").strip()
    assert seen == "character special file 1:b 600"
    container.exec("/bin/sh", "-c", ": > /dev/gpu0")


def test_allocated_device_is_there_whether_the_engine_was_asked_for_it_or_not(
    start_pod: StartPod, kubelet: Kubelet, gpu_node: Path
) -> None:
    answer = GPU | {
        "devices": [{"host_path": str(gpu_node), "container_path": "/dev/gpu0", "permissions": "rw"}],
    }
    pod = start_pod()
    assert_device(kubelet.run(pod, "asked", answer))
    for name, others in (("lost", []), ("other", [("/dev/zero", "/dev/gpu0")])):
        kubelet.allocate(pod, name, "GPU-4", **answer)
        assert_device(pod.run(name=name, devices=others))
    none = pod.run(name="none")
    assert "gpu0" not in none.exec("/bin/ls", "/dev")
    none.exec("/bin/busybox", "mknod", "/tmp/gpu0", "c", "1", "11")
    with pytest.raises(AssertionError, match="not permitted"):
        none.exec("/bin/sh", "-c", ": > /tmp/gpu0")


def test_allocated_mount_is_not_to_be_replaced(start_pod: StartPod, kubelet: Kubelet, node: Node, evil: Path) -> None:
    plugins = node.directory / "plugin"
    plugins.mkdir(exist_ok=True)
    (plugins / "driver").write_text("plugin's\n")
    answer = {"mounts": [{"host_path": str(plugins), "container_path": "/usr/gpu", "read_only": True}]}
    pod = start_pod()
    for name, mounts in (("at", [(str(evil), "/usr/gpu")]), ("above", [(str(evil), "/usr")]), ("sent", [])):
        container = kubelet.run(pod, name, answer, mounts=mounts)
        assert container.exec("/bin/cat", "/usr/gpu/driver") == "plugin's\n"
        assert container.mounts("/usr/gpu")[-1][2].split(",")[0] == "ro"
    kubelet.allocate(pod, "lost", "GPU-4", **answer)
    assert pod.run(name="lost").exec("/bin/cat", "/usr/gpu/driver") == "plugin's\n"


def test_unreadable_checkpoint_is_explained_where_kubectl_describe_shows_it(
    start_pod: StartPod, kubelet: Kubelet, node: Node
) -> None:
    pod = start_pod()
    kubelet.allocate(pod, "c", "GPU-4", **GPU)
    checkpoint = kubelet.root / "device-plugins/kubelet_internal_checkpoint"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-20])
    refused = pod.create(name="c", env=[(VISIBLE, "GPU-4")])
    with pytest.raises(CriError) as error:
        refused.start()
    assert "refused default/p/c: rule gpu: kubelet's device checkpoint: not valid JSON" in str(error.value)
    [event] = [event for event in node.logged() if event["id"] == refused.id]
    assert event["errors"][0]["message"].startswith("kubelet's device checkpoint: not valid JSON")
    refused.remove()
    checkpoint.write_bytes(whole)
    assert visible(pod.run(name="c", env=[(VISIBLE, "GPU-4"), (VISIBLE, "all")])) == "GPU-4"
