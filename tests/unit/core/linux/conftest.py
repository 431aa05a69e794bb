"""Fixtures of the tests with real mounts."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.core.linux.mountnamespace import MountNamespace


@pytest.fixture
def ns(tmp_path: Path) -> Iterator[MountNamespace]:
    ns = MountNamespace(tmp_path)
    gc.collect()  # else what an earlier test left open is closed in between
    before = len(os.listdir("/proc/self/fd"))
    try:
        yield ns
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        ns.close()
