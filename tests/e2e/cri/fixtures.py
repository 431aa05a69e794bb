"""Fixtures of all tests that run pods. A conftest.py imports what it takes, and has `containerd` and `usual_policy`."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.node import Node
from harness.paths import RUNTIMES

from e2e.cri.client import Pod
from e2e.cri.kubelet import Kubelet
from e2e.cri.node import Containerd

StartPod = Callable[..., Pod]

one_runtime = pytest.mark.parametrize("runtime", ["runc"])
"""For tests of what is decided before a runtime is called, or by the engine."""


@pytest.fixture
def node(containerd: Containerd, usual_policy: str) -> Node:
    """The session's node, with the policy and the event log as if it were new."""
    node = containerd.node
    if not node.policy.is_file() or node.policy.read_text() != node.placed(usual_policy):
        node.write_policy(usual_policy)
    node.events.unlink(missing_ok=True)
    return node


@pytest.fixture
def evil(node: Node) -> Path:
    """A pod's volume, with certificates of its own."""
    path = node.directory / "evil"
    shutil.rmtree(path, ignore_errors=True)  # runtimes make mount points in what earlier tests mounted
    path.mkdir()
    (path / "evil.crt").write_text("evil\n")
    return path


@pytest.fixture(params=sorted(RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> str:
    """Name of each real runtime in turn."""
    name: str = request.param
    return name


@pytest.fixture
def start_pod(containerd: Containerd, node: Node, runtime: str) -> Iterator[StartPod]:
    """Starts pods under the real runtime's handler, or with `variant` another of its handlers; removes them all."""
    pods: list[Pod] = []

    def start(variant: str = "", **pod: Any) -> Pod:
        pods.append(containerd.cri.run_pod(f"{runtime}-{variant}" if variant else runtime, **pod))
        return pods[-1]

    yield start
    for pod in pods:
        pod.remove()


@pytest.fixture
def kubelet(node: Node) -> Iterator[Kubelet]:
    """A kubelet of the scratch node, on which no device was allocated yet."""
    kubelet = Kubelet(node)
    yield kubelet
    for path in (kubelet.root / "device-plugins").glob("*"):
        path.unlink()


@pytest.fixture
def gpu_node(node: Node) -> Iterator[Path]:
    """A device that no container gets by default (/dev/kmsg's, which nobody reads here), under a name of its own."""
    path = node.directory / "gpu0"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 11))
    yield path
    path.unlink()
