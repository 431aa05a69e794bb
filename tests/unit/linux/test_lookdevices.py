"""Devices that are looked for in a container's /dev while another container changes a volume there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook.linux import lookdevices
from hook.linux.lookdevices import devices_below

pytestmark = pytest.mark.users  # mknod(2)


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

    monkeypatch.setattr(lookdevices.posix, "scandir", entries)
    rule = SimpleNamespace(name="gpu")
    closed = SimpleNamespace(
        rule_for=lambda number, path: rule if number == ("c", 240, 0) else None, path=lambda _: "g"
    )
    root = os.open(tmp_path, os.O_PATH)
    try:
        [reason] = devices_below(root, str(tmp_path), {}, closed)  # type: ignore[arg-type]  # what is asked of it
    finally:
        os.close(root)
    assert reason.message == "not allocated: /dev/volume/gpu in the container is g (c 240:0)"
