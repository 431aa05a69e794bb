"""Which of the node's own files a container's volumes reach, by the container's mount table, and what becomes of it.

A volume of reassert's own files is made read-only where that suffices, or refused (hook.core.reserve.node_paths).
"""

from __future__ import annotations

import posix
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from hook.core.base.compare import is_within
from hook.core.base.errors import named
from hook.core.base.mountinfo import Row, mount_table, overlay_directories
from hook.core.base.system import is_shortage
from hook.core.container.spec import Spec
from hook.core.container.start import Start
from hook.core.linux.look import tree_of
from hook.core.linux.mountns import (
    PRIVATE,
    Namespace,
    mount_id,
    mount_without_links,
    open_in_root,
    set_attributes,
)
from hook.core.policy.model import Policy
from hook.core.reserve import node_paths
from hook.core.reserve.edits import SHOWN
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.plan import Plan

Known: TypeAlias = dict[tuple[tuple[str, ...], int], tuple[float, list[tuple[str, str, str]]]]
"""What the agent knows of the places of reassert's own paths, and since when."""

_KNOWN = 5.0
"""Seconds for which the agent knows the places of reassert's own paths. A container that started before root of the
node moved one of them reaches it too."""

_DIRECTORY = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC

_COVERS = ["ro", "nosuid", "nodev", "noexec"]
"""The options of what covers the log."""


def look_at_node_paths(
    pid: int,
    rootfs: str,
    decided: Plan,
    spec: Spec,
    *,
    before_mounting: Callable[[], None] = lambda: None,
    still_waits: Callable[[], None] = lambda: None,
    table: dict[int, Row] | None = None,
    known: Known | None = None,
) -> Plan:
    """What a container's volumes reach of the node's own files, and what becomes of it.

    It closes what it can and may (`_OpenVolumes`). In a user namespace it can close nothing: any container that joins
    it with CAP_SYS_ADMIN takes `ro` off, also of this one's mounts (setns(2) with a pidfd that it was handed), and may
    own the files, since kubelet's volumes are idmapped. Arguments as for `look`. Raises Undecided, OSError.
    """
    table = table or mount_table(pid, still_waits)
    with Namespace(pid, rootfs) as namespace:
        own, prefix = namespace.mount_of_container(table)
        places = places_of(decided, table, root=namespace.root, pid=pid, known=known)
        mounts = [(row.point[len(prefix) :], row) for row in table.values() if row.point.startswith(prefix + "/")]
        nodes = [row for row in table.values() if not row.point.startswith(prefix + "/")]
        mounts += [("/", own)] if own else []  # a directory of the node, for `podman run --rootfs`
        acts = decided.policy.closes and not decided.audit_only()
        volumes = _OpenVolumes(spec, mounts, namespace=namespace, before_mounting=before_mounting, acts=acts)
        rows = covered([row for _, row in mounts])
        mounted = mounted_by(decided, rows, nodes, lambda path: tree_of(path, namespace.root))
        return reached(mounts, places, decided, volumes=volumes, still_waits=still_waits, mounted=mounted)


class Volumes:
    """A container's mounts, and which of them its config.json asks to be read-only. It says what would be closed."""

    def __init__(
        self, start: Start, mounts: Iterable[tuple[str, Row]], resolve: Callable[[str], int] = lambda path: -1
    ) -> None:
        """`mounts`: each with its path in the container. `resolve`: the id of the mount at a path, -1 if unknown."""
        self.has_users = start.has_users
        self._rows = {row.id: row for _, row in mounts}
        self._paths = {path for path, _ in mounts}
        self._on = {(row.parent, path) for path, row in mounts}
        self._covered = covered(self._rows.values())
        self._asked = {mount.path: mount.is_read_only for mount in start.mounts}
        self._of_row: dict[int, tuple[str, bool]] = {}
        self._mounts = mounts
        self._resolve = resolve

    def of(self, row: Row) -> tuple[str, bool, bool]:
        """The mount of config.json that a mount is of: its path, whether it is read-only, and whether both are one."""
        if not self._of_row:
            seen = [(path, each) for path, each in self._mounts if each.id not in self._covered]  # others came with one
            self._of_row = {each.id: (path, self._asked[path]) for path, each in seen if path in self._asked}
            for path, is_read_only in self._asked.items():
                number = self._resolve(path) if path not in self._paths else -1
                if number >= 0:
                    self._of_row[number] = path, is_read_only
        above: Row | None = row
        while above is not None:
            if above.id in self._of_row:
                return *self._of_row[above.id], above is row
            above = self._rows.get(above.parent)
        return "", False, False

    def has_on(self, row: Row, path: str) -> bool:
        """Whether a mount has another one on it at a path. One that was there before it is below, and hides nothing."""
        return (row.id, path) in self._on

    def is_covered(self, row: Row) -> bool:
        """Whether another mount hides all of a mount: one over its root, or over that of a mount above it.

        What covers a root is on a directory that is in use: only CAP_SYS_ADMIN takes it off.
        """
        below, above = row, self._rows.get(row.parent)
        if row.id in self._covered:
            return True
        while above is not None:
            if above.id in self._covered and above.point != below.point:  # else `below` is what covers it
                return True
            below, above = above, self._rows.get(above.parent)
        return False

    def close(self, path: str, row: Row) -> bool:
        """Make a mount read-only; whether it is, or would be."""
        return True

    def cover(self, point: str, row: Row, name: str) -> bool:
        """Mount a directory in a volume's directory read-only over itself; whether it is, or would be."""
        return True


class _OpenVolumes(Volumes):
    """Those of a container that is being created.

    What is closed are options of its mounts, and mounts of its namespace: nothing of it is on the node. Only
    CAP_SYS_ADMIN takes it off. In its mount namespace a mount point can be neither renamed nor removed, and nothing can
    be renamed over it. A process that may make another one, in a user namespace of its own, can rename it there: so
    only the log is covered.
    """

    def __init__(
        self,
        spec: Spec,
        mounts: list[tuple[str, Row]],
        *,
        namespace: Namespace,
        before_mounting: Callable[[], None],
        acts: bool,
    ) -> None:
        """`acts`: whether mounts are closed."""
        super().__init__(spec, mounts, self._number)
        self._namespace = namespace
        self._before_mounting = before_mounting
        self._acts = acts

    def _number(self, path: str) -> int:
        fd = self._open(path)
        if fd < 0:
            return -1
        try:
            return mount_id(fd)
        finally:
            posix.close(fd)

    def _open(self, path: str, row: Row | None = None) -> int:
        """A descriptor of a path; -1 if it cannot be opened, or if another mount hides that of `row`."""
        try:
            fd = open_in_root(self._namespace.container, path)
        except OSError as error:
            if is_shortage(error):
                raise
            return -1
        if row is None or mount_id(fd) == row.id:
            return fd
        posix.close(fd)
        return -1

    def close(self, path: str, row: Row) -> bool:
        """See Volumes. crun makes mounts read-only after its hooks, so one that config.json has as `ro` may not be."""
        if not self._acts:
            return True
        fd = self._open(path, row)
        if fd < 0:
            return False
        try:
            self._before_mounting()
            self._namespace.set_attributes(fd, ["ro"], path)
            return bool(posix.fstatvfs(fd).f_flag & posix.ST_RDONLY)
        finally:
            posix.close(fd)

    def cover(self, point: str, row: Row, name: str) -> bool:
        """See Volumes. A missing directory is made: the container could make it."""
        if row.shared:  # what is mounted there would appear on the node (mountPropagation: Bidirectional)
            return False
        if not self._acts:
            return True
        above = self._open(point, row)
        if above < 0:
            return False
        fds, path = [above], f"{point.rstrip('/')}/{name}"
        try:
            self._before_mounting()
            try:
                posix.mkdir(name, 0o750, dir_fd=above)
            except FileExistsError:
                pass
            fds.append(posix.open(name, _DIRECTORY, dir_fd=above))
            if mount_id(fds[-1]) != row.id:
                return True  # a mount point already, whose mount is looked at too
            fds.append(self._namespace.clone_tree(fds[-1], path))
            set_attributes(
                fds[-1], _COVERS, recursive=True, path=path, clear=0, propagation=PRIVATE, namespace=self._namespace
            )
            self._namespace.move_mount(fds[-1], fds[-2], path)
            fds.append(posix.open(name, _DIRECTORY, dir_fd=above))
            is_closed = bool(posix.fstatvfs(fds[-1]).f_flag & posix.ST_RDONLY)
            return is_closed and mount_id(fds[-1]) == mount_id(fds[-2])
        except OSError as error:
            if is_shortage(error):
                raise
            return False
        finally:
            for fd in fds:
                posix.close(fd)


def mounted_by(
    decided: Plan, covering: set[int], nodes: Iterable[Row], tree: Callable[[str], tuple[int, str]]
) -> Callable[[str, Row], bool]:
    """Whether a mount at a path of a container is a reserved one, or came with its source: by what it shows.

    Other mounts can be at its path, below it where an adapter removes none. `covering`: ids of the container's mounts
    that another one at the same path covers. `nodes`: the node's mounts. `tree`: as `tree_of`.
    """
    shown: dict[str, set[tuple[str, str, str]]] = {}

    def shows(edit: PlaceMount) -> set[tuple[str, str, str]]:
        """What the node has at the edit's source and below: the path from there, device and root of each."""
        rows = {row.id: row for row in nodes}
        number, path = tree(edit.source())
        row = rows[number]
        mounts = {("", row.device, _joined(row.root, path.removeprefix(row.point.rstrip("/"))))}
        below = [row for row in rows.values() if row.point.startswith(f"{path}/")]
        return mounts | {(row.point[len(path) :], row.device, row.root) for row in below}

    def is_mounted(path: str, row: Row) -> bool:
        if row.id in covering:
            return False
        for edit in decided.mounts:
            if not edit.mount or not is_within(path, {edit.name}):
                continue
            if edit.name not in shown:
                try:
                    shown[edit.name] = shows(edit)
                except (OSError, KeyError):  # it is missing, or in a newer mount
                    shown[edit.name] = set()
            if (path[len(edit.name.rstrip("/")) :], row.device, row.root) in shown[edit.name]:
                return True
        return False

    return is_mounted


class MadeSince(OSError):
    """A path is in a mount that was made after the table of mounts was read."""


def _joined(root: str, path: str) -> str:
    return (root.rstrip("/") + path) or "/"


def covered(mounts: Iterable[Row]) -> set[int]:
    """The ids of those mounts that another one of them covers at the same path."""
    points = {row.id: row.point for row in mounts}
    return {row.parent for row in mounts if points.get(row.parent) == row.point}


def reached(
    mounts: Iterable[tuple[str, Row]],
    places: Sequence[tuple[str, str, str]],
    decided: Plan,
    *,
    volumes: Volumes,
    still_waits: Callable[[], None] = lambda: None,
    mounted: Callable[[str, Row], bool] = lambda point, row: True,
) -> Plan:
    """What a container's mounts, by their paths in it, reach, and what becomes of it: for each start and forecast.

    By the mount table alone, which has a mount's file system and the path in it, whatever link or subPath led there.
    What the policy mounts is not judged; what it lets through below is. `mounted`: whether a mount at a reserved path
    is the reserved one (`mounted_by`). Returns a plan of denials, of what is tried, reached and made read-only.
    """
    seen = Plan(decided.policy)
    reserved = {edit.name for edit in decided.mounts}
    below = {path for edit in decided.mounts for path in edit.companions} - reserved
    of_device: dict[str, list[tuple[str, str]]] = {}
    for path, device, root in places:
        of_device.setdefault(device, []).append((path, root))
    searched = {device: node_paths.searched([root for _, root in roots]) for device, roots in of_device.items()}
    for point, row in mounts:
        still_waits()
        if row.device not in of_device or not node_paths.may_reach(row.root, searched[row.device]):
            continue
        if is_within(point, reserved) and not is_within(point, below) and mounted(point, row):
            continue
        reached_places = [
            (path, root) for path, root in of_device.get(row.device, ()) if node_paths.reaches(row.root, root)
        ]
        if reached_places:
            _judge(point, row, places=reached_places, volumes=volumes, seen=seen)
        if len(seen.denials) > SHOWN:  # what is only tried ends nothing: the next mount may be refused
            break
    seen.node_paths = [*dict.fromkeys(seen.node_paths)]
    return seen


def _judge(point: str, row: Row, *, places: list[tuple[str, str]], volumes: Volumes, seen: Plan) -> None:
    """Close a mount that reaches reassert's own files, or judge it."""
    engines = [path for path, _ in places if path in node_paths.ENGINE_PATHS]
    own = [each for each in places if each[0] not in node_paths.ENGINE_PATHS]
    volume, is_read_only, is_itself = volumes.of(row)
    if own and (volumes.has_users or "ro" not in row.options):
        read_only = (
            [] if volumes.has_users else _made_read_only(point, row, own=own, policy=seen.policy, volumes=volumes)
        )
        if read_only is None or volumes.has_users:
            why = f"can be written at {named(point)} " if volume not in ("", point) else "can be written "
            cure = node_paths.CURE_OF_USERS if volumes.has_users else node_paths.CURE_BELOW if is_read_only else ""
            node_paths.judge(volume or point, [path for path, _ in own], seen, why=why, cure=cure or node_paths.CURE)
        elif not (is_itself and is_read_only):
            seen.read_only += read_only
    node_paths.judge(volume or point, engines, seen)


def _made_read_only(
    point: str, row: Row, *, own: list[tuple[str, str]], policy: Policy, volumes: Volumes
) -> list[str] | None:
    """The paths that are read-only now, or would be; None if writing is possible. `own`: paths, and their places."""
    volume, is_read_only, is_itself = volumes.of(row)
    reports = policy.node_paths[node_paths.OF_REASSERT] == node_paths.REPORT
    # a volume of /run/containerd has this container's own root file system below it, with the volumes made before it
    is_copy = not is_itself and "/rootfs/" in point[len(volume) :]
    if is_read_only and not is_itself and volumes.is_covered(row):
        return []
    if (is_read_only or is_copy) and (is_itself or not reports):
        return [point] if (reports or volumes.close(point, row)) else None
    roots = {root.rstrip("/") for _, root in own}
    if {path for path, _ in own} != {node_paths.LOG_DIRECTORY} or not all(
        node_paths.has_log(policy, row.root, r) for r in roots
    ):
        return None
    covers = {f"{point.rstrip('/')}/{name}": name for name in [root.rpartition("/")[2] for root in roots]}
    missing = {path: name for path, name in covers.items() if not volumes.has_on(row, path)}
    return list(missing) if all(volumes.cover(point, row, name) for name in missing.values()) else None


def places_of(
    decided: Plan, table: dict[int, Row], *, root: int = -1, pid: int = 0, known: Known | None = None
) -> list[tuple[str, str, str]]:
    """Each path of reassert and of the engines, the device of its file system, and its path from the root of that.

    Also the place of a link on the way to it, the mount points above it, since a process that can rename these detaches
    it, and the directories of an overlay that holds it. Also what is mounted below it, such as a pod's emptyDir in
    memory. A path of reassert that is not there may be made there; one of an engine that this node lacks is left out.

    `table`: the mounts of the process `pid`, 0: of this one. `root`: as for `tree_of`. `known`: what an earlier call
    has found by system calls. Raises OSError.
    """
    paths = (*decided.node_paths_of_reassert, *node_paths.ENGINE_PATHS)
    now, key = time.monotonic(), (paths, posix.fstat(root).st_ino if known is not None else 0)
    since, places = known.get(key, (0.0, [])) if known else (0.0, [])
    if not places or now - since > _KNOWN:
        places = [place for path in paths for place in _places(path, table, root, pid)]
        if known is not None:
            known.clear()
            known[key] = now, places
    below = []
    for row in table.values():
        point = f"{row.point}/"
        if point.startswith(paths):
            below += [(path, row.device, row.root) for path in paths if path[-1] == "/" and point.startswith(path)]
    return [*places, *below]


def _places(path: str, table: dict[int, Row], root: int, pid: int) -> list[tuple[str, str, str]]:
    """The places of one path, without those that are mounted below it."""
    directory, _, rest = path.rpartition("/")
    while True:
        try:
            return list(_walk_places(path, directory, rest, table=table, root=root, pid=pid))
        except (FileNotFoundError, NotADirectoryError):
            if path in node_paths.ENGINE_PATHS:
                return []
            directory, _, name = directory.rpartition("/")
            rest = f"{name}/{rest}"
        except PermissionError:  # rootless podman: a user who cannot reach it can mount nothing of it
            return []


def _walk_places(
    path: str,
    start: str,
    rest: str,
    *,
    table: dict[int, Row],
    root: int,
    pid: int,
    passed: frozenset[int] = frozenset(),
) -> Iterator[tuple[str, str, str]]:
    """The places of `places_of` for a path: the directory `start`, which exists, and what is to be in it.

    `passed`: ids of overlays that have led here.
    """
    number, real = mount_without_links(root, start), start
    if number < 0:
        number, real = tree_of(start or "/", root)
    if real != start and start:  # there is a link on the way
        above, _, name = start.rpartition("/")
        yield from _walk_places(path, above, name, table=table, root=root, pid=pid, passed=passed)
    name = f"/{rest}"
    while True:
        row = table.get(number)
        if row is None:
            raise MadeSince(f"{start} is in a mount that was made since")
        name = real.removeprefix(row.point.rstrip("/")) + name
        place = row.root.rstrip("/") + name
        if place:  # else a file system's root, below a mount at the same point, as of systemd's .automount units
            yield path, row.device, place
        if place and row.filesystem == "overlay" and number not in passed:
            passed |= {number}
            for directory, is_work in overlay_directories(pid, number):
                inside = "" if is_work else place[1:]
                # Linux shows the paths of who mounted it: in an initramfs, the node's root was at /sysroot.
                for other in {directory, directory.removeprefix("/sysroot")}:
                    try:
                        yield from _walk_places(
                            path, other.rstrip("/"), inside, table=table, root=root, pid=pid, passed=passed
                        )
                    except (FileNotFoundError, NotADirectoryError, PermissionError):
                        continue
        if row.point == "/" or row.parent not in table:
            return
        number, real, name = row.parent, row.point, ""
