"""The files of this node that configurations of engines name: OCI runtimes, dispatchers, other configuration.

A Config (hook.node.engines.base) asks for them here alone, so its tests have a table of texts in place of a node.
"""

from __future__ import annotations

import glob
import os
from functools import lru_cache
from pathlib import Path

from hook.entry.dispatcher import is_gvisor
from hook.node import systemd
from hook.node.change.files import State, look


class NodeFiles:
    """Those that are on this node now. Its methods raise OSError for what cannot be read."""

    def which(self, program: str) -> str | None:
        """The absolute path of a program, by its name or path, found as an engine finds it; None if there is none."""
        return systemd.which(program)

    def is_file(self, path: str) -> bool:
        """Whether there is a file, also behind a symbolic link."""
        return os.path.isfile(path)

    def is_program(self, path: str) -> bool:
        """Whether a file can be executed."""
        return os.path.isfile(path) and os.access(path, os.X_OK)

    def is_free(self, path: str) -> bool:
        """Whether a path names nothing, not even a broken link."""
        return not os.path.lexists(path)

    def answers(self, program: str) -> bool:
        """Whether a program knows `--version`."""
        return systemd.command([program, "--version"]).returncode == 0

    def is_gvisor(self, program: str) -> bool:
        """Whether a program says that it is gVisor's runsc. It is asked once, until its file changes."""
        path = self.which(program)
        if path is None:
            return False
        status = os.stat(path)
        return _says_gvisor(path, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))

    def content(self, path: str, limit: int = -1) -> bytes | None:
        """The first bytes of a file, all without a limit; None if there is no file."""
        try:
            with Path(path).open("rb") as file:
                return file.read(limit)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def state(self, path: str) -> State | None:
        """The state of a path (hook.node.change.files.look). Raises NodeError too."""
        return look(path)

    def matching(self, pattern: str) -> list[str]:
        """The paths that a pattern of glob(7) matches, sorted."""
        return sorted(glob.glob(pattern))

    def target(self, path: str) -> str:
        """The path without symbolic links."""
        return os.path.realpath(path)


@lru_cache(64)
def _says_gvisor(program: str, key: tuple[int, ...]) -> bool:  # of the file
    return is_gvisor(program)


THIS_NODE = NodeFiles()
