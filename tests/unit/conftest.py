"""Fixtures of the unit tests."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.resident import oplog
from unit.ownmachine import Machine, own_machine


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    """A thread that outlives its test would call what a later test has patched, and write to its standard output."""
    before = threading.enumerate()
    yield
    deadline = time.monotonic() + 600
    while left := set(threading.enumerate()) - set(before):
        for thread in left:
            if thread.is_alive():  # else another thread is just starting it, and it cannot be joined yet
                thread.join(max(0.0, deadline - time.monotonic()))
        assert time.monotonic() < deadline, f"the threads {[thread.name for thread in left]} outlive the test"


@pytest.fixture
def oplog_lines(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """An operation log; the function returns its new lines."""
    oplog.configure(oplog.JSON, "debug", False)
    yield lambda: [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    oplog.close()


@pytest.fixture
def root_dir() -> Iterator[Path]:
    """A directory that, with its parents, only root can write to; /tmp would be refused."""
    parent = Path("/var/lib/reassert-tests")
    path = parent / uuid.uuid4().hex
    path.mkdir(parents=True, mode=0o755)
    yield path
    deadline = time.monotonic() + 60
    while path.exists():  # a compiler or a log that a test left behind may write to it while it is removed
        shutil.rmtree(path, ignore_errors=time.monotonic() < deadline)
    with contextlib.suppress(OSError):  # another test's directory is in it
        parent.rmdir()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine of the test's own, on which systemd runs."""
    with own_machine() as made:
        made.boot()
        yield made
