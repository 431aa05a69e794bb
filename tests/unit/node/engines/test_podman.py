"""Which files podman reads, and its commands, which keep what they read (the rest is in tests/e2e/node)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import marks
import pytest

from hook.entry.dispatcher import DISPATCHER_MARK
from hook.node.change.files import look
from hook.node.engines.base import RUNTIME, Choice
from hook.node.engines.podman import DROP_IN, Podman, PodmanConfig, Settings
from hook.node.errors import NodeError
from unit.ownmachine import Machine
from unit.support import policy

pytestmark = marks.promise(
    "With any configuration of an engine, only the intended settings change, or install says why not"
)


@pytest.mark.parametrize("command", ["podman", "buildah"])
def test_a_command_from_before_the_last_change_counts(machine: Machine, tmp_path: Path, command: str) -> None:
    """Another podman may run on the machine of the tests, but none from 1970."""
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / command)
    nothing = Settings.of([])
    with subprocess.Popen([program, "60"]) as running:
        tick = time.clock_gettime(time.CLOCK_BOOTTIME) + 0.02
        while time.clock_gettime(time.CLOCK_BOOTTIME) < tick:  # the kernel knows a process' age by the hundredth second
            time.sleep(0.001)
        directory = machine.file(DROP_IN).parent
        counted = Podman("4.3.1").users(PodmanConfig(nothing, nothing), "/opt/reassert/reassert-podman-crun")
        os.utime(directory, (0, 0))
        older = Podman("4.3.1").users(PodmanConfig(nothing, nothing), "/opt/reassert/reassert-podman-crun")
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


SITE = "/usr/local/bin/site-crun"
INFO = """\
case "$*" in
*--version*) echo podman version {version} ;;
*--runtime=crun*info*) echo /opt/reassert/reassert-podman-crun ;;
*info*) cat /run/default ;;
esac"""


@pytest.fixture
def root(machine: Machine) -> Callable[..., Path]:
    """Makes a node with a version of podman; returns root's home directory."""

    def made(version: str) -> Path:
        machine.file("/etc/passwd", "root:x:0:0:root:/run/root:/bin/sh\n")
        machine.program("podman", INFO.format(version=version))
        machine.program("crun", "echo crun 1.21")
        machine.file(SITE, "#!/bin/sh\necho crun 1.21\n", 0o755)
        return Path("/run/root")

    return made


def wired(machine: Machine) -> list[str]:
    """The runtimes that our drop-in names."""
    engine = Podman.find()
    choice = Choice((RUNTIME,), None, str(machine.program("reassert", ":")), policy())
    wiring = engine.read().wire(choice, look, {})
    return sorted({*wiring.expected} & {"crun", "site"})  # the machine of the tests may have others


LATER = '[engine]\nruntime = "site"\n[engine.runtimes]\nsite = ["/usr/local/bin/site-crun"]\n'


@pytest.mark.parametrize(
    ("version", "path", "counts"),
    [
        ("4.9.4", "/run/root/.config/containers/containers.conf", False),
        ("5.4.2", "/run/root/.config/containers/containers.conf", True),
        ("5.4.2", "/run/root/.config/containers/containers.conf.d/a.conf", True),
        ("5.4.2", "/etc/containers/containers.conf.d/zz.conf", True),
        ("5.4.2", "/etc/containers/containers.rootful.conf.d/a.conf", False),
        ("6.0.0", "/etc/containers/containers.rootful.conf.d/a.conf", True),
    ],
)
def test_a_file_that_podman_reads_after_ours_stops_the_install(
    machine: Machine, root: Callable[..., Path], version: str, path: str, counts: bool
) -> None:
    """Which files root's podman reads depends on its version. What stands in an earlier one is wrapped."""
    root(version)
    machine.file(path, LATER)
    names = [handler.name for handler in Podman.find().read().handlers({})]
    assert ("site" in names) is counts
    if not counts:
        assert wired(machine) == ["crun"]
        return
    why = f"{path} sets engine.runtimes.site, and podman reads it after {DROP_IN}: move that to /etc/containers/contain"
    with pytest.raises(NodeError, match=re.escape(why)):
        wired(machine)
    Path(path).unlink()
    machine.file("/etc/containers/containers.conf", LATER)
    assert wired(machine) == ["crun", "site"]
    machine.file(path, '[engine]\nruntime = "site"\n[containers]\ntz = "UTC"\n')
    assert wired(machine) == ["crun", "site"], "a name leads to our dispatcher"
    machine.file(path, f'[engine]\nruntime = "{SITE}"\n')
    with pytest.raises(NodeError, match=r"sets engine\.runtime, and podman reads it"):
        wired(machine)


def test_status_says_what_podman_itself_calls(machine: Machine, root: Callable[..., Path]) -> None:
    """Whatever the files that are known here say: the answer of `podman info` counts."""
    root("5.4.2")
    engine = Podman.find()
    dispatcher = machine.file(
        "/opt/reassert/reassert-podman-crun", f'{DISPATCHER_MARK}\nexec /usr/local/sbin/crun "$@"\n', 0o755
    )
    machine.file(DROP_IN, f'[engine.runtimes]\ncrun = ["{dispatcher}", "{DROP_IN}"]\n')
    for default, problems in ((str(dispatcher), []), (SITE, [f"the default ({SITE})"])):
        machine.file("/run/default", f"{default}\n")
        now = engine.read()
        assert now.warnings() == []
        assert now.not_loaded(engine.loaded(now), {}) == problems
    machine.program("podman", f"echo {SITE}")
    assert now.not_loaded(engine.loaded(now), {}) == ["crun", f"the default ({SITE})"]
    machine.file("/run/root/.config/containers/containers.conf", '[engine.runtimes]\ncrun = ["/usr/bin/crun"]\n')
    [warning] = engine.read().warnings()
    assert warning.startswith(
        "/run/root/.config/containers/containers.conf sets engine.runtimes.crun, and podman reads"
    )
