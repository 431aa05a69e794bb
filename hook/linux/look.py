"""What a container will really see at its reserved mount paths, and putting back what is missing there.

It runs after the runtime has made all mounts and before the container's first process runs, in the container's mount
namespace. Every path is walked as the container will walk it; the mount found at its end is known by its id, its
attributes and those of its subtree are the kernel's, and what cannot be made true is a reason to refuse.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence

from hook.container.paths import clean, is_below, parents
from hook.container.spec import Spec
from hook.linux.mountns import (
    clone_source,
    clone_tree,
    mount_id,
    mount_namespace_of,
    move_mount,
    open_in_root,
    set_attributes,
)
from hook.linux.walk import Misled, Place, Row, mount_table, walk
from hook.reserve.mounts import KIND, PlaceMount, volume_above
from hook.reserve.outcome import Reason

_LASTING = ("ro", "nosuid", "nodev", "noexec", "nosymfollow")
"""Options that hide something from somebody; mountinfo shows them. The times of last access do not matter."""

_NOBODYS = ("proc", "sysfs")
"""File systems in which nothing is reserved, wherever they are mounted: their links lead to processes and the node."""


_ASTRAY = "does not lead to the reserved mount (a symbolic link?)"


class NotSo(Exception):
    """A reserved mount is not what the policy wants. `can_place`: mounting it on top would mend that."""

    def __init__(self, message: str, can_place: bool = False) -> None:
        super().__init__(message)
        self.can_place = can_place


def look(
    pid: int,
    rootfs: str,
    reserved: Sequence[PlaceMount],
    spec: Spec,
    before_mounting: Callable[[], None] = lambda: None,
) -> tuple[list[PlaceMount], list[Reason]]:
    """Look at the reserved mounts of a container, and place those that are missing.

    `pid`: of a process in the container's mount namespace, 0 where this process is in it. `rootfs`: the container's
    root as that namespace has it. `reserved`: shallow before deep, as `Plan.mounts`. `before_mounting`: called before
    anything is placed, and may raise. Returns what was placed, and why the container must not start. Raises
    Undecided, OSError.
    """
    sources = _Sources([edit for edit in reserved if edit.mount])
    found = _looked(pid, rootfs, reserved, spec, sources)
    missing = [edit for edit, problem in found if problem.can_place]
    denials = [Reason(edit.rule, KIND, str(problem)) for edit, problem in found if not problem.can_place]
    if denials or not missing:
        return [], denials
    before_mounting()
    trees = [(edit, clone_source(edit.source(), edit.options())) for edit in missing]
    try:
        denials = _placed(pid, rootfs, trees, spec)
    finally:
        for _, tree in trees:
            os.close(tree)
    if not denials:
        found = _looked(pid, rootfs, reserved, spec, sources)
        denials = [Reason(edit.rule, KIND, f"{edit.name} in the image {_ASTRAY}") for edit, _ in found]
    return missing, denials


class _Sources:
    """The node's files and directories that are mounted, as they are outside of the container's namespace."""

    def __init__(self, edits: list[PlaceMount]) -> None:
        self.status = {edit.name: os.stat(edit.source()) for edit in edits}
        self.real = {edit.name: os.path.realpath(edit.source()) for edit in edits}
        self.table = mount_table(0)

    def has_below(self, edit: PlaceMount, path: str, row: Row) -> bool:
        """Whether the node has the mount of a row at this path below the edit's source: it came along with rbind."""
        point = self.real[edit.name].rstrip("/") + path
        return any(r.point == point and r.device == row.device and r.root == row.root for r in self.table.values())


def _looked(
    pid: int, rootfs: str, reserved: Sequence[PlaceMount], spec: Spec, sources: _Sources
) -> list[tuple[PlaceMount, NotSo]]:
    with mount_namespace_of(pid):
        root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _View(root, mount_table(pid), spec, sources).problems(reserved)
        finally:
            os.close(root)


class _View:
    """A container's root and mounts. `root`: an O_PATH descriptor in its namespace."""

    def __init__(self, root: int, table: dict[int, Row], spec: Spec, sources: _Sources) -> None:
        self.root = root
        self.table = table
        self.spec = spec
        self.sources = sources
        self.prefix = table[mount_id(root)].point.rstrip("/")
        self.ours: dict[int, PlaceMount] = {}
        self.places: dict[str, str] = {}

    def problems(self, reserved: Sequence[PlaceMount]) -> list[tuple[PlaceMount, NotSo]]:
        """What is wrong with each reserved mount, of those with which something is."""
        found: list[tuple[PlaceMount, NotSo]] = []
        for edit in reserved:
            try:
                self._hold(edit)
            except NotSo as problem:
                found.append((edit, problem))
            except (Misled, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                found.append((edit, NotSo(f"{edit.name} in the image {_cannot(reason)}")))
        return found or self._late(reserved)

    def _hold(self, edit: PlaceMount) -> None:
        """Raises NotSo, Misled, OSError where the container would see something else."""
        place = walk(self.root, edit.name)
        try:
            self._check_way(edit, place)
            self.places[edit.name] = place.path
            if edit.mount is None:
                self._check_nothing_mounted(edit, place.path)
                return
            if place.fd < 0:
                raise NotSo(f"{edit.name} is missing in the container", can_place=True)
            number = mount_id(place.fd)
            row = self.table[number]
            if row.point != self.prefix + place.path or not os.path.samestat(
                os.fstat(place.fd), self.sources.status[edit.name]
            ):
                raise NotSo(f"{edit.name} in the container is not {edit.source()} of the node", can_place=True)
            self._check_subtree(edit, place, row)
            self.ours[number] = edit
        finally:
            place.close()

    def _check_way(self, edit: PlaceMount, place: Place) -> None:
        """What lies above must be the container's own root or the policy's: whoever shares a volume can change it."""
        own = mount_id(self.root)
        for number, path in place.crossed:
            row = self.table[number]
            if row.filesystem in _NOBODYS:
                raise Misled(f"leads through {path}, a {row.filesystem} file system")
            if edit.mount and number != own and number not in self.ours and not edit.volumes_above:
                raise NotSo(volume_above(row.point.removeprefix(self.prefix), edit.name))

    def _check_nothing_mounted(self, edit: PlaceMount, path: str) -> None:
        companions = self._companions(edit)
        for row in self.table.values():
            at = row.point.removeprefix(self.prefix)
            inside = row.point.startswith(self.prefix + "/") and (at == path or is_below(at, path))
            if inside and not any(at == ok or is_below(at, ok) for ok in companions):
                raise NotSo(f"{at} is mounted, and nothing may be mounted at {edit.name} or below")

    def _check_subtree(self, edit: PlaceMount, place: Place, mount: Row) -> None:
        """Every mount below came with the source or is let through, and has the options that are wanted."""
        wanted = [option for option in _LASTING if option in edit.options()]
        companions = self._companions(edit)
        tree = [mount] if not all(option in mount.options for option in wanted) else []
        for row in self._below(mount):
            at = row.point.removeprefix(self.prefix)
            if any(at == ok or is_below(at, ok) for ok in companions):
                continue
            if not self.sources.has_below(edit, row.point[len(mount.point) :], row):
                raise NotSo(f"{at} is mounted below the reserved mount {edit.name}", can_place=not companions)
            if not all(option in row.options for option in wanted):
                tree.append(row)
        for row in tree:
            self._set_options(row, wanted)

    def _set_options(self, row: Row, wanted: list[str]) -> None:
        """`ro` of a bind mount is not recursive in any runtime; the kernel makes it so for each mount."""
        at = row.point.removeprefix(self.prefix)
        fd = open_in_root(self.root, at)
        try:
            if mount_id(fd) == row.id:  # else another one hides it
                set_attributes(fd, wanted, False, at)
        finally:
            os.close(fd)

    def _below(self, mount: Row) -> list[Row]:
        """All descendants of a mount."""
        inside = {mount.id}
        rows = [row for row in self.table.values() if row.point.startswith(mount.point.rstrip("/") + "/")]
        found: list[Row] = []
        while True:
            more = [row for row in rows if row.parent in inside and row.id not in inside]
            if not more:
                return found
            found += more
            inside.update(row.id for row in more)

    def _companions(self, edit: PlaceMount) -> list[str]:
        """Where mounts may lie below an edit's: other reserved ones, and what `allowBelow` lets through."""
        found = []
        for path in edit.companions:
            if is_below(path, edit.name):
                try:
                    place = walk(self.root, path)
                except (Misled, OSError):
                    continue
                place.close()
                found.append(place.path)
        return found

    def _late(self, reserved: Sequence[PlaceMount]) -> list[tuple[PlaceMount, NotSo]]:
        """Paths that the runtime makes something of after the mounts must not lead to a reserved one."""
        found: list[tuple[PlaceMount, NotSo]] = []
        for what, path in _made_late(self.spec):
            try:
                place = walk(self.root, path, through_dev=True)
            except (Misled, OSError):
                continue
            place.close()
            for edit in reserved:
                own = self.places[edit.name]
                if edit.mount and (place.path == own or is_below(place.path, own) or place.path in parents(own)):
                    found.append(
                        (edit, NotSo(f"{what} {path} of the container leads to the reserved mount {edit.name}"))
                    )
        return found


def _cannot(reason: str | None) -> str:
    return reason if reason and reason.startswith("leads") else f"cannot be reached: {reason}"


def _made_late(spec: Spec) -> list[tuple[str, str]]:
    """What runtimes make after the mounts: devices, the console, masked and read-only paths (runc, crun: see docs)."""
    found = [("the directory", "/dev")]
    process, linux = spec.process(), spec.member("linux")
    if process.get("terminal") is True:
        found.append(("the console", "/dev/console"))
    found += [("device", str(device.get("path", ""))) for device in spec.devices]
    for member, what in (("maskedPaths", "masked path"), ("readonlyPaths", "read-only path")):
        listed = linux.get(member) if isinstance(linux, dict) else None
        found += [(what, path) for path in listed or [] if isinstance(path, str)]
    return [(what, path) for what, path in found if clean(path) != "/"]


# -- placing


def _placed(pid: int, rootfs: str, trees: list[tuple[PlaceMount, int]], spec: Spec) -> list[Reason]:
    """Mount detached trees at their paths; reasons where the image has no place for one."""
    denials: list[Reason] = []
    with mount_namespace_of(pid):
        root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for edit, tree in trees:
                try:
                    _place(root, edit, tree, spec)
                except NotSo as problem:
                    denials.append(Reason(edit.rule, KIND, str(problem)))
        finally:
            os.close(root)
    return denials


def _place(root: int, edit: PlaceMount, tree: int, spec: Spec) -> None:
    """Mount a tree, with what `allowBelow` lets through on top of it again. Raises NotSo."""
    kept: list[tuple[str, int]] = []
    try:
        for path in dict.fromkeys(clean(str(mount["destination"])) for mount in spec.mounts):
            if path in edit.companions and is_below(path, edit.name):
                clone = _clone(root, path)
                if clone >= 0:
                    kept.append((path, clone))
        _mount(root, edit.name, tree, f"{edit.name} cannot be reached inside the image")
        for path, clone in kept:
            what = f"{path}, which allowBelow lets through, has no place in the mount at {edit.name}"
            _mount(root, path, clone, what, make=False)
    finally:
        for _, clone in kept:
            os.close(clone)


def _clone(root: int, path: str) -> int:
    try:
        fd = open_in_root(root, path)
    except FileNotFoundError:
        return -1
    try:
        return clone_tree(fd, path)
    finally:
        os.close(fd)


def _mount(root: int, path: str, tree: int, complaint: str, make: bool = True) -> None:
    try:
        target = _target(root, path, stat.S_ISDIR(os.fstat(tree).st_mode), make)
        try:
            move_mount(tree, target, path)
        finally:
            os.close(target)
    except (Misled, OSError) as error:
        raise NotSo(f"{complaint}: {error.strerror if isinstance(error, OSError) else error}") from None


def _target(root: int, path: str, is_directory: bool, make: bool) -> int:
    """The place to mount on; made where it is missing, as a runtime would, relative to an opened parent.

    Raises Misled, OSError, which says what is wrong with the image.
    """
    place = walk(root, path)
    try:
        if place.fd >= 0:
            return os.dup(place.fd)
        if not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        at = os.dup(place.parent)
        for number, name in enumerate(place.missing, 1):
            parent, at = at, -1
            try:
                if number < len(place.missing) or is_directory:
                    os.mkdir(name, 0o755, dir_fd=parent)
                else:
                    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
                    os.close(os.open(name, flags, 0o644, dir_fd=parent))
                at = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            except OSError as error:
                raise OSError(error.errno, f"{path} is missing and cannot be made: {error.strerror}") from None
            finally:
                os.close(parent)
        return at
    finally:
        place.close()
