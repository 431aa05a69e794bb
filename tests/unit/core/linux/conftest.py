"""Fixtures of the tests with real mounts."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.core.linux.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    gc.collect()  # else what an earlier test left open is closed in between
    before = len(os.listdir("/proc/self/fd"))
    try:
        yield node
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        node.close()
