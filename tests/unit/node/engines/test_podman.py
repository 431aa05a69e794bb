"""Podman's commands, which keep what they read for as long as they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook.node.engines import podman
from hook.node.engines.podman import Files, Podman, Settings

Command = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Starts a podman that only sleeps; and there is a drop-in, which has just come."""
    program = tmp_path / "podman"
    shutil.copy(shutil.which("sleep") or "", program)
    monkeypatch.setattr(podman, "DROP_IN", str(tmp_path / "conf.d/reassert.conf"))
    monkeypatch.setattr(podman, "_COMMAND_SECONDS", 0.5)
    started: list[subprocess.Popen[bytes]] = []
    # Other tests, at the same time, run podman itself.
    monkeypatch.setattr(podman, "glob", SimpleNamespace(glob=lambda _: [f"/proc/{process.pid}" for process in started]))

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([program, *arguments]))
        tick = time.clock_gettime(time.CLOCK_BOOTTIME) + 0.02
        while time.clock_gettime(time.CLOCK_BOOTTIME) < tick:  # the kernel knows a process' age by the hundredth second
            time.sleep(0.001)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def forbid_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """To these commands, and to nobody else."""
    monkeypatch.setattr(podman, "time", SimpleNamespace(**{**vars(time), "sleep": lambda _: pytest.fail("it waits")}))


def users(wait: bool = True) -> int:
    engine, nothing = Podman("4.3.1"), Settings.of({})
    if wait:
        engine.settle()
    return engine.users(Files(nothing, nothing), "/usr/local/sbin/reassert-podman-crun")


def test_one_from_before_the_last_change_is_waited_for_and_then_counted(command: Command, tmp_path: Path) -> None:
    before = command("60")
    (tmp_path / "conf.d").mkdir()
    changed = time.time()
    assert users() == 1
    assert time.time() > changed + 0.4
    before.kill()
    before.wait()
    command("61")
    assert users() == 0


def test_a_clock_that_was_wrong_holds_nobody_up(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("60")
    (tmp_path / "conf.d").mkdir()
    os.utime(tmp_path / "conf.d", (time.time() + 3600,) * 2)
    monkeypatch.setattr(podman, "_COMMAND_SECONDS", 0.0)
    forbid_waiting(monkeypatch)
    assert users() == 1
