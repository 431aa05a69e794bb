"""Pods whose containers could change each other's reserved mounts, or the node's files by their own."""

from __future__ import annotations

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import assert_a_remount_writes_nothing
from e2e.nri.conftest import NRI_POLICY, StartPlugin


@marks.claim("shared-processes", "nri")
@one_runtime
def test_pod_that_shares_its_processes_is_refused(start_pod: StartPod, start_plugin: StartPlugin, node: Node) -> None:
    node.compile(NRI_POLICY + "  - {name: alone, sharedProcesses: Refuse}\n")
    start_plugin()
    with pytest.raises(
        CriError, match=r"joins the PID namespace /proc/[0-9]+/ns/pid of others, and sharedProcesses is"
    ):
        start_pod("bare", share_processes=True).create(name="app")
    start_pod("bare").run(name="app")


@marks.claim("remount", "nri")
@pytest.mark.parametrize("runtime", ["crun"])
def test_remounted_reserved_mount_cannot_be_written(start_pod: StartPod, start_plugin: StartPlugin, node: Node) -> None:
    """By the hook behind the plugin. The plugin alone cannot prevent it."""
    start_plugin()
    container = start_pod().run(name="app", capabilities=["SYS_ADMIN"])
    assert_a_remount_writes_nothing(container, node)
