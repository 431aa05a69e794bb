"""A process that has hardly a descriptor left, as where another container keeps the agent's."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """This process may open so many files more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_PATH)
    os.close(lowest)
    taken = [os.open("/", os.O_PATH) for _ in range(64)]  # no gap is left below the limit
    top = max(*taken, lowest) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + count, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
