"""Counts cold starts of containers that needed nothing, which leave a line in a file (hook.adapters.unchanged)."""

from __future__ import annotations

import os
from contextlib import suppress

from hook.adapters.nri.metrics import NoMetrics
from hook.adapters.unchanged import LIMIT, NAME, NO_REASON, PROBE
from hook.base.files import make_directory

ADAPTERS = ("runtime", "hook", "precreate", "nri")

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UnchangedStarts:
    """Takes the lines of the file away and counts them. The file itself tells starts that their lines are wanted."""

    def __init__(self, store: str, metrics: NoMetrics) -> None:
        self._store = store
        self._path = f"{store}/{NAME}"
        self._metrics = metrics
        self._taken = -1  # the last file that was taken away: a start may have opened it before

    def count(self) -> None:
        """Count the lines since the last call. A file that cannot be read or made counts nothing."""
        with suppress(OSError):
            self._finish()
            with suppress(FileNotFoundError):
                if os.lstat(self._path).st_size == 0:
                    return
                self._taken = os.open(self._path, _FLAGS)
            self._make()
            if self._taken >= 0:
                self._add(os.read(self._taken, 2 * LIMIT))

    def _finish(self) -> None:
        if self._taken >= 0:
            taken, self._taken = self._taken, -1
            try:
                self._add(os.read(taken, LIMIT))
            finally:
                os.close(taken)

    def _make(self) -> None:
        """Put an empty file in the place of the one that is being read."""
        make_directory(self._store, 0o700)
        temporary = f"{self._path}.new"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.rename(temporary, self._path)

    def _add(self, data: bytes) -> None:
        for line in data.decode("ascii", "replace").splitlines():
            words = line.split()
            probe = words[:1] == [PROBE]
            adapter, *cold = words[probe:]
            if adapter in ADAPTERS and len(cold) == 1:
                self._metrics.unchanged(adapter, probe, "cold", "" if cold == [NO_REASON] else cold[0])
