"""Checks the mounts that a container sees at its reserved paths, and places missing ones.

It runs after the runtime has made all mounts and before the container's first process runs, on descriptors of the
container's mount namespace. Every path is walked as the container will walk it; the mount found at its end is known by
its id, its attributes and those of its subtree are the kernel's, and what cannot be made true is a reason to refuse.
"""

from __future__ import annotations

import posix
from collections.abc import Callable, Sequence

from hook.core.base.compare import is_below, is_within
from hook.core.base.errors import Unacceptable, named
from hook.core.base.mountinfo import Row, descendants, mount_table
from hook.core.base.system import is_shortage
from hook.core.container.spec import Spec
from hook.core.linux.mountns import (
    Namespace,
    clone_source,
    mount_id,
    open_in_root,
    open_without_links,
    same_file,
)
from hook.core.linux.place import placed
from hook.core.linux.walk import MountMismatch, Node, PathEscapes, Place, Steps, Walks, made_at
from hook.core.reserve import shared_processes
from hook.core.reserve.edits import Reason
from hook.core.reserve.mounts import KIND, volume_above
from hook.core.reserve.place_mount import PlaceMount

_LASTING = ("ro", "nosuid", "nodev", "noexec", "nosymfollow")
"""The options that restrict a container and that mountinfo shows. Options about access times are not compared."""

_NOBODYS = ("proc", "sysfs")
"""File systems in which nothing is reserved, wherever they are mounted: their links lead to processes and the node."""

_THE_KERNELS = ("proc", "sysfs", "devpts", "cgroup", "cgroup2", "securityfs", "mqueue")
"""File systems that may be mounted often, and in which no container makes a link."""

_DEVICE, _DEVICES, _REMOUNTED = "device", "a device's directory", "the mount"

_TO_THE_ROOT = "leads to the container's root"

_ASTRAY = "does not lead to the reserved mount (a symbolic link?)"


def look(
    pid: int,
    rootfs: str,
    reserved: Sequence[PlaceMount],
    spec: Spec,
    *,
    before_mounting: Callable[[], None] = lambda: None,
    still_waits: Callable[[], None] = lambda: None,
    table: dict[int, Row] | None = None,
) -> tuple[list[PlaceMount], list[Reason]]:
    """Look at the reserved mounts of a container, and place those that are missing.

    `pid`: of a process in the container's mount namespace, 0 where this process is in it. `rootfs`: the container's
    root as that namespace has it. `reserved`: shallow before deep, as `Plan.mounts`. `before_mounting`: called before
    anything is placed, and may raise. `still_waits`: called now and then, and may raise. `table`: the mounts of the
    namespace, if the caller has just read them. Returns what was placed, and why the container must not start. Raises
    Undecided, Unacceptable, OSError.
    """
    sources = {edit.name: status_of(edit) for edit in reserved if edit.mount}
    if pid:
        sources["/"] = posix.stat(rootfs)
    problems = _looked(pid, rootfs, reserved, spec, sources=sources, still_waits=still_waits, table=table)
    missing = [edit for edit, problem in problems if problem.can_place]
    denials = [Reason(edit.rule, KIND, str(problem)) for edit, problem in problems if not problem.can_place]
    if denials or not missing:
        return [], denials
    before_mounting()

    trees: list[tuple[PlaceMount, int]] = []
    try:
        for edit in missing:
            trees.append((edit, _cloned(edit)))
            sources[edit.name] = posix.fstat(trees[-1][1])
        denials = placed(pid, rootfs, trees, spec)
    finally:
        for _, tree in trees:
            posix.close(tree)
    if not denials:
        problems = _looked(pid, rootfs, reserved, spec, sources=sources, still_waits=still_waits)
        denials = [Reason(edit.rule, KIND, _still(edit, problem)) for edit, problem in problems]
    return missing, denials


def look_at_processes(pid: int, rootfs: str, rule: str) -> list[Reason]:
    """Why the container must not start: mounts of a procfs that the node has mounted too, which shows its processes.

    By the mount table alone: nothing of a pod's volume is asked. Arguments as for `look`; `rule`: the name of the rule
    with `sharedProcesses: Refuse`. Raises Undecided, OSError.
    """
    table = mount_table(pid)
    with Namespace(pid, rootfs) as namespace:
        _, prefix = namespace.mount_of_container(table)
    of_processes = [row for row in table.values() if row.filesystem == "proc"]
    nodes = {row.device for row in of_processes if not row.point.startswith(prefix + "/")}
    inside = [row for row in of_processes if row.point.startswith(prefix + "/") and row.device in nodes]
    shown = [row.point.removeprefix(prefix) for row in inside if shared_processes.leads_to_others(row.root)]
    return [
        Reason(rule, shared_processes.KIND, shared_processes.refusal(shared_processes.in_volume(path)))
        for path in shown[:1]
    ]


def _looked(
    pid: int,
    rootfs: str,
    reserved: Sequence[PlaceMount],
    spec: Spec,
    *,
    sources: dict[str, posix.stat_result],
    still_waits: Callable[[], None],
    table: dict[int, Row] | None = None,
) -> list[tuple[PlaceMount, MountMismatch]]:
    with Namespace(pid, rootfs) as namespace:
        table = table or mount_table(pid, still_waits)
        return View(
            namespace, namespace.container, table=table, spec=spec, sources=sources, still_waits=still_waits
        ).problems(reserved)


def _still(edit: PlaceMount, problem: MountMismatch) -> str:
    return f"{named(edit.name)} in the image {_ASTRAY}" if problem.can_place else str(problem)


class View:
    """A container's root and mounts, before pivot_root."""

    def __init__(
        self,
        namespace: Namespace | None,
        root: int,
        *,
        table: dict[int, Row],
        spec: Spec,
        sources: dict[str, posix.stat_result],
        still_waits: Callable[[], None] = lambda: None,
    ) -> None:
        self.namespace = namespace
        self.root = root
        """An O_PATH descriptor of the container's root, in its mount namespace."""
        self.table = table
        """The mounts of the namespace. It is a copy of the node's, so the node's own mounts are in the table too:
        everywhere but at the container's root or below."""
        self.spec = spec
        self.sources = sources
        """What the node has where a reserved mount comes from, and, if that is known, as its root ("/")."""
        self.walks = Walks(root, Steps(still_waits))
        self.own = self.walks.root.number
        self.prefix = self.row(self.own).point.rstrip("/")
        """The path of the container's root in `table`."""
        self.nodes_table = table
        """The node's mounts. A view of a running container has another table for them."""
        self.own_tree = self.prefix
        """The path of the container's root in `nodes_table`."""
        self.inside = [row for row in table.values() if row.point.startswith(self.prefix + "/")]
        self.ours: dict[int, PlaceMount] = {}
        self.places: dict[str, Place] = {}
        self._nodes: tuple[set[str], set[tuple[str, str]]] | None = None
        self._points: dict[tuple[str, str, str], bool] = {}

    def row(self, number: int) -> Row:
        """The mount with an id. Raises PathEscapes."""
        row = self.table.get(number)
        if row is None:
            raise PathEscapes("leads through a mount that was made since")
        return row

    def path_of(self, row: Row) -> str:
        """The place of a mount, as the container will see it."""
        return row.point.removeprefix(self.prefix)

    def problems(self, reserved: Sequence[PlaceMount]) -> list[tuple[PlaceMount, MountMismatch]]:
        """Returns the problem of each reserved mount that has one. Raises Unacceptable, OSError."""
        try:
            return self._problems(reserved)
        finally:
            self.walks.close()

    def _problems(self, reserved: Sequence[PlaceMount]) -> list[tuple[PlaceMount, MountMismatch]]:
        if not self._is_the_images():
            return self._over_the_root(reserved)
        problems: list[tuple[PlaceMount, MountMismatch]] = []
        for edit in reserved:
            try:
                self._hold(edit, reserved)
            except MountMismatch as problem:
                problems.append((edit, problem))
            except (PathEscapes, OSError) as error:
                problems.append((edit, MountMismatch(f"{named(edit.name)} in the image {_cannot(error)}")))
        return problems or self.late(reserved)

    def _over_the_root(self, reserved: Sequence[PlaceMount]) -> list[tuple[PlaceMount, MountMismatch]]:
        """The problem of those reserved mounts that a link led over the container's root; else another mount did."""
        status = posix.fstat(self.root)
        ours = [edit for edit in reserved if edit.name in self.sources and same_file(status, self.sources[edit.name])]
        if ours:
            return [(edit, MountMismatch(f"{named(edit.name)} in the image {_TO_THE_ROOT}")) for edit in ours]
        why = "another mount lies over the container's root"
        return [(edit, MountMismatch(f"{named(edit.name)}: {why}")) for edit in reserved]

    def _is_the_images(self) -> bool:
        """Whether the root is what the engine made for the container; a link to "/" can lead a volume over it."""
        if "/" in self.sources:
            return same_file(posix.fstat(self.root), self.sources["/"])
        stacked = {(row.device, row.root) for row in self.table.values() if row.point.rstrip("/") == self.prefix}
        return len(stacked) == 1

    def _hold(self, edit: PlaceMount, reserved: Sequence[PlaceMount]) -> None:
        """Raises MountMismatch, PathEscapes, OSError where the container would see something else."""
        place = self.walks.to(edit.name)
        self._check_way(edit, place)
        self.places[edit.name] = place
        if edit.mount is None:
            self._check_nothing_mounted(edit, place.path, self._companions(edit, place.path, reserved))
        else:
            self._check_mount(edit, place, reserved)

    def _check_mount(self, edit: PlaceMount, place: Place, reserved: Sequence[PlaceMount]) -> None:
        """Checks that a reserved mount is at its place, as it has to be."""
        path = place.path
        if not place.exists:
            raise MountMismatch(f"{named(edit.name)} is missing in the container", can_place=True)
        fd = self.walks.fd(place.node)
        row = self.row(place.node.number)
        same = same_file(posix.fstat(fd), self.sources[edit.name])
        same = same and (not edit.is_in_pods_directory() or self._is_of(edit, row))
        if row.point != self.prefix + path or not same or self._is_idmapped_by_a_user(edit, row):
            problem = f"{named(edit.name)} in the container is not {named(edit.source())} of the node"
            if edit.is_in_pods_directory() and self._was_asked_for(edit):
                raise MountMismatch(f"{problem}: a link was there when the runtime mounted it")
            is_only_mount = row.point == self.prefix + path and self.row(row.parent).point != row.point
            raise MountMismatch(problem, True, row if is_only_mount else None)
        under = self.row(row.parent)
        while under.point == row.point and (under.device, under.root) == (row.device, row.root):
            under = self.row(under.parent)  # an earlier copy, over which `look` placed this one
        if under.id != self.own and under.id not in self.ours and not edit.volumes_above:
            # The directory of a subPath can be removed.
            raise MountMismatch(volume_above(self.path_of(under), edit.name))
        self.ours[row.id] = edit
        self._check_subtree(edit, row, self._companions(edit, path, reserved))

    def _is_of(self, edit: PlaceMount, row: Row) -> bool:
        """Whether a mount's root is an edit's source, by the path in its file system."""
        number, source = self.tree(edit)
        holds = self.nodes_table.get(number)
        if holds is None:
            raise PathEscapes("leads through a mount that was made since")
        root = holds.root.rstrip("/") + source.removeprefix(holds.point.rstrip("/"))
        return (row.device, row.root) == (holds.device, root)

    def _was_asked_for(self, edit: PlaceMount) -> bool:
        """Whether the runtime was told to mount an edit's source: what it mounted must not lie below another mount."""
        return any(mount.source == edit.source() and mount.path == edit.name for mount in self.spec.mounts)

    def _is_idmapped_by_a_user(self, edit: PlaceMount, row: Row, below: str = "") -> bool:
        """Whether an edit's mount, or one `below` it, is idmapped as the container's author chose.

        Root may then write there after a remount. hook.core.linux.idmap and the node idmap them too; in a running
        container nothing tells the former's from others.
        """
        if "idmapped" not in row.options or not self.namespace or self.was_replaced(edit):
            return False
        number, source = self.tree(edit)
        if below:
            return not self._nodes_points().get((source + below, row.device, row.root))
        return "idmapped" not in self.row(number).options

    def was_replaced(self, edit: PlaceMount) -> bool:
        """Whether hook.core.linux.idmap has replaced an edit's mount: the old one then covers the source."""
        _, source = self.tree(edit)  # there, though that of a directory above may cover this one in turn
        rows = [row for row in self.table.values() if row.point == source]
        return any(_shows_what_it_covers(row, self.table) for row in rows)

    def _check_way(self, edit: PlaceMount, place: Place) -> None:
        """Checks that no other mount than the root and the policy's is above: users of a volume can change it."""
        for node in place.crossed:
            row = self.row(node.number)
            if row.filesystem in _NOBODYS:
                raise PathEscapes(f"leads through {named(str(node))}, a {row.filesystem} file system")
            if edit.mount and node.number != self.own and node.number not in self.ours and not edit.volumes_above:
                raise MountMismatch(volume_above(self.path_of(row), edit.name))
        if edit.mount and place.node is self.walks.root:
            raise PathEscapes(_TO_THE_ROOT)

    def _check_nothing_mounted(self, edit: PlaceMount, path: str, companions: set[str]) -> None:
        for row in self.inside:
            point = self.path_of(row)
            if (point == path or is_below(point, path)) and not is_within(point, companions):
                raise MountMismatch(
                    f"{named(point)} is mounted, and nothing may be mounted at {named(edit.name)} or below"
                )

    def _check_subtree(self, edit: PlaceMount, mount: Row, companions: set[str]) -> None:
        """Every mount below came with the source or is let through, and has the options that are wanted."""
        wanted = [option for option in _LASTING if option in edit.options()]
        lacks = [option for option in wanted if option not in mount.options]
        if lacks not in ([], ["ro"]):  # a user's own mount; crun before 1.28 takes others off again, when it sets `ro`
            message = f"{named(edit.name)} in the container lacks the options {', '.join(lacks)}"
            raise MountMismatch(message, can_place=True)
        tree = [mount] if lacks else []
        below = descendants(mount.id, mount.point, self.inside)
        self._check_complete(edit, mount, below, companions)
        for row in below:
            point = self.path_of(row)
            if is_within(point, companions):
                continue
            path = row.point[len(mount.point) :]
            if not self.came_with(edit, path, row) or self._is_idmapped_by_a_user(edit, row, path):
                raise MountMismatch(
                    f"{named(point)} is mounted below the reserved mount {named(edit.name)}", can_place=not companions
                )
            if not all(option in row.options for option in wanted):
                tree.append(row)
        for row in tree:
            self.set_options(row, wanted)

    def _check_complete(self, edit: PlaceMount, mount: Row, below: list[Row], companions: set[str]) -> None:
        """Checks that mounts of the node below the source are there: crun 1.8.1 omits them in a user namespace."""
        if "rbind" not in edit.options():
            return
        number, source = self.tree(edit)
        mounted = {(row.point, row.device, row.root) for row in below}
        left_out: set[int] = set()  # rbind skips what is unbindable; the container's own tree came later
        for row in descendants(number, source, self.nodes_table.values()):
            if row.parent in left_out or row.unbindable or f"{row.point}/".startswith(f"{self.own_tree}/"):
                left_out.add(row.id)
                continue
            if _shows_what_it_covers(row, self.nodes_table):
                continue
            point = mount.point + row.point[len(source) :]
            path = point.removeprefix(self.prefix)
            if not is_within(path, companions) and (point, row.device, row.root) not in mounted:
                raise MountMismatch(
                    f"{named(row.point)} of the node is missing in the reserved mount {named(edit.name)}",
                    can_place=True,
                )

    def tree(self, edit: PlaceMount) -> tuple[int, str]:
        """The mount of the node that holds an edit's source, and the source's path without symbolic links.

        With the ids of the container's namespace, which is a copy of the node's and has other ids.
        """
        fd = open_source(edit, self.namespace.root if self.namespace else -1)
        try:
            return tree_at(fd)
        finally:
            posix.close(fd)

    def came_with(self, edit: PlaceMount, path: str, row: Row) -> bool:
        """Whether the node has the mount of a row at this path below the edit's source: rbind took it along."""
        return (self.tree(edit)[1] + path, row.device, row.root) in self._nodes_points()

    def _nodes_points(self) -> dict[tuple[str, str, str], bool]:
        """Whether each of the node's mounts is idmapped, by its place, device and root."""
        for own in self.nodes_table.values() if not self._points else ():
            key = own.point, own.device, own.root
            self._points[key] = self._points.get(key, False) or "idmapped" in own.options
        return self._points

    def set_options(self, row: Row, wanted: list[str]) -> None:
        """`ro` of a bind mount is not recursive in any runtime; the kernel makes it so for each mount."""
        path = self.path_of(row)
        fd = open_in_root(self.root, path)
        try:
            if self.namespace and mount_id(fd) == row.id:  # otherwise another mount hides it
                self.namespace.set_attributes(fd, wanted, path)
        finally:
            posix.close(fd)

    def _companions(self, edit: PlaceMount, path: str, reserved: Sequence[PlaceMount]) -> set[str]:
        """Returns the places of mounts that are allowed below an edit's mount, which is at `path`.

        The other reserved mounts, and what `allowBelow` lets through. A mount that `allowBelow` lets through must be
        exactly at its path: a link in one volume could lead another over the reserved mount.
        """
        companions = {path + other[len(edit.name) :] for other in edit.companions if is_below(other, edit.name)}
        for other in reserved:
            if other.mount and is_below(other.name, edit.name):
                try:
                    place = self.walks.to(other.name)
                except (PathEscapes, OSError) as error:
                    if is_shortage(error):
                        raise
                    continue
                if all(node.number == self.own or node.number in self.ours for node in place.crossed):
                    companions.add(place.path)
        return companions

    def late(self, reserved: Sequence[PlaceMount]) -> list[tuple[PlaceMount, MountMismatch]]:
        """Paths that the runtime still changes must not lead to a reserved mount, nor above one.

        Devices, and directories in which it made some, must not have led into one. If another mount was made through a
        link in a volume, only the container's own mounts show that (hook.core.linux.early saw the image and
        config.json).
        """
        problems: list[tuple[PlaceMount, MountMismatch]] = []
        places = [(edit, self.places[edit.name]) for edit in reserved if edit.mount]
        above = {
            edit.name: frozenset(node.number for node in place.crossed) for edit, place in places if edit.volumes_above
        }
        known: dict[tuple[Node, bool], tuple[str, frozenset[str]]] = {}
        writable = any(edit.can_be_written() for edit, _ in places)  # a runtime makes no device in a read-only mount
        for description, path in [*_made_late(self.spec), *_with_devices(self.spec, writable)]:
            start: Node | None = None
            allowed: frozenset[str] = frozenset()
            try:
                place = self.walks.to(path, everywhere=True)
                start, last = place.node, next(reversed(place.crossed), self.walks.root)
                key = start if place.links else last, description in (_DEVICE, _DEVICES)
                if key not in known or place.links:
                    changeable, volumes = self._changeable(place, key[1])
                    known[key] = changeable, frozenset(name for name in above if volumes and volumes <= above[name])
                changeable, allowed = known[key]
            except (PathEscapes, OSError) as error:
                changeable = _cannot(error)
            upwards = start.upwards() if start else []
            for edit, own in places:
                if description == _DEVICE and not edit.can_be_written():
                    continue
                if start and (
                    own.node in upwards or (start in own.crossed and description not in (_DEVICE, _DEVICES, _REMOUNTED))
                ):
                    problem = f"leads to the reserved mount {named(edit.name)}"
                elif changeable and edit.name not in allowed:
                    problem = changeable
                else:
                    continue
                problems.append((edit, MountMismatch(f"{description} {named(path)} of the container {problem}")))
        return problems

    def _of_the_node(self) -> tuple[set[str], set[tuple[str, str]]]:
        """Devices of the node's own file systems; and device and root of its /dev, which is a tmpfs on some nodes."""
        if self._nodes is None:
            rows = [row for row in self.nodes_table.values() if not row.point.startswith(self.own_tree)]
            dev = {(row.device, row.root) for row in rows if row.point == "/dev"}
            self._nodes = {row.device for row in rows}, dev
        return self._nodes

    def _changeable(self, place: Place, is_device: bool) -> tuple[str, set[int]]:
        """Why a path could still lead elsewhere when the runtime goes there, or "", and the volumes that let it.

        A link of procfs leads each process elsewhere, and a file system that the node has mounted too is a volume.
        """
        if any(self.row(link.number).filesystem == "proc" for link in place.links):
            return "leads through a process's link in a proc file system", set()
        rows = {node.number: self.row(node.number) for node in place.crossed if node.number != self.own}
        volumes = [row for row in rows.values() if row.filesystem not in _THE_KERNELS]
        if volumes:
            nodes, dev = self._of_the_node()
            volumes = [row for row in volumes if row.device in nodes and not self._is_dev(row, dev, is_device)]
        if not volumes:
            return "", set()
        path = named(self.path_of(volumes[0]))
        return f"is in the volume {path}, in which others can lead it to a reserved mount", {row.id for row in volumes}

    def _is_dev(self, row: Row, dev: set[tuple[str, str]], is_device: bool) -> bool:
        """Whether a volume is the node's /dev at the container's /dev, or a part of it in which a device was made.

        Containers have these: privileged ones, and those with a hostPath such as /dev/dri.
        """
        path = self.path_of(row)
        if path == "/dev" and (row.device, row.root) in dev:
            return True
        return is_device and row.filesystem == "devtmpfs" and f"{path}/".startswith("/dev/")


def tree_of(source: str, root: int = -1) -> tuple[int, str]:
    """The id of the mount that holds a path of the node, and the path without symbolic links; "" for `/`.

    `root`: of the mount namespace; -1: this process's. Raises OSError.
    """
    fd = _opened(source, root)
    try:
        return tree_at(fd)
    finally:
        posix.close(fd)


def tree_at(fd: int) -> tuple[int, str]:
    """The same for what a descriptor is of. Raises Undecided, OSError."""
    return mount_id(fd), posix.readlink(f"/proc/self/fd/{fd}").rstrip("/")


def _opened(path: str, root: int) -> int:
    return posix.open(path, posix.O_PATH | posix.O_CLOEXEC) if root < 0 else open_in_root(root, path)


def open_source(edit: PlaceMount, root: int = -1) -> int:
    """An O_PATH descriptor of a reserved mount's source on the node.

    No link below kubelet's directory of pods is followed: a container with a volume of that directory can exchange a
    pod's emptyDir and a link at any time, also between a look at it and the runtime's mount. `root`: of the mount
    namespace; -1: this process's. Raises OSError; Unacceptable for such a link, whatever `failurePolicy` says.
    """
    if not edit.is_in_pods_directory():
        return _opened(edit.source(), root)
    pods = str(edit.volume[0])
    directory = _opened(pods, root)
    try:
        return open_without_links(directory, edit.source()[len(pods) :].lstrip("/"))
    except OSError as error:
        if is_shortage(error):
            raise
        raise Unacceptable(f"{edit.source()} is no directory of the pod any more: {error.strerror}") from None
    finally:
        posix.close(directory)


def status_of(edit: PlaceMount) -> posix.stat_result:
    """The status of a reserved mount's source on the node, by `open_source`. Raises OSError."""
    fd = open_source(edit)
    try:
        return posix.fstat(fd)
    finally:
        posix.close(fd)


def _cloned(edit: PlaceMount) -> int:
    """A detached mount of a reserved mount's source. Raises OSError, Undecided."""
    if not edit.is_in_pods_directory():
        return clone_source(edit.source(), edit.options())
    fd = open_source(edit)
    try:
        return clone_source(edit.source(), edit.options(), fd)
    finally:
        posix.close(fd)


def _shows_what_it_covers(row: Row, table: dict[int, Row]) -> bool:
    """Whether a mount has the files that are below it at the same path, as hook.core.linux.idmap leaves one behind."""
    under = table.get(row.parent)
    if under is None or row.device != under.device:
        return False
    return row.root.rstrip("/") == under.root.rstrip("/") + row.point.removeprefix(under.point.rstrip("/"))


def _cannot(error: Exception) -> str:
    """Why a path cannot be reached. Raises `error` if it is a shortage, which says nothing about the path."""
    if is_shortage(error):
        raise error
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return reason if reason and reason.startswith("leads") else f"cannot be reached: {reason}"


def _made_late(spec: Spec) -> list[tuple[str, str]]:
    """Paths that a runtime changes after its createRuntime hooks, as strace shows.

    runc 1.1.5, 1.1.15, 1.3.6 and crun 1.8.1, 1.21, 1.28 all make the mounts, then every device (of `linux.devices` too,
    wherever it is), then the links in /dev, and then run prestart and createRuntime hooks. After those:
      crun: masked paths, read-only paths, `ro` of the mounts it made (on descriptors); createContainer hooks;
            pivot_root; the console.
      runc: createContainer hooks; pivot_root; the console; `ro` of each tmpfs and of /dev, by its path, with the
            options that config.json has for it alone; `ro` of the root; read-only paths; masked paths.
    """
    made = [("the console", "/dev/console")] if spec.terminal is True else []
    for mount in spec.mounts:
        if "ro" in mount.options and (mount.type == "tmpfs" or mount.path == "/dev"):
            made += [(_REMOUNTED, path) for path in dict.fromkeys((mount.destination, mount.path))]
    return made + mounted_late(spec)


def mounted_late(spec: Spec) -> list[tuple[str, str]]:
    """Those of `_made_late` at which the runtime mounts something."""
    made = []
    for member, description in (("maskedPaths", "masked path"), ("readonlyPaths", "read-only path")):
        listed = spec.linux.get(member)
        made += [(description, path) for path in listed or [] if isinstance(path, str)]
    return made


def _with_devices(spec: Spec, themselves: bool) -> list[tuple[str, str]]:
    """The directories in which the runtime made devices, and the devices `themselves`."""
    paths = made_at(spec)
    above = {path.rpartition("/")[0] or "/" for path in paths}
    return [(_DEVICES, path) for path in sorted(above)] + [(_DEVICE, path) for path in paths if themselves]
