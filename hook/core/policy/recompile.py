"""Compile a changed policy file: the first start after the change does it, in a child process, and others wait for it.

Part of the start path: builtins only.
"""

import posix
import time

from hook.core.base.child import output_of
from hook.core.base.errors import ReassertError
from hook.core.base.files import make_directory
from hook.core.base.jsontext import Malformed, decode
from hook.core.policy.store import Stored, read_store

COMPILE_SECONDS = 20.0
"""How long a start waits for the compiler, started by itself or another start. CRI's timeout is two minutes."""


def recompiled(source: str, store: str, key: "list[int]", old: "Stored | None") -> "tuple[Stored | None, str]":
    """Run the compiler. Under a lock: other starts wait for the result and use it."""
    deadline = time.monotonic() + COMPILE_SECONDS
    lock = _lock(store, deadline)
    try:
        stored = read_store(source, store) if lock >= 0 else None
        if stored is not None and stored.has_compiled(key):
            return stored, ""
        command = ["policy", "compile", "--policy", source, "--store", store, "--output", "store"]
        return Stored(decode(output_of(command, deadline))), ""
    except (OSError, ReassertError, Malformed) as error:
        return old, f"{source} could not be compiled: {error}"
    finally:
        if lock >= 0:
            posix.close(lock)


def _lock(store: str, deadline: float) -> int:
    """A descriptor that holds the store's lock; -1 if it cannot be locked, and each start runs the compiler."""
    try:
        make_directory(store, 0o700)
        fd = posix.open(f"{store}/.lock", posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW, 0o600)
    except OSError:
        return -1
    while True:
        try:
            posix.lockf(fd, posix.F_TLOCK, 0)
            return fd
        except OSError:
            if time.monotonic() > deadline:
                posix.close(fd)
                return -1
            time.sleep(0.01)
