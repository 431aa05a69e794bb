"""Another NRI plugin gives a container devices because its pod's annotations ask for them."""

from __future__ import annotations

from typing import Any

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.kubelet import VISIBLE, Kubelet, seen_device, visible
from e2e.cri.node import Containerd
from e2e.nri.conftest import StartPlugin
from e2e.nri.naive import naive_plugin

pytestmark = one_runtime

PREFIX = "nvidia.cdi.k8s.io/"


def injecting(pod: Any, container: Any, made: Any) -> None:
    """What NVIDIA's plugin does for a CDI device: nodes and env, for the whole pod or for a container by its name."""
    if {PREFIX + "pod", f"{PREFIX}container.{container.name}"} & set(pod.annotations):
        made.linux.devices.add(path="/dev/gpu0", type="c", major=1, minor=11)
        made.env.add(key=VISIBLE, value="all")


def test_without_the_rule_the_annotation_gives_the_device(
    start_pod: StartPod, start_plugin: StartPlugin, containerd: Containerd, node: Node
) -> None:
    """The other test would prove nothing if it did not."""
    node.write_policy(node.policy.read_text().partition("  - {name: gpu")[0])
    start_plugin()
    with naive_plugin(node, containerd.directory / "nri.sock", injecting, "20"):
        pod = start_pod("bare", annotations={PREFIX + "container.c": "vendor.example/gpu=0"})
        assert seen_device(pod.run()).startswith("character special file 1:b")


@marks.claim("other-plugins", "nri")
@marks.hole(
    "A pod's annotation asked another NRI plugin for a device (CDI)", since="0.1.0", fixed="0.3.0", severity="high"
)
@pytest.mark.parametrize("index", ["05", "20"], ids=["before ours", "after ours"])
def test_asking_by_an_annotation_of_the_pod_is_refused(
    start_pod: StartPod,
    start_plugin: StartPlugin,
    containerd: Containerd,
    node: Node,
    kubelet: Kubelet,
    index: str,
) -> None:
    """config/examples/gpu-lockdown.yaml."""
    start_plugin()
    with naive_plugin(node, containerd.directory / "nri.sock", injecting, index):
        for key in ("pod", "container.c", "container.other"):
            pod = start_pod("bare", annotations={PREFIX + key: "vendor.example/gpu=0"})
            with pytest.raises(CriError, match=f"annotation {PREFIX}{key} of the pod must be absent and was set"):
                pod.create()
        assert visible(start_pod("bare", annotations={"other.example/pod": "gpu=0"}).run()) == "void"
    assert [event["event"] for event in node.logged()].count("container.denied") == 3
