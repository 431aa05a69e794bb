"""Presets by way of NRI: the plugin makes a pod's directory on disk, and cannot mount one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.node import Containerd
from e2e.cri.presets import Presets, assert_its_pod_alone_shares, sh
from e2e.nri.conftest import StartPlugin


@pytest.fixture
def presets(containerd: Containerd, node: Node) -> Iterator[Presets]:
    yield Presets(containerd)
    (node.store / "cri/containerd").unlink()


def on_disk(example: str) -> str:
    """The policy without what is in memory."""
    return "".join(line for line in example.splitlines(keepends=True) if "medium: Memory" not in line)


@marks.claim("empty-dir", "nri")
@pytest.mark.parametrize("runtime", ["crun"])
def test_the_containers_of_a_pod_share_it(
    presets: Presets, start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    node.compile(on_disk(presets.example).replace("failurePolicy: Ignore", "failurePolicy: Fail"))
    start_plugin()
    assert_its_pod_alone_shares(presets, start_pod)


@marks.claim("empty-dir", "nri")
@pytest.mark.parametrize(
    ("containerd", "runtime", "variant"), [("1.7", "runc", "bare"), ("2.1", "crun", "")], indirect=["containerd"]
)
def test_no_runtime_is_led_to_the_node_by_a_link_in_it(
    presets: Presets, start_pod: StartPod, start_plugin: StartPlugin, node: Node, tmp_path: Path, variant: str
) -> None:
    """Before 2.0, a pod's mount below a reserved one is replaced by the same part of it, here a container's."""
    node.compile(on_disk(presets.example))
    start_plugin()
    pod = presets.pod(start_pod, variant)
    sh(pod.run(name="first"), "mkdir /cache/sub")
    try:
        second = pod.run(name="second", mounts=[(str(tmp_path), "/cache/sub")])
    except CriError as error:
        assert "/cache/sub" in str(error)  # containerd 2.0 and later removes the mount
    else:
        assert [mount.point for mount in second.mounts("/cache")] == ["/cache"]


@marks.claim("empty-dir", "nri")
@one_runtime
def test_in_memory_is_for_the_wrapper(
    presets: Presets, start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    node.compile(presets.example.replace("failurePolicy: Ignore", "failurePolicy: Fail"))
    start_plugin()
    with pytest.raises(CriError, match="medium: Memory cannot be mounted by the NRI plugin; use the runtime wrapper"):
        presets.pod(start_pod).run()
