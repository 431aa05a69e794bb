"""Checks the reserved mounts and devices of a container that runs. It changes nothing.

It is the check of hook.core.linux.look for a container whose root is `/` of its mount namespace by now. That root is
the namespace's: the container's process can change its own root (chroot(2)), and with it what /proc/PID/mountinfo
shows.
"""

from __future__ import annotations

import posix
from collections.abc import Callable, Sequence
from functools import lru_cache

from hook.core.base.errors import named
from hook.core.base.mountinfo import Row, mount_table, mount_table_at
from hook.core.container.spec import Spec
from hook.core.linux.look import View, places_of, reached, tree_of
from hook.core.linux.lookdevices import devices_below
from hook.core.linux.mountns import Namespace
from hook.core.linux.walk import MountMismatch, open_walked
from hook.core.plan import Plan
from hook.core.reserve import PlaceMount, Reason

DELETED = "//deleted"
"""What mountinfo appends to the root of a mount whose file was removed or replaced on the node (proc(5))."""

Problems = tuple[list[tuple[PlaceMount, MountMismatch]], list[Reason]]


class Node:
    """The node's mounts, and what it has at hostPaths now. Each path is looked at once."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.table = mount_table(0)
        self.status = lru_cache(4096)(posix.stat)
        self.tree = lru_cache(4096)(tree_of)
        self.places: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}

    def origin(self, source: str) -> tuple[str, str]:
        """Device and root that mountinfo has for a bind mount of a hostPath. Raises OSError, KeyError."""
        number, path = self.tree(source)
        row = self.table[number]
        return row.device, (row.root.rstrip("/") + path.removeprefix(row.point.rstrip("/"))) or "/"

    def is_stale(self, row: Row, source: str, made_from_it: Callable[[], bool]) -> bool:
        """Whether a mount shows what a hostPath was before it was replaced or moved, or before a link to it changed.

        `made_from_it`: whether config.json has this hostPath for the mount. Otherwise only a removed file of the same
        path counts as such a mount.
        """
        was = row.root.removesuffix(DELETED)
        try:
            device, root = self.origin(source)
        except (OSError, KeyError):  # it is missing, or in a newer mount
            return False
        if row.device != device or row.root == root:
            return False
        (old_directory, _, old), (directory, _, new) = was.rpartition("/"), root.rpartition("/")
        return was == root or ((old == new or old_directory == directory) and made_from_it())


class _View(View):
    """The root and mounts of a running container."""

    def __init__(self, root: int, table: dict[int, Row], spec: Spec, node: Node, plan: Plan, rootfs: str) -> None:
        sources = {edit.name: node.status(edit.source()) for edit in plan.mounts if edit.mount}
        super().__init__(None, root, table, spec, sources)
        self.node = node
        self.nodes_table = node.table
        self.own_tree = rootfs

    def tree(self, edit: PlaceMount) -> tuple[int, str]:
        """As the node has it. Each is looked up once."""
        return self.node.tree(edit.source())

    def set_options(self, row: Row, wanted: list[str]) -> None:
        """The container runs: nothing is set, and a missing option is a problem."""
        missing = [option for option in wanted if option not in row.options]
        raise MountMismatch(f"{named(self.at(row))} is not mounted {','.join(missing)}")

    def late(self, reserved: Sequence[PlaceMount]) -> list[tuple[PlaceMount, MountMismatch]]:
        """The runtime changes no path any more: its mounts are in the table."""
        return []


class Taken:
    """A running container's root and mounts, as its mount namespace has them. `close` closes its descriptors.

    `root`: an O_PATH descriptor. The namespace is entered for two opens; nothing is read there.
    """

    def __init__(self, pid: int, check: Callable[[], None]) -> None:
        """`check`: raises if `pid` is not the container's process any more. Raises Undecided, OSError.

        The calling thread must share its working directory with no other (hook.core.linux.mountns.own_directories).
        """
        with Namespace(pid) as there:
            check()
            self._mountinfo = there.mountinfo()
            self._table: dict[int, Row] = {}
            self.root = posix.dup(there.root)

    def table(self) -> dict[int, Row]:
        """Its mounts by id, read once. Raises OSError."""
        self._table = self._table or mount_table_at(self._mountinfo)
        return self._table

    def close(self) -> None:
        """Close the descriptors."""
        posix.close(self.root)
        posix.close(self._mountinfo)


def look(taken: Taken, plan: Plan, spec: Spec, node: Node, rootfs: str) -> Problems:
    """The reserved mounts that the container does not have, and the devices that it must not have.

    `rootfs`: the container's root on the node, without symbolic links. Raises Undecided, OSError.
    """
    table = taken.table()
    devices = devices_below(taken.root, "", table, plan.closed, open_walked) if plan.closed is not None else []
    mounts = _View(taken.root, table, spec, node, plan, rootfs).problems(plan.mounts) if plan.mounts else []
    return mounts, devices


def look_at_node_paths(taken: Taken, plan: Plan, node: Node) -> tuple[list[Reason], list[str]]:
    """What its volumes reach: what the policy refuses, and what it reports. Raises OSError."""
    paths = plan.node_paths_of_reassert
    if not paths:
        return [], []
    if paths not in node.places:
        node.places[paths] = places_of(plan, node.table)
    return reached([(row.point, row) for row in taken.table().values()], node.places[paths], plan)
