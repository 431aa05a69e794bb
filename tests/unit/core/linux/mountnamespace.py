"""A thread with a mount namespace with real mounts, as a container has it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hook.core.base.mountinfo import Row, mount_table
from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.linux.look import View, look
from hook.core.linux.mountns import own_directories
from hook.core.reserve.place_mount import PlaceMount
from unit.support import spec

CLONE_NEWNS, MS_BIND, MS_REC, MS_UNBINDABLE, MS_PRIVATE = 1 << 17, 1 << 12, 1 << 14, 1 << 17, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)


class Stop(Exception):
    """The caller does not want anything to be mounted."""


def stop() -> None:
    raise Stop


class MountNamespace:
    """A thread with a mount namespace, in which `rootfs` is a container's root: `pid` is the thread's.

    `source`: the directory of the node that is reserved. `share`: a file system of the node.
    """

    def __init__(self, directory: Path) -> None:
        self.rootfs, self.source, self.share = directory / "rootfs", directory / "ca", directory / "share"
        for path in (self.rootfs, self.source / "sub", self.share):
            path.mkdir(parents=True)
        self._thread = ThreadPoolExecutor(1)
        self._caller = ThreadPoolExecutor(1)
        self.pid: int = self._thread.submit(self._begin).result()
        self._caller.submit(own_directories).result()

    def _begin(self) -> int:
        own_directories()
        assert libc.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        self._call("none", Path("/"), MS_REC | MS_PRIVATE)
        self._call("tmpfs", self.share, 0, "tmpfs")
        self._call(self.rootfs, self.rootfs, MS_BIND)
        for name in ("etc/ssl/sub", "etc/other", "vol", "masked"):
            (self.rootfs / name).mkdir(parents=True)
        for name in ("a", "b"):
            (self.share / name).mkdir()
        return threading.get_native_id()

    @staticmethod
    def _call(source: object, target: Path, flags: int, kind: str = "") -> None:
        target.mkdir(parents=True, exist_ok=True)
        given = [str(value).encode() for value in (source, target, kind)]
        assert libc.mount(*given, ctypes.c_ulong(flags), None) == 0, os.strerror(ctypes.get_errno())

    def mount(self, at: str, source: object = "tmpfs", flags: int = MS_BIND | MS_REC) -> None:
        """Mount a directory, or a tmpfs, at a path of the container; of the node, if it begins with the directory."""
        target = Path(at) if Path(at).is_relative_to(self.source) else Path(f"{self.rootfs}{at}")
        kind = "tmpfs" if source == "tmpfs" else ""
        self._thread.submit(self._call, source, target, 0 if kind else flags, kind).result()

    def within(self, work: Callable[[], Any]) -> Any:
        """The result of a function, called by a process of the container."""
        return self._thread.submit(work).result()

    def edit(self, at: str = "/etc/ssl", *options: str, **more: Any) -> PlaceMount:
        """A reserved mount."""
        given = {"destination": at, "type": "bind", "source": str(self.source), "options": ["rbind", *options]}
        mount = more.pop("mount", given)
        companions = more.pop("companions", frozenset())
        return PlaceMount("ca", at, mount and Mount(mount), companions=companions, before=[], **more)

    def look(self, *edits: PlaceMount, of: Spec | None = None, before: Callable[[], None] = stop) -> list[str]:
        """Why the container must not start."""
        found = self._caller.submit(
            look, self.pid, str(self.rootfs), edits, of or spec(), before_mounting=before
        ).result()
        return [reason.message for reason in found[1]]

    def problems(self, *edits: PlaceMount, forget: str = "none") -> list[str]:
        """The same, of a look whose table of mounts was read before one of them was made."""

        def work() -> list[str]:
            root = os.open(self.rootfs, os.O_PATH)
            try:
                table = {n: row for n, row in mount_table(self.pid).items() if row.point != f"{self.rootfs}{forget}"}
                sources = {edit.name: os.stat(edit.source()) for edit in edits}
                return [
                    str(problem)
                    for _, problem in View(None, root, table=table, spec=spec(), sources=sources).problems(edits)
                ]
            finally:
                os.close(root)

        return list(self.within(work))

    def rows(self, at: str) -> list[Row]:
        """The mounts at a path of the container."""
        return [row for row in mount_table(self.pid).values() if row.point == f"{self.rootfs}{at}"]

    def close(self) -> None:
        """End the threads, and the namespace with them."""
        self._thread.shutdown()
        self._caller.shutdown()
