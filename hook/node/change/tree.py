"""The frozen program's files on a node: a directory for each version's content, and a link to the one in use.

PLACE/CONTENT/ is a program, PLACE/reassert a link to its executable, PLACE/start what dispatchers read
(hook.entry.dispatcher), PLACE/front a link to its front, the interpreter of warm dispatchers
(hook.entry.dispatcher). A start sees the old program or the new one, never a mix. The .deb has the same in
/usr/lib.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import shutil
import time
from contextlib import suppress
from glob import glob
from pathlib import Path

from hook.entry.cmdline import EDITING_VERBS
from hook.entry.dispatcher import FRONT, START, start_text
from hook.node.errors import NodeError
from hook.node.systemd import command, is_the_nodes, selinux_is_on, wait_until, which

PLACE = "/opt/reassert"
STAGING = "/opt/.reassert.reassert-aside"
"""The staging directory: a tree is prepared here, and a removed tree is kept here until the change is complete."""
COMMAND = "/usr/local/bin/reassert"
"""Left out where it cannot be written, as on a read-only /usr."""


def is_installed(path: str) -> bool:
    """Whether an executable is the one that `install` places."""
    return path == f"{PLACE}/reassert"


_SECONDS = 1
"""Seconds for which a replaced program stays: a dispatcher may have read `start` and not executed it yet."""

_EXECUTED = 0.05
"""Seconds within which a process that has opened a dispatcher shows its arguments."""

_VERBS = {verb.encode() for verb in EDITING_VERBS}
_OF_A_START = (b"--bundle", b"--process", b"--resources")
"""Options that engines give with them."""

_LINE = 1 << 16
"""Bytes of a command line that are looked at."""

_PATIENCE = 10
"""Seconds after which a replaced program that still runs is left to the next install or uninstall."""

_NAME = 12
"""Digits of a fingerprint that are the name of a program's directory."""

CONTENT = re.compile(f"[0-9a-f]{{{_NAME}}}(-[0-9]+)?")
"""The names that `directory_of` makes. Anything else in PLACE was not written by reassert."""


def fingerprint(path: str, laid_out: bool = False) -> str:
    """Returns a hex sha256 over names, modes and contents of everything below a directory. Raises OSError.

    `laid_out`: return the fingerprint that the copy made by `copy` will have.
    """
    digest = hashlib.sha256()
    for directory, names, files in os.walk(path):
        names.sort()
        for name in sorted([*files, *(name for name in names if os.path.islink(os.path.join(directory, name)))]):
            full = os.path.join(directory, name)
            link = os.path.islink(full)
            mode = os.lstat(full).st_mode
            if laid_out and not link:
                mode = mode & ~0o7777 | _mode(mode)
            content = hashlib.sha256(os.readlink(full).encode() if link else Path(full).read_bytes()).hexdigest()
            entry = f"{os.path.relpath(full, path)} {mode:o} {content}\n"
            digest.update(entry.encode())
    return digest.hexdigest()


def _mode(mode: int) -> int:
    return 0o755 if mode & 0o100 else 0o644


def directory_of(content: str) -> str:
    """Returns the directory in PLACE for the program with this fingerprint, existing or free.

    An existing directory of that name with other content, a damaged one, is left alone. Raises OSError.
    """
    stem = f"{PLACE}/{content[:_NAME]}"
    taken = sorted(glob(f"{stem}*"))
    there = (path for path in taken if fingerprint(path) == content)
    free = (path for path in [stem, *(f"{stem}-{number}" for number in range(2, 99))] if path not in taken)
    return next(there, None) or next(free)


def copy(source: str, target: str) -> None:
    """Copies a program's tree, writable by its owner only; root owns it if root copies. Raises OSError."""
    try:
        shutil.copytree(source, target, symlinks=True)
    except shutil.Error as error:
        _, first, why = error.args[0][0]  # a list of (source, target, "[Errno 28] message: names")
        raise OSError(errno.EIO, (why.partition("] ")[2] or why).partition(": ")[0], first) from None
    for directory, _, files in os.walk(target):
        os.chmod(directory, 0o755)  # noqa: S103  # everyone may run it, only root may write
        for name in files:
            full = os.path.join(directory, name)
            if not os.path.islink(full):
                os.chmod(full, _mode(os.stat(full).st_mode))
        if os.geteuid() == 0:
            for full in (directory, *(os.path.join(directory, name) for name in files)):
                os.lchown(full, 0, 0)


def prepare(source: str) -> None:
    """Copies a program's tree into the staging directory, durably, for `place`. Raises OSError."""
    shutil.rmtree(STAGING, ignore_errors=True)
    os.makedirs(os.path.dirname(STAGING), exist_ok=True)
    copy(source, STAGING)
    sync(STAGING, "syncfs")


def sync(path: str, call: str = "fsync") -> None:
    """Writes a directory (fsync), or its whole file system (syncfs), to the disk. Raises OSError.

    And no other file system: sync(2) would also wait for a dead NFS server.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if getattr(ctypes.CDLL(None, use_errno=True), call)(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(fd)


def place(path: str, content: str) -> None:
    """Renames the staged tree to `path`, or with `content` "" the tree at `path` into the staging directory.

    `content`: the fingerprint of the staged tree. Raises NodeError if the staged tree has another one; OSError.
    """
    if not content:
        shutil.rmtree(STAGING, ignore_errors=True)
        os.rename(path, STAGING)
        return
    if not os.path.isdir(STAGING) or fingerprint(STAGING) != content:
        raise NodeError(f"{STAGING} is not the program to install at {path}; run the same command again")
    os.rename(STAGING, path)
    label(PLACE)


def label(path: str) -> None:
    """Gives PLACE, or a file in it, the SELinux label that this node's policy has for it, before anything calls it.

    Copies have the labels of their originals, what is renamed keeps its own, and a new file has that of its directory.
    """
    if f"{path}/".startswith(f"{PLACE}/") and selinux_is_on() and which("restorecon"):
        command(["restorecon", "-R", path])


def lay_out(source: str, directory: str, place: str) -> None:
    """Writes the tree, `start` and the link into a package's directory, which will be at `place` on a node.

    packaging/layout.py calls it.
    """
    name = fingerprint(source, laid_out=True)[:_NAME]
    copy(source, f"{directory}/{name}")
    Path(directory, START).write_text(start_text(f"{place}/{name}/reassert"))
    if os.path.exists(f"{source}/{FRONT}"):
        os.symlink(f"{name}/{FRONT}", f"{directory}/{FRONT}")
    os.symlink(f"{name}/reassert", f"{directory}/reassert")


def tidy(stays: float = _SECONDS, patience: float = _PATIENCE) -> None:
    """Removes the staging directory, and each replaced program once no process runs it.

    `stays`: seconds that a replaced program is left at least. `patience`: seconds that one that runs is waited for.
    Must not be called while a journal is pending: a rollback needs these files.
    """
    shutil.rmtree(STAGING, ignore_errors=True)
    stale, replaced = _stale()
    if stale and replaced:
        time.sleep(stays)
    deadline = time.monotonic() + patience
    for path in stale:
        if wait_until(lambda: not _runs(path), deadline - time.monotonic()):  # noqa: B023  # called at once
            shutil.rmtree(path, ignore_errors=True)
    front = f"{PLACE}/{FRONT}"
    if os.path.islink(front) and not os.path.exists(front):  # a version without front has replaced one with it
        os.unlink(front)
    if stale and not replaced:
        with suppress(OSError):
            os.rmdir(PLACE)


def let_starts_end(patience: float = _PATIENCE) -> None:
    """Waits, at most `patience` seconds, for container starts that began through dispatchers that are replaced now."""
    time.sleep(_EXECUTED)
    starts = [process for process in glob("/proc/[0-9]*") if _is_start(process)]
    wait_until(lambda: not any(map(_is_start, starts)), patience, 0.02)


def _is_start(process: str) -> bool:
    """Whether a process is a start, as front, as sh, as this program or as a runtime: all have the same arguments.

    It may be one while execve(2) has not set its arguments yet: it has an executable, unlike a kernel thread or zombie.
    Only this user's are looked at, which is root, and no container's (hook.node.systemd.is_the_nodes).
    """
    try:
        if os.stat(process).st_uid != os.geteuid() or not is_the_nodes(process):
            return False
        with open(f"{process}/cmdline", "rb", buffering=0) as file:
            line = file.read(_LINE)
        if not line:
            return bool(os.readlink(f"{process}/exe"))
    except OSError:
        return False
    words = line.split(b"\0")
    return any(word in _VERBS for word in words) and any(word.startswith(_OF_A_START) for word in words)


def _stale() -> tuple[list[str], bool]:
    """Returns the programs in PLACE that the link does not lead to, and whether the link exists."""
    program = f"{PLACE}/reassert"
    used = os.path.join(PLACE, os.path.dirname(os.readlink(program))) if os.path.islink(program) else ""
    stale = [path for path in glob(f"{PLACE}/*") if CONTENT.fullmatch(os.path.basename(path)) and path != used]
    return stale, os.path.lexists(program)


def _runs(path: str) -> bool:
    """Whether another process, in any mount namespace, runs the program in a directory."""
    for executable in glob("/proc/[0-9]*/exe"):
        try:
            if os.path.samefile(executable, f"{path}/reassert") and executable != f"/proc/{os.getpid()}/exe":
                return True
        except OSError:
            continue  # the process has ended or is a kernel thread; or the directory has no program
    return False
