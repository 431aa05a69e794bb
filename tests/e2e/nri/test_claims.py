"""Resource claims (DRA), as recorded of a real kubelet: CDI devices that CRI asks for, by NRI and by the wrapper.

containerd 1.7 as shipped ignores CDI devices.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import marks
import pytest
from harness.node import Node
from unit.kubelet import claim, state
from unit.podresources import PodResources, answer
from unit.support import FIXTURES

from e2e.cri.client import Container, CriError, Pod
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.images import HOSTILE
from e2e.cri.kubelet import VISIBLE, Kubelet, assert_nothing_but_the_allocated_opens
from e2e.cri.node import Containerd
from e2e.nri.conftest import StartPlugin

pytestmark = one_runtime

RECORDED = FIXTURES / "kubelet/k1.36-dra"
CLAIM, TOY = "b-two-g-q76lp", "TOY_GPU"
CLOSED = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {{root: {root}}}
  rules:
  - name: claims
    deviceAllocations: {{exclusive: [example.com/gpu, "{node}*"], env: true}}
    env: [{{name: TOY_GPU, valueFrom: {{deviceAllocation: {{default: none}}}}}}]
"""


class Claimed:
    """The recorded claim of two devices, for a pod of the test. `devices`: CDI names."""

    def __init__(self, containerd: Containerd, kubelet: Kubelet, node: Node, gpu_node: Path) -> None:
        node.write_policy(CLOSED.format(root=kubelet.root, node=gpu_node))
        self._state = kubelet.root / "dra_manager_state"
        outer = json.loads((RECORDED / "dra_manager_state.all").read_bytes())
        self._text = str(outer["Data"])
        [self.claim] = [c for c in json.loads(self._text)["ClaimInfoStateList"] if c["ClaimName"] == CLAIM]
        self.devices = sorted(d["CDIDeviceIDs"][0] for d in self.claim["DriverState"]["gpu.example.com"]["Devices"])
        containerd.root.path("etc/cdi").mkdir(exist_ok=True)
        spec = (RECORDED / "cdi" / f"gpu.example.com-claim-{self.claim['ClaimUID']}.json").read_text()
        containerd.root.path("etc/cdi/claim.json").write_text(spec.replace("/dev/null", str(gpu_node)))

    def record(self, pod: Pod) -> None:
        """Kubelet writes it down, before the pod starts."""
        [recorded] = self.claim["PodUIDs"]
        text = self._text.replace(recorded, pod.config.metadata.uid)
        self._state.parent.mkdir(parents=True, exist_ok=True)
        self._state.write_text(json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}))

    def record_one_each(self, pod: Pod) -> None:
        """The same for a pod with two claims, `left` and `right`, of one device each."""
        of = pod.config.metadata
        entries = [claim(n, of.uid, devices={"d": [d]}) for n, d in zip(("left", "right"), self.devices, strict=True)]
        self._state.parent.mkdir(parents=True, exist_ok=True)
        self._state.write_bytes(state([{**entry, "Namespace": of.namespace} for entry in entries]))


@pytest.fixture
def claimed(containerd: Containerd, kubelet: Kubelet, node: Node, gpu_node: Path) -> Claimed:
    return Claimed(containerd, kubelet, node, gpu_node)


TELLS_CDI = (2, 3)
"""From this version on NRI hands over the CDI devices that kubelet asked for."""
REPLACES_BY_CDI = (2, 4)
"""From this version on the env of a CDI device takes the place of the pod's entry: before, it comes after it."""


def version(containerd: Containerd) -> tuple[int, int]:
    """Major and minor. It is newer than the test's name of it under tests/lab/engines/run.sh."""
    major, minor = containerd.cri.version().split()[1].removeprefix("v").split(".")[:2]
    return int(major), int(minor)


@marks.claim("exclusive-claims", "runtime@wrapped", "nri@bare")
@pytest.mark.parametrize("handler", ["bare", "wrapped"], ids=["NRI", "wrapper"])
def test_only_the_pod_of_the_claim_gets_its_devices(
    start_pod: StartPod, start_plugin: StartPlugin, claimed: Claimed, containerd: Containerd, node: Node, handler: str
) -> None:
    if handler == "bare":
        start_plugin(within=True)
    pod = start_pod(handler)
    claimed.record(pod)
    left = pod.run(name="left", env=[(TOY, "all")], cdi=claimed.devices[:1])
    assert [entry for entry in left.environ() if entry.startswith(TOY + "=")] == [f"{TOY}=claim-gpu-1"]
    left.exec("/bin/sh", "-c", ": > /dev/toygpu1")
    edits = [e for event in node.logged() if event.get("id") == left.id for e in event["edits"]]
    corrected = [(TOY, "claim-gpu-1", f"claim {CLAIM}")]
    assert [(e["name"], e["after"], e["from"]) for e in edits if e["name"] == TOY] == (
        [] if version(containerd) >= REPLACES_BY_CDI else corrected
    )
    other = start_pod(handler, name="other")
    asked = {"name": "c", "env": [(TOY, "claim-gpu-1")], "annotations": {"cdi.k8s.io/x": claimed.devices[0]}}
    if handler == "bare":
        with pytest.raises(CriError, match="not allocated: device /dev/toygpu1"):
            other.create(**asked)
    else:
        greedy = other.run(**asked)
        assert f"{TOY}=none" in greedy.environ()
        assert_nothing_but_the_allocated_opens(greedy)


OWN = """\
  - {name: restored, deviceAllocations: {mounts: true, devices: true}}
"""


@pytest.fixture
def other_node(node: Node, containerd: Containerd, claimed: Claimed) -> Iterator[Path]:
    """The second device: no driver has its number, so that an open(2) that the cgroup allows fails with ENXIO."""
    path = node.directory / "gpu1"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 12))
    spec = json.loads(containerd.root.path("etc/cdi/claim.json").read_text())
    spec["devices"][1]["containerEdits"]["deviceNodes"][0]["hostPath"] = str(path)
    containerd.root.path("etc/cdi/claim.json").write_text(json.dumps(spec))
    node.write_policy(node.policy.read_text().replace(f"{node.directory}/gpu0*", f"{node.directory}/gpu*") + OWN)
    yield path
    path.unlink()


def assert_only_its_own(container: Container, number: int) -> None:
    """Env, mount, node and cgroup rule of the toy driver's device, and nothing of the other one."""
    for environ in (container.environ(), container.exec_environ()):
        assert [entry for entry in environ if entry.startswith(TOY + "=")] == [f"{TOY}=claim-gpu-{number}"]
    assert [mount.point for mount in container.mounts("/toy")] == [f"/toy/gpu-{number}"]
    assert [entry for entry in container.exec("/bin/ls", "/dev").split() if "toy" in entry] == [f"toygpu{number}"]
    for device, minor in ((1, 11), (2, 12)):
        container.exec("/bin/busybox", "mknod", f"/tmp/gpu{device}", "c", "1", str(minor))
        opened = ["/bin/sh", "-c", f": > /tmp/gpu{device}"]
        if (device, number) == (1, 1):
            container.exec(*opened)
        else:
            with pytest.raises(AssertionError, match="No such device" if device == number else "not permitted"):
                container.exec(*opened)


@marks.claim("exclusive-claims", "runtime@wrapped", "nri@bare")
@pytest.mark.parametrize(
    ("containerd", "handler"), [("1.7", "bare"), ("2.1", "bare"), ("2.1", "wrapped")], indirect=["containerd"]
)
def test_each_container_has_its_own_claim(
    start_pod: StartPod,
    start_plugin: StartPlugin,
    kubelet: Kubelet,
    claimed: Claimed,
    other_node: Path,
    containerd: Containerd,
    node: Node,
    handler: str,
) -> None:
    """Each asks for the other one's by env. containerd 1.7 places nothing of a claim: it is restored.

    containerd 2.3 tells the plugin what kubelet asked for, so nobody asks kubelet and nothing is unknown.
    """
    told = handler == "bare" and version(containerd) >= TELLS_CDI
    if handler == "bare":
        start_plugin(within=True)
    pod = start_pod(handler)
    claimed.record_one_each(pod)
    with closing(PodResources(kubelet.root)) as server:
        of = pod.config.metadata
        server.add(answer(of.namespace, of.name, {"left": ["left"], "right": ["right"], "none": []}))
        for number, name in ((1, "left"), (2, "right")):
            hostile = [(TOY, f"claim-gpu-{3 - number}"), ("NVIDIA_VISIBLE_DEVICES", "all")]
            own = pod.run(name=name, env=hostile, cdi=[claimed.devices[number - 1]])
            assert_only_its_own(own, number)
        none = pod.run(name="none", env=[(TOY, "claim-gpu-2")])
        assert [entry for entry in none.environ() if entry.startswith(TOY + "=")] == [f"{TOY}=none"]
        assert "toy" not in none.exec("/bin/ls", "/dev")
        assert not any("claims" in event for event in node.logged())
        assert set(server.asked) == (set() if told else {f"{of.namespace}/{of.name}"})
    late = pod.run(name="late", env=[(TOY, "claim-gpu-2")])
    has = "none" if told else "claim-gpu-2"  # as it asked
    assert [entry for entry in late.environ() if entry.startswith(TOY + "=")] == [f"{TOY}={has}"]
    assert {event.get("claims") for event in node.logged() if event.get("id") == late.id} == {
        None if told else "kubelet's PodResources gave no answer"
    }


@marks.claim("exclusive-claims", "runtime")
def test_of_a_claim_of_two_requests_each_container_has_its_own(
    start_pod: StartPod, containerd: Containerd, claimed: Claimed, other_node: Path, node: Node
) -> None:
    """containerd knows the devices that kubelet asked for; kubelet does not tell them apart, and is not asked."""
    note = node.store / "cri/containerd"  # as `install` writes it
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{containerd.directory}/containerd.sock\n")
    try:
        pod = start_pod("wrapped")
        claimed.record(pod)
        for number, name in ((1, "left"), (2, "right")):
            hostile = [(TOY, f"claim-gpu-{3 - number}"), ("NVIDIA_VISIBLE_DEVICES", "all")]
            assert_only_its_own(pod.run(name=name, env=hostile, cdi=[claimed.devices[number - 1]]), number)
        assert not any("claims" in event for event in node.logged())
    finally:
        note.unlink()


@marks.promise("A container gets its own allocation from kubelet's checkpoint, or there is no decision")
def test_value_of_a_cdi_spec_is_the_last_one_of_its_name(start_pod: StartPod, containerd: Containerd) -> None:
    """`valueFrom.deviceAllocation` relies on the form in which containerd leaves it."""
    directory = containerd.root.path("etc/cdi")
    directory.mkdir(exist_ok=True)
    devices = [{"name": "0", "containerEdits": {"env": [f"{VISIBLE}=void"]}}]
    (directory / "vendor.json").write_text(
        json.dumps({"cdiVersion": "0.6.0", "kind": "vendor.example/gpu", "devices": devices})
    )
    pod, asked = start_pod("bare"), {"cdi.k8s.io/x": "vendor.example/gpu=0"}
    for number, env in enumerate(([], [(VISIBLE, "GPU-4")], [(VISIBLE, "GPU-4"), ("A", "1"), (VISIBLE, "all")])):
        container = pod.run(name=f"c{number}", image=HOSTILE, env=env, annotations=asked)
        written = json.loads((containerd.bundle(container.id) / "config.json").read_text())["process"]["env"]
        assert [entry for entry in written if entry.startswith(VISIBLE + "=")][-1] == f"{VISIBLE}=void"
        assert [entry for entry in container.environ() if entry.startswith(VISIBLE)] == [f"{VISIBLE}=void"]
