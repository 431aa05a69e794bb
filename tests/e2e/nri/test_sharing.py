"""A container names a device that another pod holds, as KAI shares GPUs; and what a pod author makes of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.kubelet import VISIBLE, Kubelet, visible
from e2e.cri.node import Containerd
from e2e.nri.conftest import StartPlugin

pytestmark = one_runtime

ASKED = ["GPU-shared", "all", "GPU-own", "GPU-shared,GPU-own"]
RESERVING = "kai-resource-reservation"
POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {root: KUBELET}
  rules:
  - name: gpu
    env:
    - name: NVIDIA_VISIBLE_DEVICES
      valueFrom:
        deviceAllocation:
          default: void
          trusted: [{namespaces: ["research-*"], reservedBy: [kai-resource-reservation]}]
"""


@pytest.fixture
def pod_logs(containerd: Containerd) -> Iterator[Path]:
    """kubelet's directories of pods' logs."""
    logs = containerd.root.path("var/log/pods")
    logs.mkdir(exist_ok=True)
    yield logs
    for path in logs.iterdir():
        path.rmdir()


@marks.claim("trusted", "runtime@wrapped", "nri@bare")
@pytest.mark.parametrize("handler", ["bare", "wrapped"], ids=["NRI", "wrapper"])
def test_a_pod_author_gets_a_shared_device_and_no_other(
    start_pod: StartPod, start_plugin: StartPlugin, kubelet: Kubelet, node: Node, pod_logs: Path, handler: str
) -> None:
    node.write_policy(POLICY.replace("KUBELET", str(kubelet.root)))
    if handler == "bare":
        start_plugin(within=True)
    for namespace, device in ((RESERVING, "GPU-shared"), ("research-b", "GPU-own")):
        holder = start_pod(handler, namespace=namespace, name="holder")
        (pod_logs / f"{namespace}_holder_{holder.config.metadata.uid}").mkdir()
        kubelet.allocate(holder, "c", device, envs={VISIBLE: device})
    research = start_pod(handler, namespace="research-a", name=RESERVING, labels={"app": RESERVING})
    got = {value: visible(research.run(name=f"c{n}", env=[(VISIBLE, value)])) for n, value in enumerate(ASKED)}
    assert got == {value: "GPU-shared" if value == "GPU-shared" else "void" for value in ASKED}
    elsewhere = start_pod(handler, namespace="team-a", name="p")
    assert visible(elsewhere.run(env=[(VISIBLE, "GPU-shared")])) == "void"
