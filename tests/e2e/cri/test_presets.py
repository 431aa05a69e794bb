"""config/examples/podpreset.yaml with real pods: env, a file's value, and directories that a pod's containers share."""

from __future__ import annotations

from collections.abc import Iterator

import marks
import pytest
from harness.node import Node

from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.node import Containerd
from e2e.cri.presets import Presets, assert_its_pod_alone_shares, sh

ENV = {
    "DB_PORT": "6379",
    "duplicate_key": "FROM_ENV",
    "number_of_members": "1",
    "HTTP_PROXY": "http://proxy.example:3128",
}


@pytest.fixture
def presets(containerd: Containerd, node: Node) -> Iterator[Presets]:
    yield Presets(containerd)
    (node.store / "cri/containerd").unlink()


@marks.claim("empty-dir", "runtime")
def test_allow_database(presets: Presets, start_pod: StartPod) -> None:
    """Both presets of the example, in every container of a pod with the label, and in no other pod."""
    pod, container = assert_its_pod_alone_shares(presets, start_pod)
    assert ENV.items() <= dict(entry.split("=", 1) for entry in container.environ()).items()
    assert sh(container, "cat /etc/app/config.json") == "{}"
    assert sh(container, "busybox df -k /scratch | busybox tail -n 1").split()[1] == "16384"
    full = "busybox dd if=/dev/zero of=/scratch/large bs=1M count=32 2>/dev/null || echo full"
    assert sh(container, full) == "full"
    assert pod.config.metadata.uid in presets.in_memory()
    other = presets.pod(start_pod, role="backend").run()
    assert not other.mounts("/cache") and not ENV.keys() & {entry.split("=")[0] for entry in other.environ()}


@marks.claim("empty-dir", "runtime")
@one_runtime
def test_both_are_removed_with_the_pod(presets: Presets, start_pod: StartPod) -> None:
    """kubelet removes what is on disk, which has no mount in it. What is in memory goes before the next is mounted."""
    gone, stays = presets.pod(start_pod, name="a"), presets.pod(start_pod, name="b")
    for pod in (gone, stays):
        sh(pod.run(), "echo kept > /scratch/file; echo kept > /cache/file; mkdir -p /cache/a/b; ln -s / /cache/link")
    assert len(presets.in_memory()) >= 2
    presets.gone(gone)
    new = presets.pod(start_pod, name="c")
    new.run()
    of = presets.in_memory()
    assert gone.config.metadata.uid not in of
    assert [len(of[pod.config.metadata.uid]) for pod in (stays, new)] == [1, 1]
    again = stays.run(name="restarted")
    assert sh(again, "cat /scratch/file /cache/file") == "kept\nkept"
