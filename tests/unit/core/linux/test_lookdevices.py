"""Devices that are looked for in a container's /dev and mounts, where a volume hides a part of them."""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from hook.core.base.errors import Unacceptable
from hook.core.linux.lookdevices import devices_below

pytestmark = pytest.mark.users  # mknod(2)

CLOSED: Any = SimpleNamespace(
    rule_for=lambda number, path: SimpleNamespace(name="gpu") if number == ("c", 240, 0) else None,
    path=lambda _: "g",
    is_ours=lambda _: False,
    directory=lambda *_: None,
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
        [reason] = devices_below(root, str(tmp_path), {}, CLOSED)
    finally:
        os.close(root)
    assert reason.message == "not allocated: /dev/volume/gpu in the container is g (c 240:0)"


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
                devices_below(root, str(tmp_path), table, CLOSED)
        assert devices_below(root, str(tmp_path), {1: SimpleNamespace(point=f"{tmp_path}/gone")}, CLOSED) == []
    finally:
        os.close(root)


def test_a_path_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(Unacceptable, match=r"of the container cannot be looked at: .*File name too long"):
            devices_below(root, str(tmp_path), {1: SimpleNamespace(point=f"{tmp_path}/{'x' * 300}")}, CLOSED)  # type: ignore[dict-item]  # a stand-in
    finally:
        os.close(root)


def test_device_that_reassert_put_there_itself_is_no_finding(tmp_path: Path) -> None:
    os.mknod(tmp_path / "given", stat.S_IFCHR | 0o600, os.makedev(240, 0))
    table: Any = {1: SimpleNamespace(point=f"{tmp_path}/given"), 2: SimpleNamespace(point=str(tmp_path))}
    ours: Any = SimpleNamespace(**{**vars(CLOSED), "is_ours": lambda path: path == "/given"})
    root = os.open(tmp_path, os.O_PATH)
    try:
        found = [len(devices_below(root, str(tmp_path), table, closed)) for closed in (CLOSED, ours)]
    finally:
        os.close(root)
    assert found == [1, 0]
