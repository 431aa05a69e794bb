"""Pods whose containers could change each other's reserved mounts, or the node's files by their own."""

from __future__ import annotations

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.conftest import CRI_POLICY
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import assert_a_remount_writes_nothing

REFUSE = CRI_POLICY + "  - {name: alone, sharedProcesses: Refuse}\n"


@marks.claim("shared-processes", "runtime")
@one_runtime
def test_pod_that_shares_its_processes_is_refused(start_pod: StartPod, node: Node) -> None:
    node.compile(REFUSE)
    with pytest.raises(
        CriError, match=r"joins the PID namespace /proc/[0-9]+/ns/pid of others, and sharedProcesses is"
    ):
        start_pod(share_processes=True).run(name="app")
    start_pod().run(name="app")


@marks.claim("remount", "runtime")
@pytest.mark.parametrize("shares", [False, True], ids=["alone", "shares its processes"])
def test_remounted_reserved_mount_cannot_be_written(start_pod: StartPod, node: Node, shares: bool) -> None:
    container = start_pod(share_processes=shares).run(name="app", capabilities=["SYS_ADMIN"])
    assert_a_remount_writes_nothing(container, node)
