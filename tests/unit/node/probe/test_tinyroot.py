"""The probe's root file system, in a chroot of its own."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from hook.node.probe import containers
from unit.ownmachine import Machine


def extracted(directory: Path) -> list[str]:
    """Its command line."""
    data, command = containers.sleeper()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(directory)
    return command


@pytest.mark.native
def test_this_nodes_sleep_runs_in_it(root_dir: Path) -> None:
    command = extracted(root_dir)
    done = subprocess.run(["/usr/sbin/chroot", str(root_dir), *command, "0"], capture_output=True, text=True, env={})
    assert (done.returncode, done.stderr) == (0, "")
    refused = subprocess.run(["/usr/sbin/chroot", str(root_dir), *command, "x"], capture_output=True, text=True, env={})
    assert refused.returncode == 1
    assert "x" in refused.stderr, "it was sleep that ran"


@pytest.mark.native
def test_a_static_one_needs_no_loader(root_dir: Path, machine: Machine) -> None:
    shutil.copy("/bin/busybox", "/usr/local/sbin/sleep")
    command = extracted(root_dir / "root")
    assert command == ["/reassert/sleep"]
    assert subprocess.run(["/usr/sbin/chroot", str(root_dir / "root"), *command, "0"], env={}).returncode == 0


@pytest.mark.native
def test_every_user_may_enter_its_directories() -> None:
    """docker 20.10 makes a directory that an archive lacks for root alone; `verify` reads as another user."""
    data, _ = containers.sleeper()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        entries = {entry.name: entry for entry in tar}
    above = {str(parent) for name in entries for parent in Path(name).parents} - {"."}
    assert above == {"reassert", "reassert/lib"}
    assert all(entries[name].isdir() and entries[name].mode == 0o755 for name in above)
