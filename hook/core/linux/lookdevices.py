"""The devices that a container really has: in its /dev, and in all other mounts.

config.json does not show them all. A hook that ran earlier can make a node (NVIDIA's does), a runtime's wrapper behind
this one can ask for one, and a path on the node can lead elsewhere by the time it is mounted. Like
`hook.core.linux.look` this runs when the runtime has made all mounts, before the container's first process runs.
"""

from __future__ import annotations

import posix
from collections.abc import Callable

from hook.core.base.compare import is_within, parents
from hook.core.base.errors import Unacceptable, named
from hook.core.base.mountinfo import Row, mount_table
from hook.core.base.system import read_file
from hook.core.container.nodes import inode, number_of, words
from hook.core.container.spec import Spec
from hook.core.linux.mountns import Namespace, mount_id, open_in_root
from hook.core.reserve.devices import KIND
from hook.core.reserve.edits import Reason
from hook.core.reserve.exclusive import Closed

DEV_ENTRIES = 100_000
"""How many directory entries of a container's /dev are looked at."""

IMAGE_ENTRIES = 1_000_000
"""And of an image. A hundred thousand take about 0.1 s of CPU time."""

_S_IFMT, _S_IFDIR = 0o170000, 0o040000
_NODEV = 4
"""ST_NODEV of statvfs(3): no device on such a mount can be opened."""

_FOUND = 16
"""How many devices are named in a refusal."""

_CGROUPS = ("cgroup", "cgroup2")
"""Types of mounts and of file systems."""


def look_at_devices(pid: int, rootfs: str, exclusive: Closed) -> list[Reason]:
    """Why the container must not start: the devices that it has and must not have.

    `pid`: of a process in the container's mount namespace, 0 where this process is in it. `rootfs`: the container's
    root as that namespace has it. Raises Undecided, Unacceptable, OSError.
    """
    table = mount_table(pid)
    with Namespace(pid, rootfs) as namespace:
        _, prefix = namespace.mount_of_container(table)
        return devices_below(namespace.container, prefix, table, exclusive=exclusive)


def look_at_cgroups(pid: int, rootfs: str, exclusive: Closed, spec: Spec, *, acts: bool = True) -> list[Reason]:
    """Why the container must not start: it can move to a cgroup in which no rule about its devices holds.

    That takes a volume with cgroups of others, which it can write to. No runtime makes what is mounted below a
    read-only volume read-only too, and crun the volume itself only after its hooks; so both are made so here. On
    version 2, clone3(2) with CLONE_INTO_CGROUP takes a descriptor of the directory, also in a read-only mount.

    Nothing holds a container with CAP_SYS_ADMIN, which can mount cgroups itself: a privileged one without a cgroup
    namespace gets all by the engine. Arguments as for `look_at_devices`. Raises Undecided, Unacceptable, OSError.
    """
    if not exclusive.nodes:
        return []
    table = mount_table(pid)
    lines = read_file(f"/proc/{pid or 'self'}/cgroup", 1 << 16).decode("utf-8", "surrogateescape").splitlines()
    groups = [line.split(":", 2)[1:] for line in lines]
    own = {  # where rules for devices are; other hierarchies may have the container in a cgroup of the engine
        "cgroup": {path for controllers, path in groups if "devices" in controllers.split(",")} - {"/"},
        "cgroup2": {path for controllers, path in groups if not controllers} - {"/"},
    }
    meant = {mount.path: mount for mount in spec.mounts}
    namespaces = spec.linux.get("namespaces")
    listed = namespaces if isinstance(namespaces, list) else []
    of_cgroups = [each.get("path") or "" for each in listed if each.get("type") == "cgroup"]
    is_admin = spec.is_admin()
    with Namespace(pid, rootfs) as namespace:
        _, prefix = namespace.mount_of_container(table)
        for row in table.values():
            point = row.point.removeprefix(prefix)
            if row.filesystem not in _CGROUPS or not row.point.startswith(prefix + "/"):
                continue
            if "/.." not in row.root and is_within(row.root, own[row.filesystem]):
                continue
            is_of_1 = row.filesystem == "cgroup" or own["cgroup"]  # such rules hold in each cgroup of version 2
            only_writes = is_of_1 or is_admin or (of_cgroups == [""] and _are_delegated())
            if only_writes and "ro" in row.options:
                continue
            mount = next((meant[path] for path in (point, *parents(point)) if path in meant), None)
            if is_admin and not of_cgroups and mount and mount.type in _CGROUPS and not mount.is_read_only:
                continue
            try:
                fd = open_in_root(namespace.container, point)
            except OSError as error:
                raise _unseen(error, point) from error
            try:
                if mount_id(fd) != row.id or not _may_have_rules(fd, row):
                    continue  # another one hides it, or it is of another controller
                if not (only_writes and mount and mount.is_read_only):
                    rule, path = next(iter(exclusive.nodes.values()))
                    how = "can be written, and" if only_writes else "need not be written (clone3(2)), and"
                    why = f"{how} has cgroups in which the container could open"
                    return [Reason(rule.name, KIND, f"the volume {named(point)} {why} {named(path)}")]
                if acts:
                    namespace.set_attributes(fd, ["ro"], point)
            finally:
                posix.close(fd)
    return []


def _are_delegated() -> bool:
    """Whether no process leaves its cgroup namespace: `nsdelegate` (cgroups(7)), with which systemd mounts cgroups."""
    rows = [line.split(" ") for line in read_file("/proc/self/mounts", 64 << 20).decode("utf-8", "replace").split("\n")]
    return any(row[2:3] == ["cgroup2"] and "nsdelegate" in row[3].split(",") for row in rows)


def _may_have_rules(fd: int, row: Row) -> bool:
    """Whether a directory or file of cgroups may be of those with rules for devices: one hierarchy of version 1."""
    try:
        return row.filesystem != "cgroup" or bool(posix.stat("devices.list", dir_fd=fd))
    except FileNotFoundError:
        return False
    except NotADirectoryError:  # a file: it may be any
        return True


def devices_below(
    root: int, prefix: str, table: dict[int, Row], *, exclusive: Closed, opened: Callable[[int, str], int] | None = None
) -> list[Reason]:
    """The same for a root that is opened. `prefix`: its path in its mount namespace. `table`: the mounts of that.

    `opened`: instead of `open_in_root`.
    """
    opened = opened or open_in_root
    reasons: dict[str, Reason] = {}
    for row in table.values():
        path = row.point.removeprefix(prefix)
        if row.point.startswith(prefix + "/") and not exclusive.is_ours(path):
            _look_at_mount(root, path, exclusive=exclusive, reasons=reasons, opened=opened)
    _look_into(root, "/dev", exclusive=exclusive, reasons=reasons, opened=opened)
    return list(reasons.values())[:_FOUND]


def image_devices(rootfs: str, exclusive: Closed, still_waits: Callable[[], None]) -> list[Reason]:
    """Why the container must not start, by the files of its image alone. Raises Unacceptable, OSError.

    `still_waits`: called for each directory, and may raise.
    """

    def opened(directory: int, path: str) -> int:
        still_waits()
        return open_in_root(directory, path)

    reasons: dict[str, Reason] = {}
    root = posix.open(rootfs, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        _look_into(root, "", exclusive=exclusive, reasons=reasons, opened=opened, most=IMAGE_ENTRIES)
    finally:
        posix.close(root)
    return list(reasons.values())[:_FOUND]


def _look_at_mount(
    root: int, path: str, *, exclusive: Closed, reasons: dict[str, Reason], opened: Callable[[int, str], int]
) -> None:
    try:
        fd = opened(root, path)
    except (FileNotFoundError, NotADirectoryError):  # it was unlinked, or another mount hides it
        return
    except OSError as error:
        raise _unseen(error, path) from error
    try:
        status = posix.fstat(fd)
    except OSError as error:
        raise _unseen(error, path) from error
    finally:
        posix.close(fd)
    _check(status, path, exclusive, reasons)
    if status.st_mode & _S_IFMT == _S_IFDIR:
        refused = exclusive.directory(inode(status), path)
        if refused:
            rule, shown = refused
            message = f"{named(path)} in the container is a directory of the node that holds {shown}"
            reasons.setdefault(path, _reason(rule.name, message))


def _unseen(error: OSError, path: str) -> Unacceptable:
    """The error for a path where a device may be: too long a path, or a volume that root cannot read (NFS, FUSE)."""
    return Unacceptable(f"{named(path)} of the container cannot be looked at: {error.strerror}")


def _check(status: posix.stat_result, path: str, exclusive: Closed, reasons: dict[str, Reason]) -> None:
    number = number_of(status)
    rule = exclusive.rule_for(number, path) if number else None
    if number and rule:
        message = f"{named(path)} in the container is {exclusive.path(number)} ({words(number)})"
        reasons.setdefault(path, _reason(rule.name, message))


def _reason(rule: str, message: str) -> Reason:
    return Reason(rule, KIND, f"not allocated: {message}")


def _look_into(
    root: int,
    top: str,
    *,
    exclusive: Closed,
    reasons: dict[str, Reason],
    opened: Callable[[int, str], int],
    most: int = 0,
) -> None:
    """Every device node in a directory of the container. Symbolic links are not followed: they lead to other names."""
    pending = [top]
    most = most or DEV_ENTRIES
    left, device = most, -1
    while pending:
        path = pending.pop()
        fd = _directory(root, path, opened)
        if fd < 0:
            continue
        try:
            status = posix.fstat(fd)
            device = status.st_dev if device < 0 else device
            if status.st_dev != device and posix.fstatvfs(fd).f_flag & _NODEV:
                continue  # /dev/shm, for example, which pods fill
            for entry in posix.scandir(fd):
                left -= 1
                if left < 0:
                    message = f"{top or '/'} of the container holds more than {most} files"
                    reasons.setdefault(top, Reason("", KIND, f"{message}, too many to look for devices"))
                    return
                entry_path = f"{path}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry_path)
                elif not (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                    try:
                        _check(entry.stat(follow_symlinks=False), entry_path, exclusive, reasons)
                    except FileNotFoundError:  # another container removed it from a volume
                        continue
        except OSError as error:
            raise _unseen(error, path) from error
        finally:
            posix.close(fd)


def _directory(root: int, path: str, opened: Callable[[int, str], int]) -> int:
    """A descriptor to read a directory of the container with; -1 if it has none there."""
    try:
        place = opened(root, path)
        try:
            return posix.open(".", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC, dir_fd=place)
        finally:
            posix.close(place)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except OSError as error:
        raise _unseen(error, path) from error
