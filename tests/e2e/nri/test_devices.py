"""Devices and annotations are what a device plugin answered, by way of NRI: config/examples/gpu-lockdown.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cri.client import CriError
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.kubelet import (
    GPU,
    VISIBLE,
    Kubelet,
    assert_a_resize_gives_nothing_back,
    assert_device,
    assert_only_the_allocated,
    exclusive,
    gpu_answer,
    seen_device,
    visible,
)
from e2e.cri.node import Containerd
from e2e.nri.conftest import StartPlugin
from e2e.support import Node


@one_runtime
def test_without_a_plugin_a_pod_replaces_its_device(start_pod: StartPod, kubelet: Kubelet, gpu_node: Path) -> None:
    """The other tests would prove nothing if it could not."""
    pod = start_pod("bare")
    kubelet.allocate(pod, "other", "GPU-4", **gpu_answer(gpu_node))
    other = pod.run(name="other", devices=[("/dev/zero", "/dev/gpu0")])
    assert seen_device(other).startswith("character special file 1:5")


def test_a_resize_gives_no_device_back(start_pod: StartPod, kubelet: Kubelet, gpu_node: Path, node: Node) -> None:
    """By the wrapper. NRI refuses a container that asks for the device."""
    assert_a_resize_gives_nothing_back(kubelet, start_pod("wrapped"), gpu_node, node)


@pytest.mark.parametrize(("runtime", "handler"), [("crun", ""), ("runc", "bare")])
def test_allocated_device_is_there_whether_the_engine_was_asked_for_it_or_not(
    start_pod: StartPod, start_plugin: StartPlugin, kubelet: Kubelet, gpu_node: Path, node: Node, handler: str
) -> None:
    start_plugin()
    assert_only_the_allocated(kubelet, start_pod(handler), gpu_node)
    [edit] = [
        edit
        for event in node.logged()
        if event.get("container", {}).get("container") == "lost"
        for edit in event["edits"]
        if edit["kind"] == "device"
    ]
    assert (edit["name"], edit["before"], edit["from"]) == ("/dev/gpu0", [], "example.com/gpu GPU-4")


@one_runtime
def test_what_nri_cannot_do_for_a_device_is_a_refusal(
    start_pod: StartPod, start_plugin: StartPlugin, kubelet: Kubelet, gpu_node: Path
) -> None:
    start_plugin()
    pod = start_pod()
    kubelet.allocate(pod, "mknod", "GPU-4", **gpu_answer(gpu_node, "rwm"))
    with pytest.raises(CriError, match="NRI cannot give the mknod access that /dev/gpu0 has"):
        pod.create(name="mknod", env=[(VISIBLE, "GPU-4")])
    kubelet.allocate(pod, "spelled", "GPU-5", **gpu_answer(gpu_node))
    with pytest.raises(CriError, match="the container has device /dev/gpu0 under another spelling"):
        pod.create(name="spelled", env=[(VISIBLE, "GPU-4")], devices=[("/dev/zero", "/dev//gpu0")])


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
    assert visible(honest) == "GPU-4"
    [event] = [event for event in node.logged() if event.get("id") == honest.id]
    assert sorted(edit["name"] for edit in event["edits"] if edit["kind"] == "annotation") == [
        asked,
        "gpu.example/more",
    ]
    forged = kubelet.run(pod, "forged", answer, annotations={allowed: "all"})
    assert not [key for key in containerd.annotations(forged.id) if "gpu" in key]


@pytest.mark.parametrize(("runtime", "handler"), [("crun", ""), ("runc", "bare")])
def test_a_device_that_was_not_allocated_is_a_refusal(
    start_pod: StartPod, start_plugin: StartPlugin, kubelet: Kubelet, gpu_node: Path, node: Node, handler: str
) -> None:
    node.write_policy(node.policy.read_text() + exclusive(gpu_node))
    start_plugin()
    pod = start_pod(handler)
    assert_device(kubelet.run(pod, "allocated", gpu_answer(gpu_node)))
    with pytest.raises(CriError, match="not allocated: device /dev/xvda"):
        pod.create(name="volume", devices=[(str(gpu_node), "/dev/xvda")])
    plain = pod.run(name="plain")
    assert "gpu0" not in plain.exec("/bin/ls", "/dev")
