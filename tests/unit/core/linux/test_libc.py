from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hook.core.linux import libc
from unit.support import ROOT


def test_a_failed_call_tells_its_error() -> None:
    assert libc.umount2(b"/nowhere", 0) == -1
    assert libc.get_errno() in (errno.ENOENT, errno.EPERM)
    assert libc.syscall(1 << 20, 0, 0, 0, 0, 0, 0) == -1, "a long: no error of a 32-bit register is a big number"
    assert libc.get_errno() == errno.ENOSYS


def test_each_thread_has_its_own_error() -> None:
    libc.setns(-1, 0)
    other = threading.Thread(target=lambda: libc.syscall(1 << 20, 0, 0, 0, 0, 0, 0))
    other.start()
    other.join()
    assert libc.get_errno() == errno.EBADF


def test_a_buffer_is_filled(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_PATH)
    buffer = libc.Statx()
    try:
        assert libc.statx(fd, b"", 0x1000, 0x100, buffer) == 0  # AT_EMPTY_PATH, STATX_INO
    finally:
        os.close(fd)
    assert (len(buffer.raw), buffer.raw[32:40]) == (256, libc.words(tmp_path.stat().st_ino))


def test_words_are_in_the_order_of_the_machine() -> None:
    assert memoryview(libc.words(1, 2, 1 << 63)).cast("Q").tolist() == [1, 2, 1 << 63]


def test_a_function_that_the_library_lacks() -> None:
    with pytest.raises(OSError, match="no_such_function"):
        libc.function("no_such_function", 0)


BLOCKED = """
import os, signal, threading
from hook.core.linux import libc
read, pipe, got = libc.function("read", 3), os.pipe(), []
thread = threading.Thread(target=lambda: got.append(read(pipe[0], libc.Statx(), 1)))
thread.start()
while open(f"/proc/self/task/{thread.native_id}/stat").read().rpartition(") ")[2][0] != "S":
    pass
os.write(pipe[1], b"x")
thread.join()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
print(got, read(pipe[0], libc.Statx(), 1), libc.get_errno())
"""


def test_a_call_that_blocks_stops_no_other_thread_and_is_interrupted() -> None:
    """It would wait for ever if it held the GIL."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.stderr, done.stdout) == ("", f"[1] -1 {errno.EINTR}\n")
