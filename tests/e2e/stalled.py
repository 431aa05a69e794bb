"""A volume whose server answers or not, as the test wants: an empty FUSE file system, as an NFS or CSI volume can be.

Run as a program, it is the server: DIRECTORY STALL. While the file STALL exists, it answers nothing for SECONDS: a
process that waits for it cannot even be killed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ATTRIBUTES = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
"""Of the root directory (struct fuse_attr). They are valid for no time, so that the kernel asks each time."""

_INIT, _LOOKUP, _GETATTR, _OPENDIR, _READDIR, _RELEASEDIR, _STATFS = 26, 1, 3, 27, 28, 29, 17
SECONDS = 15
"""More than any start may take."""

_FORGET = (2, 42)
"""Requests without an answer."""


class Stalled:
    """`path`: where the volume is mounted."""

    def __init__(self, path: Path, stall: Path) -> None:
        self.path = path
        self._stall = stall

    def stall(self) -> None:
        """From now on it answers nothing in time."""
        self._stall.touch()

    def gave_up(self) -> bool:
        """Whether a process waited for it for SECONDS."""
        return os.path.exists(f"{self._stall}.late")

    def answer(self) -> None:
        """Let it answer again, also what waits."""
        self._stall.unlink(missing_ok=True)


@contextmanager
def stalling(directory: Path) -> Iterator[Stalled]:
    """A volume in a scratch directory, which answers until it is told otherwise."""
    volume = Stalled(directory / "volume", directory / "stall")
    volume.path.mkdir()
    command = [sys.executable, __file__, str(volume.path), str(directory / "stall")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout and server.stdout.readline() == b"mounted\n"
        yield volume
    finally:
        volume.answer()
        subprocess.run(["umount", "--lazy", str(volume.path)], check=False)
        server.kill()  # closes its /dev/fuse: the kernel fails what still waits
        server.wait(600)


def _serve(directory: str, stall: str) -> None:
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"volume", directory.encode(), b"fuse", 0, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    answers = {
        _INIT: struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 10, 8, 65536, 1, 1, 0, *[0] * 8)[:64],
        _GETATTR: struct.pack("<Q2I", 0, 0, 0) + _ATTRIBUTES,
        _OPENDIR: struct.pack("<Q2I", 1, 0, 0),
        _READDIR: b"",
        _RELEASEDIR: b"",
        _STATFS: struct.pack("<5Q4I24x", 0, 0, 0, 0, 0, 512, 255, 512, 0),
    }
    while True:
        try:
            request = os.read(fuse, 1 << 20)
        except OSError:  # unmounted
            return
        _, kind, unique = struct.unpack_from("<2IQ", request)
        deadline = time.monotonic() + SECONDS
        while os.path.exists(stall) and time.monotonic() < deadline:
            time.sleep(0.02)
        if time.monotonic() >= deadline:
            Path(f"{stall}.late").touch()
        if kind in _FORGET:
            continue
        data = answers.get(kind, b"")
        error = 0 if kind in answers else -2 if kind == _LOOKUP else -38  # ENOENT, ENOSYS
        os.write(fuse, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
