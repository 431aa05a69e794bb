"""Functions of the C library, by `_ctypes`: the part of ctypes that is written in C.

A start that looks at mounts would take 4 ms longer with `import ctypes` (docs/project/performance.md).
"""

from __future__ import annotations

import _ctypes
import sys
from typing import Any


def _type(base: Any, **members: object) -> Any:
    return type("", (base,), members)


_LONG, _CHAR = [_type(_ctypes._SimpleCData, _type_=code) for code in "lc"]
_REGISTER = _type(_ctypes._SimpleCData, _type_="P")  # an integer, None, or the address of bytes or of a buffer

# Types are made once: to make one takes as long as ten system calls.
_KEEPS_ERRNO = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO  # and other threads run during a call
_RETURNS_INT = _type(_ctypes.CFuncPtr, _flags_=_KEEPS_ERRNO)
_RETURNS_LONG = _type(_ctypes.CFuncPtr, _flags_=_KEEPS_ERRNO, _restype_=_LONG)
Statx = _type(_ctypes.Array, _type_=_CHAR, _length_=256)
"""A buffer for struct statx."""

get_errno = _ctypes.get_errno
"""The error of the function here that failed last in this thread."""


def function(name: str, arguments: int, kind: Any = _RETURNS_INT) -> Any:
    """A function that takes so many integers or addresses and returns an int. Raises OSError if there is none."""
    found = kind(_ctypes.dlsym(_ctypes.dlopen(None, 0), name))  # type: ignore[arg-type]  # None: this program
    found.argtypes = (_REGISTER,) * arguments
    return found


syscall = function("syscall", 7, _RETURNS_LONG)
"""A system call: its number and six arguments, always. Returns -1 for an error."""

mount, prctl, setns = function("mount", 5), function("prctl", 5), function("setns", 2)
statx, umount2, unshare = function("statx", 5), function("umount2", 2), function("unshare", 1)


def words(*numbers: int) -> bytes:
    """A struct of 64-bit numbers."""
    return b"".join([number.to_bytes(8, sys.byteorder) for number in numbers])
