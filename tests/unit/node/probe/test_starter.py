"""What is looked at of a test container's processes, and of no others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import marks
import pytest

from hook.node.probe.starter import MARKER, Process

TOKEN = "1-00000000"


@contextmanager
def sleeping(*before: str) -> Iterator[int]:
    """A process with the token, in a mount namespace of its own after `unshare`."""
    command = [*before, "/bin/sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(command, env={MARKER: TOKEN}, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def pid(found: tuple[int, list[str]] | None) -> int:
    return found[0] if found and f"{MARKER}={TOKEN}" in found[1] else 0


@marks.hole(
    "A command line without an end took all memory of `audit`, `doctor`, `status` and its timer, and of `install`"
)
@pytest.mark.users
def test_a_process_that_is_not_in_the_container_is_not_looked_at() -> None:
    """It may make who reads its environment wait for ever, and with it the ones that are read beside it."""
    with sleeping("/usr/bin/unshare", "--mount") as first, sleeping():
        container = Process(first, TOKEN)
        assert pid(container.executed(set())) == first
        assert container.executed({first}) is None
        with sleeping("/usr/bin/nsenter", f"--mount=/proc/{first}/ns/mnt") as executed:
            assert pid(container.executed({first})) == executed
