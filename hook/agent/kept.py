"""What the agent keeps in memory, each behind the key of the file that it was read from.

A key is what stat(2) tells apart: device, inode, size, times of change. A file that was changed a moment ago may be
changed again within one tick of the file system's clock, under the same key: it is read but not kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from hook.base.system import is_file

_SETTLED_NS = 100_000_000
"""Nanoseconds after which a change shows in a file's times; Linux's clock for them ticks every 1 to 10 ms."""

T = TypeVar("T")


class Kept(Generic[T]):
    """Values by path, at most so many, the least used one going first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._values: OrderedDict[str, tuple[tuple[int, ...], T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, make: Callable[[], T]) -> T:
        """The value of a file as it is now; `make` reads it and may raise."""
        key = _key(path)
        with self._lock:
            found = self._values.get(path)
            if found is not None and found[0] == key:
                self._values.move_to_end(path)
                return found[1]
        value = make()
        if key and key == _key(path) and time.time_ns() - max(key[3:]) > _SETTLED_NS:
            with self._lock:
                self._values[path] = (key, value)
                while len(self._values) > self._count:
                    self._values.popitem(last=False)
        return value


def _key(path: str) -> tuple[int, ...]:
    """Of a regular file; of all else an empty one, which equals no file's."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    if not is_file(status):
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
