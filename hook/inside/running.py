"""Checks the reserved mounts and devices of a container that runs. It changes nothing.

It is the check of hook.core.linux.look for a container whose root is `/` of its mount namespace by now. That root is
the namespace's: the container's process can change its own root (chroot(2)), and with it what /proc/PID/mountinfo
shows.
"""

from __future__ import annotations

import posix
from collections.abc import Callable, Sequence
from functools import lru_cache

from hook.core.base.compare import parents
from hook.core.base.errors import Unacceptable, named
from hook.core.base.mountinfo import Row, descendants, mount_table, mount_table_at
from hook.core.container.spec import Spec
from hook.core.container.start import Start
from hook.core.linux.foresee import Foreseen
from hook.core.linux.look import View, mounted_late, status_of, tree_of
from hook.core.linux.look_node_paths import MadeSince, Volumes, covered, mounted_by, places_of, reached
from hook.core.linux.lookdevices import devices_below
from hook.core.linux.mountns import Namespace, mount_id
from hook.core.linux.walk import MountMismatch, PathEscapes, Steps, Walks, open_walked
from hook.core.plan import Plan
from hook.core.reserve.edits import Reason
from hook.core.reserve.node_paths import LOG_DIRECTORY
from hook.core.reserve.place_mount import PlaceMount

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
        self._places: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}

    def places_for(self, plan: Plan) -> list[tuple[str, str, str]]:
        """The places of a plan's own paths (`places_of`). Raises OSError."""
        paths = plan.node_paths_of_reassert
        if paths not in self._places:
            try:
                self._places[paths] = places_of(plan, self.table)
            except MadeSince:  # the node mounts and unmounts at any time
                self.table = mount_table(0)
                self._places[paths] = places_of(plan, self.table)
        return self._places[paths]

    def below(self, number: int, path: str) -> list[Row]:
        """The mounts below a path of the mount `number` that `rbind` takes along (mount(2), MS_UNBINDABLE)."""
        return descendants(number, path, (row for row in self.table.values() if not row.unbindable))

    def status_of(self, edit: PlaceMount) -> posix.stat_result:
        """The status of a reserved mount's source. Raises OSError."""
        return status_of(edit) if edit.is_in_pods_directory() else self.status(edit.source())

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
        sources = {edit.name: node.status_of(edit) for edit in plan.mounts if edit.mount}
        super().__init__(None, root, table=table, spec=spec, sources=sources)
        self.node = node
        self.nodes_table = node.table
        self.own_tree = rootfs

    def tree(self, edit: PlaceMount) -> tuple[int, str]:
        """As the node has it. Each is looked up once."""
        return super().tree(edit) if edit.is_in_pods_directory() else self.node.tree(edit.source())

    def set_options(self, row: Row, wanted: list[str]) -> None:
        """The container runs: nothing is set, and a missing option is a problem."""
        missing = [option for option in wanted if option not in row.options]
        raise MountMismatch(f"{named(self.path_of(row))} is not mounted {','.join(missing)}")

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

    def mount_at(self, path: str) -> int:
        """The id of the mount at a path, -1 if nothing is there now."""
        walks = Walks(self.root, Steps())
        try:
            return mount_id(walks.fd(walks.to(path, everywhere=True).node))
        except (PathEscapes, Unacceptable, OSError):
            return -1
        finally:
            walks.close()

    def close(self) -> None:
        """Close the descriptors."""
        posix.close(self.root)
        posix.close(self._mountinfo)


def look(taken: Taken, plan: Plan, spec: Spec, node: Node, rootfs: str) -> Problems:
    """The reserved mounts that the container does not have, and the devices that it must not have.

    `rootfs`: the container's root on the node, without symbolic links. Raises Undecided, OSError.
    """
    table = taken.table()
    devices = []
    if plan.exclusive is not None:
        plan.exclusive.leave_inert(spec.device_rules)
        devices = devices_below(taken.root, "", table, exclusive=plan.exclusive, opened=open_walked)
    mounts = _View(taken.root, table, spec, node, plan, rootfs).problems(plan.mounts) if plan.mounts else []
    return mounts, devices


def look_at_node_paths(taken: Taken, plan: Plan, spec: Spec, node: Node) -> Plan:
    """What its volumes reach, and what becomes of that when it starts again. Raises OSError."""
    if not plan.node_paths_of_reassert:
        return Plan(plan.policy)
    rows = taken.table().values()
    mounts = [(row.point, row) for row in rows]
    mounted = mounted_by(plan, covered(rows), node.table.values(), node.tree)
    return reached(mounts, node.places_for(plan), plan, volumes=Volumes(spec, mounts, taken.mount_at), mounted=mounted)


class NextStart(Foreseen):
    """The root and mounts of a running container, as they would be at its next start."""

    def __init__(self, root: int, table: dict[int, Row], spec: Spec, node: Node, plan: Plan, rootfs: str) -> None:
        self.node = node
        super().__init__(None, root, table=table, spec=spec, decided=plan, sources={})
        self.nodes_table = node.table
        self.own_tree = rootfs

    def row(self, number: int) -> Row:
        """See View. What the node has below a reserved mount's source is in its table."""
        return self.node.table.get(number) or super().row(number)

    def _gone(self) -> list[Row]:
        """See Foreseen. What the runtime mounts over masked and read-only paths is not there yet either."""
        gone = super()._gone()
        for _, path in mounted_late(self._is):
            try:
                point = self.walks.to(path, everywhere=True).path
            except OSError:
                continue
            gone += [row for row in self.inside if row.point == self.prefix + point][-1:]
        return gone


def foreseen_mounts(taken: Taken, plan: Plan, spec: Spec, node: Node, rootfs: str) -> list[Reason]:
    """Why the container would not start again, by its files and mounts now. Raises Unacceptable, OSError."""
    return NextStart(taken.root, taken.table(), spec, node, plan, rootfs).reasons() if plan.mounts else []


def foreseen(plan: Plan, start: Start, node: Node | None) -> Plan:
    """What becomes of the volumes of a container that starts now, by this node's mounts and links.

    As `look_at_node_paths` of hook.core.linux.look, before anything is mounted: no link of the image counts, and a
    hostPath that this node lacks is left out. Without a node: by the paths in config.json, as if each led to a file
    system of its own. Raises OSError.
    """
    seen = Plan(plan.policy)
    if node is None:
        seen.read_only = [f"{path.rstrip('/')}/{LOG_DIRECTORY[:-1].rpartition('/')[2]}" for path in plan.node_logs]
        seen.node_paths = [*plan.node_paths]
        return seen
    if not plan.node_paths_of_reassert:
        return seen
    mounts: list[tuple[str, Row]] = []
    newest: dict[str, int] = {}  # the id of the last mount at each path
    for mount in start.mounts:
        source, at = mount.source, mount.path
        if source[:1] != "/" or not mount.is_bind:
            continue
        try:
            number, real = node.tree(source)
            row = node.table[number]
        except (OSError, KeyError, ValueError):  # ValueError: no file has such a name
            continue
        own = ["ro"] if mount.is_read_only else []
        under = min([newest.get(path, 0) for path in (at, *parents(at))])  # of these the newest is seen there
        made = row.bound(-len(mounts) - 1, at, real.removeprefix(row.point.rstrip("/")), options=own, parent=under)
        mounts.append((at, made))
        newest[at] = made.id
        for below in node.below(number, real) if "rbind" in mount.options else ():
            point, all_own = at.rstrip("/") + below.point[len(real) :], own if "rro" in mount.options else []
            mounts.append((point, below.bound(-len(mounts) - 1, point, "", options=all_own, parent=made.id)))
            newest[point] = -len(mounts)
    return reached(mounts, node.places_for(plan), plan, volumes=Volumes(start, mounts))
