"""tests/hostile-pod by a real containerd's CRI, with the wrapper and without."""

from __future__ import annotations

import pytest

from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.hostile_pod import of_result, policy, suite_of
from e2e.support import Node


@pytest.mark.parametrize("runtime", ["crun"])
def test_pods_hold_all_with_the_wrapper(node: Node, containerd: Containerd, runtime: str) -> None:
    node.write_policy(policy(node))
    before = containerd.pods()
    status, found, output = suite_of(containerd, runtime, HOSTILE)
    assert status == 0, output
    assert of_result(found, "error", "FAILED") == set(), output
    assert len(of_result(found, "held", "refused")) >= 20
    assert containerd.pods() == before


def test_pods_hold_little_without(node: Node, containerd: Containerd) -> None:
    status, found, output = suite_of(containerd, "runc-plain", HOSTILE)
    assert status == 1, output
    assert of_result(found, "error") == set(), output
    held = of_result(found, "held", "refused")
    assert {name for name in held if not name.startswith(("innocent", "device"))} == set(), output
