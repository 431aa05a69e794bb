"""What a container's process really has: its environment, its mounts, and the files that paths lead it to.

Paths are walked by a child that enters the container's mount and pid namespaces, in the process's own working
directory: every link, /proc/self among them, leads it where it leads the process.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import proc

from reality.hostile import capabilities_of, limit_to, remount_writable
from reality.node import LIBC
from reality.reading import clean, within

_NEWNS, _NEWPID = 0x00020000, 0x20000000
_STATX_MNT_ID = 0x1000
_STATX = 332  # x86_64
_PATIENCE = 10


@dataclass(frozen=True)
class Found:
    """Where a path leads the process. `error`: errno, where it leads nowhere."""

    error: int = 0
    device: int = 0
    inode: int = 0
    kind: int = 0
    mount: int = 0
    content: str = ""
    writable: bool = False
    """Whether it can be opened for writing where only the mount could stop it; a directory: a file made in it."""

    def __str__(self) -> str:
        if self.error:
            return os.strerror(self.error)
        kind = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFCHR: "device"}.get(self.kind, "special file")
        return f"{kind} {self.device}:{self.inode} {self.content!r}" + (" writable" if self.writable else "")


@dataclass(frozen=True)
class View:
    """What a process has. `env`: raw entries."""

    env: list[bytes] = field(default_factory=list)
    mounts: list[proc.Mount] = field(default_factory=list)
    paths: dict[str, Found] = field(default_factory=dict)
    loose: tuple[str, ...] = ()
    """Of those asked for: what can be written after a remount with the container's own capabilities."""

    def below(self, path: str) -> list[proc.Mount]:
        """The mount that a path leads to and everything mounted below it that the process can reach, by mountinfo."""
        found = self.paths.get(path)
        if not found or found.error:
            return []
        family, grown = {found.mount}, True
        while grown:
            children = {one.id for one in self.mounts if one.parent in family} - family
            family |= children
            grown = bool(children)
        return [one for one in self.mounts if one.id in family]


def environ(pid: int) -> list[bytes]:
    """The environment that a process was started with."""
    return list(map(os.fsencode, proc.read_environ(Path(f"/proc/{pid}"))))


def look(pid: int, paths: list[str], remount: list[str] | None = None) -> View:
    """What a container's process has, and where `paths` lead it. `remount`: mount points that it makes writable."""
    found = _inside(pid, paths, remount or [])
    loose = tuple(found.pop(""))
    return View(
        environ(pid), proc.read_mounts(Path(f"/proc/{pid}")), {path: Found(**one) for path, one in found.items()}, loose
    )


def host(path: Path) -> Found:
    """The node's own file, as `look` would find it."""
    return _find(str(path))


def _inside(pid: int, paths: list[str], remount: list[str]) -> dict[str, Any]:
    held = capabilities_of(pid)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            signal.alarm(_PATIENCE)
            _enter(pid)
            grandchild = os.fork()
            if grandchild == 0:
                signal.alarm(_PATIENCE)
                there: dict[str, Any] = {path: vars(_find(path)) for path in paths}
                there[""] = []
                if remount:
                    remount_writable(remount)
                    limit_to(held)
                    below = [path for path in paths if any(within(path, clean(top)) for top in remount)]
                    there[""] = [path for path in below if _is_loose(path)]
                answer = json.dumps(there).encode()
                while answer:
                    answer = answer[os.write(writer, answer) :]
                os._exit(0)
            os.waitpid(grandchild, 0)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text)
    return found


def _enter(pid: int) -> None:
    namespaces = [
        (os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY), _NEWPID),
        (os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), _NEWNS),
    ]
    cwd = os.open(f"/proc/{pid}/cwd", os.O_PATH)
    root = os.open(f"/proc/{pid}/root", os.O_PATH)
    for fd, kind in namespaces:
        if LIBC.setns(fd, kind):
            raise OSError(ctypes.get_errno(), "setns")
    os.fchdir(root)
    os.chroot(".")
    os.fchdir(cwd)


def _find(path: str) -> Found:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        return Found(error=error.errno or errno.EIO)
    try:
        status = os.fstat(fd)
        kind = stat.S_IFMT(status.st_mode)
        content, writable = "", False
        if kind == stat.S_IFREG:
            content = _content(path)
            writable = _opens(path, os.O_WRONLY)
        elif kind == stat.S_IFDIR:
            writable = _opens(path, os.O_WRONLY | os.O_TMPFILE)
        return Found(0, status.st_dev, status.st_ino, kind, _mount_id(fd), content, writable)
    finally:
        os.close(fd)


def _is_loose(path: str) -> bool:
    flags = os.O_WRONLY | os.O_TMPFILE if os.path.isdir(path) else os.O_WRONLY
    if _opens(path, flags):
        return True
    try:
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))
    except OSError:
        return False
    return True


def _content(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(fd, 200).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _opens(path: str, flags: int) -> bool:
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK, 0o600))
    except OSError:
        return False
    return True


def _mount_id(fd: int) -> int:
    buffer = ctypes.create_string_buffer(256)
    if LIBC.syscall(_STATX, fd, b"", 0x1000, _STATX_MNT_ID, buffer):  # AT_EMPTY_PATH
        return 0
    return int.from_bytes(buffer.raw[0x90:0x98], "little")
