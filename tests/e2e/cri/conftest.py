"""Fixtures of the tests that run pods: one containerd for the session, a clean policy for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.node import POLICY, Node
from harness.paths import RUNTIMES
from harness.tools import remove_tree, scratch

from e2e.cri.fixtures import evil, gpu_node, kubelet, node, runtime, start_pod
from e2e.cri.node import GENERATIONS, Containerd, Handler, running

CRI_POLICY = POLICY + "  - {name: gpu, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}\n"

__all__ = ["evil", "gpu_node", "kubelet", "node", "runtime", "start_pod"]


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
    remove_tree(node.directory)


def later(node: Node, runtime: str) -> Path:
    """Where the handler X-later looks for its program: a link that a test puts there."""
    return node.directory / f"later-{runtime}"


@pytest.fixture(scope="session")
def usual_policy() -> str:
    """What the node has unless a test says otherwise."""
    return CRI_POLICY
