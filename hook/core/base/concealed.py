"""What an event has in place of a container's own values: their length and a keyed hash.

Such a value may be a secret, as that of a name `*TOKEN*` that must be absent, and the log has other readers than the
container. Equal values have equal hashes on a node.
"""

from __future__ import annotations

import posix
import time
from _blake2 import blake2b  # an extension module in some builds of Python
from typing import Any

from hook.core.base.errors import ReassertError
from hook.core.base.system import exists, read_file, temporary_of, trusted, write_all
from hook.core.base.urls import without_credentials

KEY = "event-key"
"""The file of the store with the key of the hashes: random bytes, made once, readable by root alone."""

_BYTES = 32

_HASHED = 8
"""Values of one list that are hashed: an event has no more of them (hook.core.events.EVENT_ITEMS)."""

_CHUNK = 1 << 16

_READ: dict[str, tuple[list[int], bytes]] = {}
"""The keys that were read, by path; each with the device, the inode and the ctime of its file before."""


def concealed(value: Any, own: object, store: str) -> Any:
    """The value with `{"bytes": …, "hash": …}` in place of each string but `own`, the policy's value.

    `store`: the directory with the key. Without `hash` for "", or if the key cannot be read or made.
    """
    return _concealed(value, own, _key(store) if store else b"")


def _concealed(value: Any, own: object, key: bytes) -> Any:
    if isinstance(value, list):
        return [_concealed(item, own, key if index < _HASHED else b"") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {name: _concealed(item, own, key) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    return without_credentials(value) if value == own else _measured(value, key)


def _measured(text: str, key: bytes) -> dict[str, object]:
    if not key:
        return {"bytes": len(text.encode("utf-8", "surrogatepass"))}
    digest, size = blake2b(digest_size=8, key=key), 0
    for start in range(0, len(text), _CHUNK):  # encoding all of it at once would copy up to 32 MiB
        data = text[start : start + _CHUNK].encode("utf-8", "surrogatepass")
        size += len(data)
        digest.update(data)
    return {"bytes": size, "hash": digest.hexdigest()}


def _key(store: str) -> bytes:
    """The node's key, made if it is missing; empty if it cannot be read or made, or others could have read it."""
    path = f"{store}/{KEY}"
    try:
        try:
            status = posix.stat(path)
        except FileNotFoundError:
            make_key(store)
            status = posix.stat(path)
        file = [status.st_dev, status.st_ino, status.st_ctime_ns]
        known = _READ.get(path)
        if known and known[0] == file:
            return known[1]
        key = b"" if trusted(path).st_mode & 0o077 else read_file(path, _BYTES)
    except (OSError, ReassertError):
        return b""
    if len(key) != _BYTES:
        return b""
    _READ[path] = file, key
    return key


def make_key(store: str) -> None:
    """Make the key if it is missing. Of several that do so at once, the first one's counts. Raises OSError."""
    path = f"{store}/{KEY}"
    if exists(path):
        return
    temporary = f"{temporary_of(path, posix.getpid())}-{time.monotonic_ns()}"
    fd = posix.open(
        temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600
    )
    try:
        try:
            write_all(fd, posix.urandom(_BYTES))
            posix.fsync(fd)
        finally:
            posix.close(fd)
        posix.link(temporary, path)  # unlike rename(2), replaces nothing: a key that was used stays
    except FileExistsError:
        pass
    finally:
        posix.unlink(temporary)
