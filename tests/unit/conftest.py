"""Fixtures of the unit tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.fixture
def root_dir() -> Iterator[Path]:
    """A directory that only root writes, all the way up; /tmp, writable by all, would be refused."""
    if os.geteuid() != 0:
        pytest.fail("these tests give files to other users and need root")
    parent = Path("/var/lib/reassert-tests")
    path = parent / uuid.uuid4().hex
    path.mkdir(parents=True, mode=0o755)
    yield path
    deadline = time.monotonic() + 20
    while path.exists():  # a compiler or a log that a test left behind may write to it while it is removed
        shutil.rmtree(path, ignore_errors=time.monotonic() < deadline)
    with contextlib.suppress(OSError):  # another test's directory is in it
        parent.rmdir()
