"""A cache of what the agent read from files, each value valid while its file is unchanged.

The key of a value holds device, inode, size, mtime and ctime of its file (stat(2)). A file that changed a moment ago
can change again within one tick of the file system's clock and keep the same key. So such a file is read, not cached.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from hook.core.base.system import is_file

SETTLED_NS = 100_000_000
"""Age in nanoseconds from which a file is cached; the clock of Linux file times ticks every 1 to 10 ms."""

_SECOND_NS = 1_000_000_000
_COARSE_NS = 2 * _SECOND_NS + SETTLED_NS
"""The same where times are whole seconds, as on ext4 with inodes of 128 bytes, or even ones (FAT)."""

T = TypeVar("T")


class FileCache(Generic[T]):
    """A cache of at most `count` values by path; the value that was used longest ago is dropped first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._values: OrderedDict[str, tuple[tuple[int, ...], T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, make: Callable[[], T]) -> T:
        """Returns the value of a file as it is now. Calls `make`, which may raise, if the file is not cached."""
        key = _key(path)
        with self._lock:
            found = self._values.get(path)
            if found is not None and found[0] == key:
                self._values.move_to_end(path)
                return found[1]
        value = make()
        if key and key == _key(path) and is_settled(max(key[3:])):
            with self._lock:
                self._values[path] = (key, value)
                while len(self._values) > self._count:
                    self._values.popitem(last=False)
        return value


def is_settled(changed: int) -> bool:
    """Whether every further change gives a file another time, if its last change was at this time, in nanoseconds."""
    return time.time_ns() - changed > (SETTLED_NS if changed % _SECOND_NS else _COARSE_NS)


def _key(path: str) -> tuple[int, ...]:
    """Returns the key of a regular file, and an empty key, which matches no cached value, for anything else."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    if not is_file(status):
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
