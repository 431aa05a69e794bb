"""With config/examples/gpu-lockdown.yaml a container's devices are what was allocated, however a pod asks for more."""

from __future__ import annotations

from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError, messages
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.images import HOSTILE, PLAIN
from e2e.cri.kubelet import (
    GPU,
    VISIBLE,
    Kubelet,
    assert_a_resize_gives_nothing_back,
    assert_device,
    assert_nothing_but_the_allocated_opens,
    assert_only_the_allocated,
    exclusive,
    gpu_answer,
    visible,
)
from e2e.cri.node import Containerd

ASKED_BY_MOUNT = "/var/run/nvidia-container-devices"


@marks.claim("allocation", "runtime")
@one_runtime
def test_every_override_of_an_allocation_is_undone(start_pod: StartPod, kubelet: Kubelet, node: Node) -> None:
    """By the image, by the pod, and by the pod with the name twice. unit/core/reserve has all of them."""
    pod = start_pod()
    for name, env in (("image", []), ("pod", [(VISIBLE, "all")]), ("twice", [(VISIBLE, "all"), (VISIBLE, "0")])):
        container = kubelet.run(pod, name, GPU, env, image=HOSTILE)
        assert visible(container) == "GPU-4", name
    [event] = [event for event in node.logged() if event["id"] == container.id]
    [edit] = [edit for edit in event["edits"] if edit["name"] == VISIBLE]
    assert (edit["rule"], edit["after"], edit["from"]) == ("gpu", "GPU-4", "example.com/gpu GPU-4")
    assert (kubelet.root / "device-plugins/kubelet_internal_checkpoint").stat().st_mode & 0o777 == 0o600


@marks.claim("allocation", "runtime")
@one_runtime
def test_whoever_was_allocated_nothing_gets_void(start_pod: StartPod, kubelet: Kubelet) -> None:
    """There is no checkpoint at first, as for a static pod that starts before any plugin has registered."""
    pod = start_pod()
    asked = [(VISIBLE, "all"), ("NVIDIA_IMEX_CHANNELS", "0")]
    assert visible(pod.run(name="first", image=HOSTILE, env=asked)) == "void"
    kubelet.allocate(pod, "lucky", "GPU-4", **GPU)
    container = pod.run(name="second", image=HOSTILE, env=asked)
    assert visible(container) == "void"
    assert not [entry for entry in container.environ() if entry.startswith("NVIDIA_IMEX_CHANNELS")]
    assert visible(start_pod().run(name="lucky", env=[(VISIBLE, "all")])) == "void"  # that was another pod's


@marks.claim("allocation", "runtime")
@one_runtime
def test_asking_by_a_mount_is_refused(start_pod: StartPod, kubelet: Kubelet) -> None:
    answer = GPU | {"mounts": [{"host_path": "/dev/null", "container_path": f"{ASKED_BY_MOUNT}/GPU-4"}]}
    pod = start_pod()
    honest = kubelet.run(pod, "honest", answer)
    assert [mount.point for mount in honest.mounts(ASKED_BY_MOUNT)] == [f"{ASKED_BY_MOUNT}/GPU-4"]
    with pytest.raises(CriError) as error:
        kubelet.run(pod, "greedy", answer, mounts=[("/dev/null", "//var/run/../run/nvidia-container-devices/0/")])
    assert f"rule no-devices-by-mount: mount {ASKED_BY_MOUNT} is reserved and" in str(error.value)
    assert "OCI runtime create failed: reassert: refused default/p/greedy: " in str(error.value)


@marks.claim("allocation", "runtime")
@one_runtime
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


def test_allocated_device_is_there_whether_the_engine_was_asked_for_it_or_not(
    start_pod: StartPod, kubelet: Kubelet, gpu_node: Path
) -> None:
    assert_only_the_allocated(kubelet, start_pod(), gpu_node)


@marks.claim("allocation", "runtime")
def test_allocated_mount_is_not_to_be_replaced(start_pod: StartPod, kubelet: Kubelet, node: Node, evil: Path) -> None:
    plugins = node.directory / "plugin"
    plugins.mkdir(exist_ok=True)
    (plugins / "driver").write_text("plugin's\n")
    answer = {"mounts": [{"host_path": str(plugins), "container_path": "/usr/gpu", "read_only": True}]}
    pod = start_pod()
    for name, mounts in (("at", [(str(evil), "/usr/gpu")]), ("sent", [])):
        container = kubelet.run(pod, name, answer, mounts=mounts)
        assert container.exec("/bin/cat", "/usr/gpu/driver") == "plugin's\n"
        assert container.mounts("/usr/gpu")[-1].options[0] == "ro"
    with pytest.raises(CriError, match="mount /usr is a volume above the reserved mount /usr/gpu"):
        kubelet.run(pod, "above", answer, mounts=[(str(evil), "/usr")])
    kubelet.allocate(pod, "lost", "GPU-4", **answer)
    assert pod.run(name="lost").exec("/bin/cat", "/usr/gpu/driver") == "plugin's\n"


@marks.claim("exclusive", "runtime")
def test_only_the_allocated_device_by_whatever_way_a_pod_asks(
    start_pod: StartPod, kubelet: Kubelet, gpu_node: Path, node: Node
) -> None:
    """A block volume's devicePath, a hostPath of a directory with devices and of one device, and a privileged pod."""
    node.write_policy(node.policy.read_text() + exclusive(gpu_node))
    pod = start_pod(privileged=True)
    assert_device(kubelet.run(pod, "allocated", gpu_answer(gpu_node)))
    assert_nothing_but_the_allocated_opens(pod.run(name="volume", devices=[(str(gpu_node), "/dev/xvda")]))
    mounted = pod.run(name="mounted", mounts=[(str(gpu_node), "/dev/xvda"), (str(gpu_node.parent), "/host")])
    assert_nothing_but_the_allocated_opens(mounted)
    assert " /host " not in mounted.exec("/bin/cat", "/proc/self/mountinfo")
    context = messages.LinuxContainerSecurityContext(privileged=True)
    config = messages.ContainerConfig(
        metadata=messages.ContainerMetadata(name="privileged"),
        image=messages.ImageSpec(image=PLAIN),
        linux=messages.LinuxContainerConfig(security_context=context),
        log_path="privileged.log",
    )
    privileged = pod.make(config)
    privileged.start()
    assert_nothing_but_the_allocated_opens(privileged)
    assert "/dev/kmsg" in [e["name"] for event in node.logged() for e in event["edits"]]


@marks.claim("update", "runtime")
@marks.hole("Under crun, `update` gave back the devices that `exclusive` had taken")
def test_a_resize_gives_no_device_back(start_pod: StartPod, kubelet: Kubelet, gpu_node: Path, node: Node) -> None:
    assert_a_resize_gives_nothing_back(kubelet, start_pod(), gpu_node, node)
