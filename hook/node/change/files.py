"""States of files: read, compared, written and restored."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hook.node.change import tree
from hook.node.errors import NodeError
from hook.resident import oplog

FILE, LINK, TREE = "file", "link", "tree"


@dataclass(frozen=True)
class State:
    """The state of a path now, or the wanted one: a file, a symbolic link or a tree (hook.node.change.tree).

    `content`: a file's bytes, a link's target, a tree's fingerprint. `mode`, `uid`, `gid`: for chmod(2) and chown(2);
    a link has no mode. `mtime_ns` None: the time of writing. `xattrs`: extended attributes, such as SELinux's label.
    """

    content: bytes
    kind: str = FILE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int | None = None
    xattrs: dict[str, bytes] = field(default_factory=dict)

    def same(self, other: State | None) -> bool:
        """Whether kind, content, mode and owner are equal. Times and extended attributes are not compared."""
        return other is not None and self._essence() == other._essence()

    def _essence(self) -> tuple[object, ...]:
        return self.kind, self.content, self.mode if self.kind == FILE else 0, self.uid, self.gid

    def with_content(self, content: bytes) -> State:
        """Returns the same state with other content and the time of writing."""
        return State(content, self.kind, self.mode, self.uid, self.gid, None, self.xattrs)

    def sha256(self) -> str:
        """Hex digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Returns this state as JSON data, for `from_json`."""
        attributes = {name: base64.b64encode(value).decode() for name, value in self.xattrs.items()}
        return {**self.__dict__, "content": base64.b64encode(self.content).decode(), "xattrs": attributes}

    @staticmethod
    def from_json(data: dict[str, Any]) -> State:
        """Returns the state that `as_json` wrote."""
        attributes = {name: base64.b64decode(value) for name, value in data["xattrs"].items()}
        return State(**{**data, "content": base64.b64decode(data["content"]), "xattrs": attributes})


Change = tuple[str, State | None]
"""An absolute path and its wanted state; None: no file."""


def link(target: str) -> State:
    """Returns the state of a symbolic link."""
    return State(target.encode(), LINK, 0o777)


def look(path: str) -> State | None:
    """Returns the state of a path now, None if nothing is there. Raises NodeError for a device or socket; OSError."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(status.st_mode):
        return State(os.readlink(path).encode(), LINK, 0o777, status.st_uid, status.st_gid, status.st_mtime_ns)
    if stat.S_ISDIR(status.st_mode):
        return State(tree.fingerprint(path).encode(), TREE)
    if not stat.S_ISREG(status.st_mode):
        raise NodeError(f"{path} is neither a file nor a symbolic link; move it away")
    mode = stat.S_IMODE(status.st_mode)
    content = Path(path).read_bytes()
    return State(content, FILE, mode, status.st_uid, status.st_gid, status.st_mtime_ns, _xattrs(path))


def is_same(wanted: State | None, now: State | None) -> bool:
    """Whether the state of a path is the wanted one; None: no file."""
    return now is None if wanted is None else wanted.same(now)


class Disk:
    """The states of paths before a change, or after it. Each path is read once."""

    def __init__(self) -> None:
        self._seen: dict[str, State | None] = {}

    def at(self, path: str) -> State | None:
        """Returns the state of a path, read by `look` at the first call."""
        if path not in self._seen:
            self._seen[path] = look(path)
        return self._seen[path]

    def has(self, path: str, wanted: State | None) -> bool:
        """Whether a path has the wanted state."""
        return is_same(wanted, self.at(path))


def put(path: str, state: State | None) -> None:
    """Gives a path this state, atomically and durably (temporary file, fsync, rename). The directory must exist.

    A tree must be staged first (`tree.prepare`); a removed tree is staged again. Raises NodeError, OSError.
    """
    if (state and state.kind == TREE) or os.path.isdir(path):
        tree.place(path, state.content.decode() if state else "")
    elif state is None:
        with suppress(FileNotFoundError):
            os.unlink(path)
    else:
        _replace(path, state)
        tree.label(path)
    tree.sync(os.path.dirname(path))
    if state is None:
        oplog.info("file.removed", path=path)
    else:
        known = {"kind": state.kind, "bytes": len(state.content), "mode": f"{state.mode:04o}"}
        oplog.info("file.written", path=path, sha256=state.sha256(), **known)


def _replace(path: str, state: State) -> None:
    temporary = temporary_name(path)
    remove_temporary(path)
    try:
        if state.kind == LINK:
            os.symlink(state.content.decode(), temporary)
            os.lchown(temporary, state.uid, state.gid)
        else:
            _write(temporary, state)
        os.rename(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if (
            isinstance(error, OSError) and error.filename is None
        ):  # the error of write(2) has no path, for example on a full disk
            error.filename = path
        raise


def temporary_name(path: str) -> str:
    """Returns the temporary path that `put` writes to. A file that an interrupted `put` left there may be removed."""
    directory, name = os.path.split(path)
    return f"{directory}/.{name}.reassert-new"


def remove_temporary(path: str) -> None:
    """Removes the temporary file of an interrupted `put`. A read-only file system, which has none, is no error."""
    temporary = temporary_name(path)
    if os.path.lexists(temporary):
        os.unlink(temporary)


def missing_directories(paths: list[str]) -> list[str]:
    """Returns the directories that must be made before files can be written at these paths, outermost first."""
    missing: set[str] = set()
    for path in paths:
        directory = os.path.dirname(path)
        while not os.path.isdir(directory):
            missing.add(directory)
            directory = os.path.dirname(directory)
    return sorted(missing)


def _write(path: str, state: State) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(state.content)
        file.flush()
        os.fchown(fd, state.uid, state.gid)
        os.fchmod(fd, state.mode)
        for name, value in state.xattrs.items():
            with suppress(OSError):  # a file system without extended attributes
                os.setxattr(fd, name, value)
        if state.mtime_ns is not None:
            os.utime(fd, ns=(state.mtime_ns, state.mtime_ns))
        os.fsync(fd)


def _xattrs(path: str) -> dict[str, bytes]:
    try:
        return {name: os.getxattr(path, name) for name in os.listxattr(path)}
    except OSError:
        return {}
