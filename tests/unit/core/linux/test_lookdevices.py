"""Devices that are looked for in a container's /dev and mounts, where a volume hides a part of them."""

from __future__ import annotations

import ctypes
import errno
import os
import posix
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import marks
import pytest

from hook.core.base.errors import Unacceptable
from hook.core.linux import lookdevices
from hook.core.linux.lookdevices import devices_below, look_at_devices
from unit.core.linux.mountnamespace import MS_BIND, MountNamespace, libc

pytestmark = pytest.mark.users  # mknod(2)

GPU = SimpleNamespace(name="gpu")
MS_REMOUNT, MS_NODEV = 1 << 5, 1 << 2
CLOSED: Any = SimpleNamespace(
    rule_for=lambda number, path: GPU if number == ("c", 240, 0) else None,
    path=lambda _: "g",
    is_ours=lambda _: False,
    directory=lambda *_: None,
)


def looked(ns: MountNamespace, **more: Any) -> set[str]:
    """Where the container has something that it must not have. `more`: of the policy."""
    closed: Any = SimpleNamespace(**{**vars(CLOSED), **more})
    found = ns._caller.submit(look_at_devices, ns.pid, str(ns.rootfs), closed).result()
    assert {reason.rule for reason in found} <= {"gpu"}
    return {reason.message.split()[2] for reason in found}


@marks.hole(
    "With `exclusive` and `failurePolicy: Ignore`, files that were removed from a volume in /dev hid devices",
    since="0.3.0",
    fixed="0.3.0",
    severity="medium",
)
def test_a_file_that_is_removed_meanwhile_hides_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an error, which failurePolicy decided about."""
    (tmp_path / "dev/volume").mkdir(parents=True)
    os.mkfifo(tmp_path / "dev/volume/a")
    os.mknod(tmp_path / "dev/volume/gpu", stat.S_IFCHR | 0o600, os.makedev(240, 0))

    def entries(fd: int) -> Iterator[os.DirEntry[str]]:
        found = sorted(os.scandir(fd), key=lambda entry: entry.name)
        if found[0].name == "a":
            (tmp_path / "dev/volume/a").unlink()
        yield from found

    monkeypatch.setattr(posix, "scandir", entries)
    root = os.open(tmp_path, os.O_PATH)
    try:
        [reason] = devices_below(root, str(tmp_path), {}, exclusive=CLOSED)
    finally:
        os.close(root)
    assert reason.message == "not allocated: /dev/volume/gpu in the container is g (c 240:0)"


@marks.hole(
    "With `exclusive` and `failurePolicy: Ignore`, a volume that root cannot look into (NFS, FUSE) hid devices",
    since="0.3.0",
    fixed="0.3.0",
    severity="medium",
)
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EAGAIN])
@pytest.mark.parametrize("call", ["fstat", "open", "scandir"])
def test_what_cannot_be_looked_at_is_refused_whatever_the_failure_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """For example a directory of mode 700 in an NFS volume with root_squash, or a FUSE file system of another user."""
    (tmp_path / "dev/volume").mkdir(parents=True)
    table: Any = {1: SimpleNamespace(point=f"{tmp_path}/dev/volume")}
    root = os.open(tmp_path, os.O_PATH)

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    try:
        with monkeypatch.context() as patch:
            patch.setattr(posix, call, fail)
            with pytest.raises(Unacceptable, match="of the container cannot be looked at: " + os.strerror(code)):
                devices_below(root, str(tmp_path), table, exclusive=CLOSED)
        assert (
            devices_below(root, str(tmp_path), {1: SimpleNamespace(point=f"{tmp_path}/gone")}, exclusive=CLOSED) == []
        )
    finally:
        os.close(root)


def test_a_path_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_PATH)
    table: Any = {1: SimpleNamespace(point=f"{tmp_path}/{'x' * 300}")}
    try:
        with pytest.raises(Unacceptable, match=r"of the container cannot be looked at: .*File name too long"):
            devices_below(root, str(tmp_path), table, exclusive=CLOSED)
    finally:
        os.close(root)


def test_device_that_reassert_put_there_itself_is_no_finding(tmp_path: Path) -> None:
    os.mknod(tmp_path / "given", stat.S_IFCHR | 0o600, os.makedev(240, 0))
    table: Any = {1: SimpleNamespace(point=f"{tmp_path}/given"), 2: SimpleNamespace(point=str(tmp_path))}
    ours: Any = SimpleNamespace(**{**vars(CLOSED), "is_ours": lambda path: path == "/given"})
    root = os.open(tmp_path, os.O_PATH)
    try:
        found = [len(devices_below(root, str(tmp_path), table, exclusive=closed)) for closed in (CLOSED, ours)]
    finally:
        os.close(root)
    assert found == [1, 0]


def node_at(path: Path, minor: int = 0, kind: int = stat.S_IFCHR) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, kind | 0o600, os.makedev(240, minor))


def test_every_device_below_dev_is_found_and_nothing_else(ns: MountNamespace) -> None:
    dev = ns.rootfs / "dev"
    for path in ("gpu", "a/b/gpu", "a/c"):
        node_at(dev / path)
    node_at(dev / "other", 1)
    node_at(dev / "block", kind=stat.S_IFBLK)
    node_at(ns.rootfs / "elsewhere/gpu")
    (dev / "link").symlink_to("/elsewhere")
    (dev / "file").touch()
    assert looked(ns) == {"/dev/gpu", "/dev/a/b/gpu", "/dev/a/c"}
    (ns.rootfs / "dev").rename(ns.rootfs / "moved")
    assert looked(ns) == set(), "without /dev there is none"
    (ns.rootfs / "dev").symlink_to("/moved")
    assert looked(ns) == {"/dev/gpu", "/dev/a/b/gpu", "/dev/a/c"}


def test_device_on_a_mount_without_devices_is_none(ns: MountNamespace) -> None:
    (ns.rootfs / "dev").mkdir()
    ns.mount("/dev/shm")
    ns.mount("/dev/nodev")
    for path in ("shm/gpu", "nodev/gpu"):
        ns.within(lambda path=path: node_at(ns.rootfs / "dev" / path))
    assert looked(ns) == {"/dev/shm/gpu", "/dev/nodev/gpu"}
    at = f"{ns.rootfs}/dev/nodev".encode()
    flags = ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_NODEV)
    assert ns.within(lambda: libc.mount(None, at, None, flags, None)) == 0
    assert looked(ns) == {"/dev/shm/gpu"}


def test_mount_of_a_device_and_of_its_directory_are_found_where_they_are(ns: MountNamespace) -> None:
    ns.within(lambda: node_at(ns.share / "d/gpu"))
    (ns.rootfs / "opt/gpu").parent.mkdir()
    (ns.rootfs / "opt/gpu").touch()
    ns.within(lambda: libc.mount(f"{ns.share}/d/gpu".encode(), f"{ns.rootfs}/opt/gpu".encode(), None, MS_BIND, None))
    assert looked(ns) == {"/opt/gpu"}
    ns.mount("/vol", ns.share / "d")
    inode = ns.within(lambda: os.stat(ns.share / "d").st_ino)
    assert looked(ns, directory=lambda found, _: (GPU, "g (c 240:0)") if found[1] == inode else None) == {
        "/opt/gpu",
        "/vol",
    }
    ns.mount("/vol")
    assert looked(ns, directory=lambda found, _: (GPU, "g") if found[1] == inode else None) == {"/opt/gpu"}, (
        "it is hidden"
    )


def test_root_that_is_no_mount_and_many_devices(tmp_path: Path) -> None:
    for number in range(20):
        node_at(tmp_path / f"dev/{number}")
    assert len(look_at_devices(0, str(tmp_path), CLOSED)) == 16


def test_more_files_than_are_looked_at_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookdevices, "DEV_ENTRIES", 3)
    (tmp_path / "dev/a").mkdir(parents=True)
    for number in range(2):
        (tmp_path / f"dev/a/{number}").touch()
    assert look_at_devices(0, str(tmp_path), CLOSED) == []
    (tmp_path / "dev/one more").touch()
    [reason] = look_at_devices(0, str(tmp_path), CLOSED)
    assert reason.message == "/dev of the container holds more than 3 files, too many to look for devices"
