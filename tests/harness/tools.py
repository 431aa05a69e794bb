"""Commands, directories and what is cleaned up, on the machine that the tests run on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def scratch() -> Path:
    """A new directory that root alone can write to (not in /tmp) and programs can be executed from (not in /run)."""
    path = Path("/var/lib/reassert-tests") / uuid.uuid4().hex[:12]
    path.mkdir(parents=True, mode=0o755)
    return path


CLEAN_UP_SECONDS = 60


def cleaned(what: str, remove: Callable[[], object]) -> bool:
    """Clean up after a test: `remove` is called again until it raises nothing; returns whether it did.

    What an engine or a file system answers then fails no test. pytest's summary says what could not be removed.
    """
    deadline, pause = time.monotonic() + CLEAN_UP_SECONDS, 0.05
    while True:
        try:
            remove()
            return True
        except Exception as error:
            if time.monotonic() > deadline:
                warnings.warn(f"{what} could not be removed: {error}", stacklevel=2)
                return False
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def remove_tree(path: Path) -> None:
    """Remove a test's directory (`cleaned`)."""
    cleaned(str(path), lambda: shutil.rmtree(path))


def run(*command: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command with its output as text; fails the test with both streams in the message."""
    if "stdin" not in options:  # not /dev/null: with a user namespace crun gives its stdin, the node's own, away
        options.setdefault("input", "")
    options.setdefault("timeout", 600)
    done = subprocess.run(command, text=True, capture_output=True, **options)
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def suspend(child: subprocess.Popen[bytes]) -> None:
    """Send SIGSTOP, and wait until all threads have stopped: on a busy machine one of them may go on for a while."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)


def need(there: bool, what: str, installed: bool = True) -> None:
    """Skip the test where something is missing, saying what. In CI that is a failure.

    `installed`: tests/run.sh installs it; missing in its whole run (REASSERT_WHOLE), it is a failure too.
    """
    if not there:
        import pytest  # which tests/bench and tests/reality do without

        fails = os.environ.get("CI") == "true" or (installed and "REASSERT_WHOLE" in os.environ)
        (pytest.fail if fails else pytest.skip)(f"this machine lacks: {what}")
