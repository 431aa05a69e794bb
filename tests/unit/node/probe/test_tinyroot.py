"""The probe's root file system, in a chroot of its own."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from hook.node import systemd
from hook.node.errors import NodeError
from hook.node.probe import containers


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
def test_a_static_one_needs_no_loader(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root_dir / "bin").mkdir()
    shutil.copy("/bin/busybox", root_dir / "bin/sleep")
    monkeypatch.setattr(systemd, "PATH", f"{root_dir}/bin")
    command = extracted(root_dir / "root")
    assert command == ["/reassert/sleep"]
    assert subprocess.run(["/usr/sbin/chroot", str(root_dir / "root"), *command, "0"], env={}).returncode == 0


def test_without_a_sleep_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "PATH", "/nowhere")
    with pytest.raises(NodeError, match=r"no sleep\(1\)"):
        containers.sleeper()


def test_a_library_has_the_names_by_which_it_is_asked_for(tmp_path: Path) -> None:
    """As older distributions have them: libc.so.6 is a link to libc-2.31.so."""
    library = tmp_path / "libc-2.31.so"
    library.touch()
    (tmp_path / "libc.so.6").symlink_to(library.name)
    (tmp_path / "libm.so.6").symlink_to("libm-2.31.so")
    assert containers._aliases([str(library)]) == {"/reassert/lib/libc.so.6": "libc-2.31.so"}
