"""Podman's commands, which keep what they read as long as they run: the waiting (the rest is in tests/e2e/node)."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

from hook.node.engines.podman import DROP_IN, Files, Podman, Settings
from unit.ownmachine import Machine


def test_a_command_from_before_the_last_change_counts(machine: Machine, tmp_path: Path) -> None:
    """Another podman may run on the machine of the tests, but none from 1970."""
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "podman")
    nothing = Settings.of({})
    with subprocess.Popen([program, "60"]) as running:
        tick = time.clock_gettime(time.CLOCK_BOOTTIME) + 0.02
        while time.clock_gettime(time.CLOCK_BOOTTIME) < tick:  # the kernel knows a process' age by the hundredth second
            time.sleep(0.001)
        directory = machine.file(DROP_IN).parent
        counted = Podman("4.3.1").users(Files(nothing, nothing), "/usr/local/sbin/reassert-podman-crun")
        os.utime(directory, (0, 0))
        older = Podman("4.3.1").users(Files(nothing, nothing), "/usr/local/sbin/reassert-podman-crun")
        running.kill()
    assert (counted > 0, older) == (True, 0)


def test_a_clock_that_was_wrong_holds_nobody_up(machine: Machine, tmp_path: Path) -> None:
    """A change in the future is later than any command."""
    directory = machine.file(DROP_IN).parent
    os.utime(directory, (time.time() + 3600,) * 2)
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "podman")
    with subprocess.Popen([program, "60"]) as running:
        settled = threading.Thread(target=Podman("4.3.1").settle, args=(0.0,), daemon=True)
        settled.start()
        settled.join(20)
        waits = settled.is_alive()
        running.kill()
    assert not waits
