"""Devices, env and annotations are what a device plugin answered, by way of NRI: config/examples/gpu-lockdown.yaml."""

from __future__ import annotations

from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.images import HOSTILE
from e2e.cri.kubelet import (
    GPU,
    VISIBLE,
    Kubelet,
    assert_a_resize_gives_nothing_back,
    assert_only_the_allocated,
    exclusive,
    gpu_answer,
    seen_device,
    visible,
)
from e2e.cri.node import Containerd
from e2e.nri.conftest import StartPlugin


@one_runtime
def test_without_a_plugin_a_pod_replaces_its_device(start_pod: StartPod, kubelet: Kubelet, gpu_node: Path) -> None:
    """The other tests would prove nothing if it could not."""
    pod = start_pod("bare")
    kubelet.allocate(pod, "other", "GPU-4", **gpu_answer(gpu_node))
    other = pod.run(name="other", devices=[("/dev/zero", "/dev/gpu0")])
    assert seen_device(other).startswith("character special file 1:5")


@marks.claim("update", "runtime")
@pytest.mark.parametrize("runtime", ["crun"])
def test_a_resize_gives_no_device_back(start_pod: StartPod, kubelet: Kubelet, gpu_node: Path, node: Node) -> None:
    """By the wrapper. NRI refuses a container that asks for the device."""
    assert_a_resize_gives_nothing_back(kubelet, start_pod("wrapped"), gpu_node, node)


@marks.claim("allocation", "nri")
@marks.claim("exclusive", "nri")
@pytest.mark.parametrize(("runtime", "handler"), [("crun", ""), ("runc", "bare")])
def test_a_container_has_the_devices_that_were_allocated_to_it_and_no_others(
    start_pod: StartPod, start_plugin: StartPlugin, kubelet: Kubelet, gpu_node: Path, node: Node, handler: str
) -> None:
    """Whether the engine was asked for them or not. A device of a volume that was not allocated is refused."""
    node.write_policy(node.policy.read_text() + exclusive(gpu_node))
    start_plugin()
    pod = start_pod(handler)
    assert_only_the_allocated(kubelet, pod, gpu_node)
    [edit] = [
        edit
        for event in node.logged()
        if event.get("container", {}).get("container") == "lost"
        for edit in event["edits"]
        if edit["kind"] == "device"
    ]
    assert (edit["name"], edit["before"], edit["from"]) == ("/dev/gpu0", [], "example.com/gpu GPU-4")
    with pytest.raises(CriError, match="not allocated: device /dev/xvda"):
        pod.create(name="volume", devices=[(str(gpu_node), "/dev/xvda")])


@marks.claim("allocation", "nri")
@one_runtime
def test_env_is_the_device_plugins_or_the_default(
    start_pod: StartPod, start_plugin: StartPlugin, kubelet: Kubelet
) -> None:
    start_plugin()
    pod = start_pod()
    for name, value in (("c", "GPU-4"), ("other", "void")):
        if name == "c":
            kubelet.allocate(pod, name, "GPU-4", **GPU)
        assert visible(pod.run(name=name, image=HOSTILE, env=[(VISIBLE, "GPU-4"), (VISIBLE, "all")])) == value


@marks.claim("allocation", "nri")
@one_runtime
def test_annotations_of_a_device_plugin_cannot_be_made_up(
    start_pod: StartPod, start_plugin: StartPlugin, kubelet: Kubelet, node: Node, containerd: Containerd
) -> None:
    """Neither by the pod's that the engine copies nor by the container's. Not CDI's, on which the engine would act."""
    rule = '{name: "cdi.k8s.io/*", absent: true}'
    node.write_policy(node.policy.read_text().replace(rule, '{name: "gpu.example/*", absent: true, of: Container}'))
    start_plugin()
    allowed, asked = "gpu.example/plugin", "gpu.example/mine"
    pod = start_pod("open", annotations={asked: "all", "pods/own": "1"})
    answer = GPU | {"annotations": {allowed: "4"}}
    honest = kubelet.run(pod, "c", answer, annotations={"gpu.example/more": "all"})
    notes = containerd.annotations(honest.id)
    assert {key: value for key, value in notes.items() if "gpu" in key} == {allowed: "4"}
    assert notes["pods/own"] == "1"
    [event] = [event for event in node.logged() if event.get("id") == honest.id]
    assert sorted(edit["name"] for edit in event["edits"] if edit["kind"] == "annotation") == [
        asked,
        "gpu.example/more",
    ]
    forged = kubelet.run(pod, "forged", answer, annotations={allowed: "all"})
    assert not [key for key in containerd.annotations(forged.id) if "gpu" in key]
