"""The frozen program's directory, put in place as a whole: a start sees the old one or the new one, never a mix."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
from pathlib import Path

from hook.node.errors import NodeError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def aside(path: str) -> str:
    """Where a tree is prepared, and where the one that it replaced then lies until all is done."""
    directory, name = os.path.split(path)
    return f"{directory}/.{name}.reassert-aside"


def fingerprint(path: str) -> str:
    """Hex sha256 over names, modes and contents of everything below a directory. Raises OSError."""
    digest = hashlib.sha256()
    for directory, names, files in os.walk(path):
        names.sort()
        for name in sorted([*files, *(name for name in names if os.path.islink(os.path.join(directory, name)))]):
            full = os.path.join(directory, name)
            mode = os.lstat(full).st_mode
            content = os.readlink(full).encode() if os.path.islink(full) else Path(full).read_bytes()
            entry = f"{os.path.relpath(full, path)} {mode:o} {hashlib.sha256(content).hexdigest()}\n"
            digest.update(entry.encode())
    return digest.hexdigest()


def prepare(source: str, path: str) -> str:
    """Copy a program's tree beside its place, root's and writable by nobody else. Returns the copy's fingerprint."""
    copy = aside(path)
    shutil.rmtree(copy, ignore_errors=True)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shutil.copytree(source, copy, symlinks=True)
    for directory, _, files in os.walk(copy):
        os.chown(directory, 0, 0)
        os.chmod(directory, 0o755)  # noqa: S103  # engines and people run it, root alone writes
        for name in files:
            full = os.path.join(directory, name)
            os.lchown(full, 0, 0)
            if not os.path.islink(full):
                os.chmod(full, 0o755 if os.stat(full).st_mode & 0o100 else 0o644)
    _sync(copy)
    return fingerprint(copy)


def _sync(path: str) -> None:
    """Have a path's whole file system on disk, and no other: sync(2) would wait for a dead NFS server too."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
    finally:
        os.close(fd)


def exchange(path: str, wanted: str) -> None:
    """Put the tree that lies aside in place, or with `wanted` "" the one in place aside. Raises NodeError, OSError."""
    other = aside(path)
    if not wanted:
        shutil.rmtree(other, ignore_errors=True)
        os.rename(path, other)
        return
    if not os.path.isdir(other) or fingerprint(other) != wanted:
        raise NodeError(f"{other} is not the program that was to be put at {path}; run the same command again")
    if not os.path.lexists(path):
        os.rename(other, path)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, other.encode(), _AT_FDCWD, path.encode(), _RENAME_EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)


def discard(path: str) -> None:
    """Remove what lies aside."""
    shutil.rmtree(aside(path), ignore_errors=True)
