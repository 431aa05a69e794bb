"""tests/hostile-pod by a real containerd's CRI, with the wrapper and without."""

from __future__ import annotations

import pytest
from harness.node import Node

from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.hostile_pod import of_result, policy, suite_of

LOST = ("env-default", "env-three", "env-absent", "mount-default", "mount-at", "mount-above")


@pytest.mark.parametrize("runtime", ["crun"])
def test_pods_hold_all_with_the_wrapper(node: Node, containerd: Containerd, runtime: str) -> None:
    node.write_policy(policy(node))
    before = containerd.pods()
    status, found, output = suite_of(containerd, runtime, HOSTILE, "--half", "hostile")
    assert status == 0, output
    assert of_result(found, "error", "FAILED") == set(), output
    assert len(of_result(found, "held", "refused")) >= 20
    assert containerd.pods() == before


def test_pods_hold_little_without(node: Node, containerd: Containerd) -> None:
    """e2e/test_hostile_pod.py has each case under a plain runtime."""
    cases = [option for name in LOST for option in ("--case", name)]
    status, found, output = suite_of(containerd, "runc-plain", HOSTILE, *cases)
    assert status == 1, output
    assert found == dict.fromkeys(LOST, "FAILED"), output
