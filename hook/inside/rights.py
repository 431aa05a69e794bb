"""Gives up what a process may do, for good. For processes that read what a container, or another stranger, controls.

By two means of the kernel: capabilities(7), and a filter of system calls (seccomp(2)). A process that has given up its
rights keeps its user, root: a FUSE file system may refuse every other one. It owns the node's files, so the filter lets
it open nothing for writing. It can read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

# capability.h
DAC_OVERRIDE, DAC_READ_SEARCH, SETGID, SETUID, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN = 1, 2, 6, 7, 18, 19, 21

ENTER = (DAC_READ_SEARCH, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN)
"""The capabilities to open a process's environ and mount namespace (ptrace(2)), to enter it (setns(2)), and to read."""

READ = (DAC_READ_SEARCH,)
"""The capability to read files and directories of any user in a container."""

CHANGE_USER = (SETGID, SETUID)
"""The capabilities to become another user (setresuid(2))."""

OVERFLOW_UID = 65534
"""What the kernel shows for a uid that a user namespace does not map (proc(5)). It owns no file of the node."""

_ALL_UIDS = (1 << 32) - 1

_LIMITS = {
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_CPU: 300,
}
"""What a process without any right may use (getrlimit(2)): no file, no process, and so many seconds of CPU time."""

_VERSION_3 = 0x20080522
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""By uname(2): AUDIT_ARCH (linux/audit.h), and the column in _CALLS."""

_OPENAT, _IOCTL = (257, 56), (16, 29)

_CALLS = (
    *((0, 63), (17, 67), (8, 62), (1, 64), (3, 57)),  # read, pread64, lseek, write, close
    *((5, 80), (262, 79), (332, 291), (4, -1), (6, -1)),  # fstat, newfstatat, statx, stat, lstat
    *((267, 78), (89, -1), (217, 61), (137, 43), (138, 44)),  # readlinkat, readlink, getdents64, statfs, fstatfs
    *((439, 439), (269, 48), (21, -1), (79, 17)),  # faccessat2, faccessat, access, getcwd
    *((72, 25), (32, 23)),  # fcntl, dup
    *((12, 214), (9, 222), (11, 215), (25, 216), (10, 226), (28, 233)),  # brk, mmap, munmap, mremap, mprotect, madvise
    *((202, 98), (24, 124), (13, 134), (14, 135), (15, 139), (131, 132)),  # futex, sched_yield, rt_sig*, sigaltstack
    *((228, 113), (96, 169), (230, 115), (318, 278)),  # clock_gettime, gettimeofday, clock_nanosleep, getrandom
    *((39, 172), (186, 178), (102, 174), (107, 175), (104, 176), (108, 177), (63, 160)),  # getpid and its like, uname
    *((60, 93), (231, 94), (219, 128)),  # exit, exit_group, restart_syscall
)
"""Numbers of the system calls that are let through. openat2(2) is not: no filter can see its flags."""

_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | 0o20000000  # __O_TMPFILE

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # linux/bpf_common.h
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x50000, 0x7FFF0000  # linux/seccomp.h
_NUMBER_AT, _ARCHITECTURE_AT, _THIRD_ARGUMENT_AT = 0, 4, 32  # struct seccomp_data, little-endian

_libc = ctypes.CDLL(None, use_errno=True)


def keep(capabilities: tuple[int, ...]) -> None:
    """Give up all other capabilities. It gains none by execve(2) any more. Raises OSError."""
    _done(_libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "prctl")
    header, had = struct.pack("=Ii", _VERSION_3, 0), ctypes.create_string_buffer(24)
    _done(_libc.capget(header, had), "capget")
    permitted = struct.unpack("=6I", had.raw)[1]
    kept = sum(1 << number for number in capabilities) & permitted
    _done(_libc.capset(header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)), "capset")


@cache
def filter_of(machine: str) -> bytes:
    """The program of the filter, for the kernel's virtual machine (seccomp(2)); b"" for an unknown architecture.

    `machine`: as uname(2) names it. A process makes it once, before it forks those that use it.
    """
    if machine not in _ARCHITECTURES:
        return b""
    architecture, column = _ARCHITECTURES[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 0, 4, _OPENAT[column]),
        (_LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _WRITING),
        (_RETURN, 0, 0, _ERRNO | errno.EACCES),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 1, _IOCTL[column]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOTTY),  # Python asks whether what it opens is a terminal
    ]
    calls = [call[column] for call in _CALLS if call[column] >= 0]
    program += [(_EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    program += [(_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def only_read() -> None:
    """Keep READ, and let through only system calls that read, and those that write to open descriptors. Raises OSError.

    On an architecture that is not in _ARCHITECTURES there is no filter.
    """
    keep(READ)
    code = filter_of(os.uname().machine)
    if code:
        program = ctypes.create_string_buffer(code)
        listed = struct.pack("@HP", len(code) // 8, ctypes.addressof(program))  # struct sock_fprog
        _done(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER), listed, *map(ctypes.c_ulong, (0, 0))), "seccomp")


def drop_all() -> None:
    """Give up every right, the user's too: open no file for writing, read no file of root, start no process.

    There is no filter of system calls: what parses certificates calls others. Raises OSError, but not for ids that a
    user namespace lacks.
    """
    for kind, limit in _LIMITS.items():
        resource.setrlimit(kind, (limit, limit))
    if os.geteuid() == 0:
        with open("/proc/self/uid_map") as file:
            is_nodes = int(file.readline().split()[2]) == _ALL_UIDS
        changes: list[tuple[Callable[..., None], list[Any]]] = [
            (os.setgroups, [[]]),
            (os.setresgid, [OVERFLOW_UID] * 3),
            (os.setresuid, [OVERFLOW_UID] * 3),
        ]
        for change, arguments in changes:
            try:
                change(*arguments)
            except OSError:
                if is_nodes:
                    raise
    keep(())


def _done(result: int, call: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
