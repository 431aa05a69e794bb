"""What the kernel lets a test do, tried once each. An emulator lacks some of it (tests/lab/arm64.sh)."""

from __future__ import annotations

import ctypes
import os
import posix
import shutil
import socket
import subprocess
from functools import cache
from pathlib import Path

from hook.core.base.errors import Undecided
from hook.core.linux import mountns

_PTRACE_SEIZE = 0x4206  # include/uapi/linux/ptrace.h
_SO_PEERPIDFD = 77  # include/uapi/asm-generic/socket.h


@cache
def has_openat2() -> bool:
    """Whether openat2(2) works."""
    try:
        posix.close(mountns.open_plain("/"))
    except Undecided:
        return False
    return True


@cache
def users_make_namespaces() -> bool:
    """Whether a process of an ordinary user can make a user namespace and be root in it."""
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return subprocess.run([*nobody, "unshare", "--map-root-user", "true"], capture_output=True).returncode == 0


@cache
def is_native() -> bool:
    """Whether programs run without an emulator: /proc shows a process as the program that it runs."""
    sleep = shutil.which("sleep")
    if not sleep:
        return False
    with subprocess.Popen([sleep, "60"]) as process:
        shown = Path(f"/proc/{process.pid}/exe").resolve()
        process.kill()
    return shown == Path(sleep).resolve()


@cache
def tells_ends_of_peers() -> bool:
    """Whether a process learns of the end of that which it is connected to: SO_PEERPIDFD, of Linux 6.5 and later."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            posix.close(ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return False
    return True


@cache
def traces() -> bool:
    """Whether a process can trace another (ptrace(2)), as strace and LeakSanitizer do."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    with subprocess.Popen(["sleep", "60"]) as process:
        traced = ptrace(_PTRACE_SEIZE, process.pid, None, None) == 0
        os.kill(process.pid, 9)
    return traced
