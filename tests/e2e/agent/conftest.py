"""Fixtures of the agent's tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from harness.node import Node
from harness.tools import need, remove_tree, scratch

from e2e.agent.support import FRONT, Agent, Cold


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent that listens, on a node whose policy is compiled."""
    need(os.access(FRONT, os.X_OK), "front, which packaging/build.sh builds where musl-gcc is")
    directory = scratch()
    node = Node(directory)
    node.compile()
    agent = Agent(node)
    agent.start()
    yield agent
    if agent.process and agent.process.poll() is None:
        agent.process.send_signal(signal.SIGCONT)
        agent.stop(signal.SIGKILL)
    remove_tree(directory)


@pytest.fixture
def start(agent: Agent) -> Cold:
    return Cold(agent)
