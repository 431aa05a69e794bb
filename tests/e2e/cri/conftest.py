"""Fixtures of the tests that run pods: one containerd for the session, a clean policy for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import RUNTIMES
from e2e.cri.client import Pod
from e2e.cri.node import GENERATIONS, Containerd, Handler, running
from e2e.support import POLICY, Node, scratch

CRI_POLICY = POLICY + "  - {name: gpu, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}\n"

StartPod = Callable[..., Pod]


@pytest.fixture(scope="session", params=sorted(GENERATIONS))
def containerd(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    """A scratch node with a containerd that knows, for each real runtime X, the handlers

    X (with reassert), X-plain (without), X-open (with; pods' annotations reach the OCI spec) and X-later (what
    `later` says).
    """
    node = Node(scratch())
    handlers = []
    for name, real in RUNTIMES.items():
        dispatcher = node.dispatcher(real)
        handlers += [
            Handler(name, dispatcher),
            Handler(f"{name}-plain", real),
            Handler(f"{name}-open", dispatcher, open_to_pods=True),
            Handler(f"{name}-later", str(later(node, name))),
        ]
    with running(node, GENERATIONS[request.param], handlers) as containerd:
        yield containerd
    shutil.rmtree(node.directory)


def later(node: Node, runtime: str) -> Path:
    """Where the handler X-later looks for its program: a link that a test puts there."""
    return node.directory / f"later-{runtime}"


@pytest.fixture
def node(containerd: Containerd) -> Node:
    """The session's node, with the policy and the event log as if it were new."""
    node = containerd.node
    if not node.policy.is_file() or node.policy.read_text() != CRI_POLICY.replace(
        "hostPath: CA", f"hostPath: {node.ca}"
    ):
        node.write_policy(CRI_POLICY)
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
